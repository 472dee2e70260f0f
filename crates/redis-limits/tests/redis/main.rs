//! The scripts on a real redis-server, one for each test, on a loopback port of its own.

mod server;

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::limiter::Rate;
use common::rate_limiter::Policy;
use redis_limits::{
    Counter, FixedWindow, Limit, SlidingLog, SlidingWindow, Store, StoreError, Verdict,
};
use server::Server;
use testbed::random::Random;
use testbed::wait::{until, wait};

/// Of calls that have to succeed.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Of calls that have to fail, and longer than any of them takes: it only shows one that never ends.
const LONG: Duration = Duration::from_secs(60);

fn counters(
    store: &Store,
    most: u64,
    window: Duration,
) -> [(&'static str, Box<dyn Counter + Send>); 3] {
    let limit = || Limit::new("test", most, window).unwrap();
    [
        (
            "fixed-window",
            Box::new(FixedWindow::new(store.clone(), limit()).unwrap()),
        ),
        (
            "sliding-window",
            Box::new(SlidingWindow::new(store.clone(), limit()).unwrap()),
        ),
        (
            "sliding-log",
            Box::new(SlidingLog::new(store.clone(), limit()).unwrap()),
        ),
    ]
}

fn policy(algorithm: &str, most: u64, window: Duration) -> Policy {
    let rate = Rate {
        count: most,
        per_nanoseconds: window.as_nanos() as u64,
    };
    let policy = match algorithm {
        "fixed-window" => Policy::fixed_window(rate),
        "sliding-window" => Policy::sliding_window(rate),
        _ => Policy::sliding_log(rate),
    };
    // The store keeps no debt. The room for it is bits of a window's end.
    policy.unwrap().without_room_for_debt()
}

/// Less than an hour, chosen such that the sliding window has just begun.
fn long_window() -> Duration {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let seconds = (3_000..3_600).min_by_key(|seconds| now % seconds).unwrap();
    Duration::from_secs(seconds)
}

/// Each script and the library's algorithm are asked the same, at the instants that the store says it used.
#[test]
fn verdicts_are_those_of_the_library() {
    let server = Server::start();
    let mut random = Random::new(0x5eed);
    // A fixed window of the library's ends on a multiple of 2^bits ticks, for counts of so many bits: up to 8, whole
    // microseconds, in which the store counts, are such multiples.
    for (most, window) in [(1, 3_000), (7, 40_000), (100, 25_000), (250, 250_000)] {
        let window = Duration::from_micros(window);
        for (algorithm, mut counter) in counters(&server.store(TIMEOUT), most, window) {
            let policy = policy(algorithm, most, window);
            let mut words = vec![0; policy.words()];
            let mut since = None;
            let (mut passed, mut refused) = (0, 0);
            for step in 0..600 {
                // Mostly small costs, now and then none, all, and too much.
                let cost = match random.below(20) {
                    0 => 0,
                    1 => most,
                    2 => most + 1 + random.below(3),
                    _ => 1 + random.below(most.div_ceil(10)),
                };
                let charges = random.below(4) > 0;
                let cost = if charges { cost } else { 1 };
                let verdict = if charges {
                    counter.record("key", cost)
                } else {
                    counter.fetch("key")
                }
                .unwrap();
                // The library's clock begins with the store's first window, where it is a multiple of T, too.
                let at = verdict.at.as_nanos() as u64;
                let since = *since.get_or_insert_with(|| {
                    let first = at - at % window.as_nanos() as u64;
                    policy.open(&mut words, at - first + 4 * window.as_nanos() as u64);
                    first - 4 * window.as_nanos() as u64
                });
                let now = at - since;
                let wait = policy.wait(&words, now, cost);
                let conforms = policy.conforms(&words, now, cost);
                if charges {
                    assert_eq!(policy.charge(&mut words, now, cost), conforms);
                }
                let expected = Verdict {
                    allowed: conforms,
                    remaining: policy.remaining(&words, now),
                    retry_after: wait.map(|wait| Duration::from_micros(wait.div_ceil(1_000))),
                    at: verdict.at,
                };
                assert_eq!(
                    verdict, expected,
                    "{algorithm}, {most} in {window:?}, step {step}, cost {cost}"
                );
                if conforms {
                    passed += 1;
                } else {
                    refused += 1;
                }
                if random.below(10) == 0 {
                    thread::sleep(
                        window
                            .mul_f64(random.below(130) as f64 / 100.0)
                            .min(Duration::from_millis(40)),
                    );
                }
            }
            // A slow machine asks so rarely that only what exceeds a whole window is refused.
            assert!(
                passed > 50 && refused > 5,
                "{algorithm}: {passed} passed, {refused} refused"
            );
        }
    }
}

#[test]
fn many_clients_at_once_pass_exactly_the_limit() {
    let server = Server::start();
    let window = long_window();
    for nth in 0..3 {
        let passed = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let store = server.store(TIMEOUT);
                    let (_, mut counter) =
                        counters(&store, 100, window).into_iter().nth(nth).unwrap();
                    for _ in 0..50 {
                        if counter.record("alice", 1).unwrap().allowed {
                            passed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(passed.into_inner(), 100);
        let (algorithm, mut counter) = counters(&server.store(TIMEOUT), 100, window)
            .into_iter()
            .nth(nth)
            .unwrap();
        // Looking charges nothing; another key has its own allowance; too much is never, whatever is left.
        for _ in 0..3 {
            assert_eq!(counter.fetch("bob").unwrap().remaining, 100, "{algorithm}");
        }
        let never = counter.record("bob", 101).unwrap();
        assert_eq!(
            (never.allowed, never.retry_after),
            (false, None),
            "{algorithm}"
        );
        assert_eq!(
            counter.record("bob", 100).unwrap().remaining,
            0,
            "{algorithm}"
        );
        assert!(
            counter
                .record("bob", u64::MAX)
                .unwrap()
                .retry_after
                .is_none(),
            "{algorithm}"
        );
    }
}

#[test]
fn an_idle_key_takes_no_memory() {
    let server = Server::start();
    let window = Duration::from_millis(100);
    for (algorithm, mut counter) in counters(&server.store(TIMEOUT), 5, window) {
        for key in 0..20 {
            // Refused as well as passed, and only looked at: none of it may leave a key for good.
            counter.record(&format!("key {key}"), 3).unwrap();
            counter.record(&format!("key {key}"), 3).unwrap();
            counter.fetch(&format!("other {key}")).unwrap();
        }
        let longest = server.longest_life();
        assert!(
            longest <= 2 * window + Duration::from_millis(2),
            "{algorithm}: {longest:?}"
        );
        wait(&format!("{algorithm}: the end of all keys"), || {
            server.keys() == 0
        });
    }
}

/// Gone, stopped in its tracks, and back with nothing in its memory: an error in time, and then verdicts again.
#[test]
fn a_store_that_is_away_is_an_error_in_time() {
    let mut server = Server::start();
    let window = long_window();
    let timeout = Duration::from_millis(300);
    let mut all = counters(&server.store(timeout), 5, window);
    let mut patient = counters(&server.store(TIMEOUT), 5, window);
    let [(_, mut fresh), ..] = counters(&server.store(timeout), 5, window);
    for ((_, counter), (_, patient)) in all.iter_mut().zip(&mut patient) {
        answered(&mut **counter);
        assert_eq!(patient.record("alice", 2).unwrap().remaining, 3);
    }
    let is_away = |counter: &mut dyn Counter| {
        let start = Instant::now();
        let error = counter.record("alice", 1).unwrap_err();
        assert!(start.elapsed() < LONG, "{:?}", start.elapsed());
        assert!(matches!(error, StoreError::Away { .. }), "{error}");
        assert!(error.to_string().contains(&server.address()), "{error}");
    };
    server.pause();
    is_away(&mut *fresh);
    for (_, counter) in &mut all {
        is_away(&mut **counter);
        is_away(&mut **counter);
    }
    server.go_on();
    for (algorithm, counter) in &mut all {
        // Requests during the pause are executed late or not at all, and never twice.
        let remaining = answered(&mut **counter).remaining;
        assert!((1..=3).contains(&remaining), "{algorithm}: {remaining}");
    }
    server.stop();
    let is_away = |counter: &mut dyn Counter| {
        assert!(matches!(
            counter.fetch("alice"),
            Err(StoreError::Away { .. })
        ));
    };
    for (_, counter) in &mut all {
        is_away(&mut **counter);
        is_away(&mut **counter);
    }
    // It comes back empty, without the scripts.
    server.restart();
    for ((algorithm, counter), (_, patient)) in all.iter_mut().zip(&mut patient) {
        assert_eq!(answered(&mut **counter).remaining, 5, "{algorithm}");
        answered(&mut **patient);
        assert_eq!(
            patient.record("alice", 2).unwrap().remaining,
            3,
            "{algorithm}"
        );
    }
}

/// The first verdict on "alice": a store that is there may be late, and this charges nothing.
fn answered(counter: &mut dyn Counter) -> Verdict {
    until("a verdict", || counter.fetch("alice").ok())
}

#[test]
fn an_error_of_the_store_is_reported() {
    let server = Server::start();
    let limit = Limit::new("test", 5, Duration::from_secs(3_600)).unwrap();
    server.command(&[
        "SET",
        "weir:fixed-window:test:5/3600000000us:{alice}",
        "of another kind",
    ]);
    let mut counter = FixedWindow::new(server.store(TIMEOUT), limit).unwrap();
    let error = counter.record("alice", 1).unwrap_err();
    assert!(
        matches!(error, StoreError::Refused { .. }) && error.to_string().contains("WRONGTYPE"),
        "{error}"
    );
    assert!(counter.record("bob", 1).unwrap().allowed);
    let long = Limit::new("test", 1_025, Duration::from_secs(3_600)).unwrap();
    assert!(SlidingLog::new(server.store(TIMEOUT), long).is_err());
}

/// With the feature `tls` or without: an error in time, whether who answers speaks no TLS or does not answer at all.
#[test]
fn a_store_that_speaks_no_tls_is_an_error_in_time() {
    let server = Server::start();
    let address = server.address().replace("redis://", "rediss://");
    let start = Instant::now();
    let timeout = Duration::from_millis(300);
    let ask = || {
        let store = Store::single(&address, timeout)?;
        FixedWindow::new(store, Limit::new("test", 5, timeout).unwrap())
            .unwrap()
            .record("alice", 1)
    };
    assert!(ask().is_err());
    server.pause();
    assert!(ask().is_err());
    server.go_on();
    assert!(start.elapsed() < LONG, "{:?}", start.elapsed());
}

/// Keys of one limit on all nodes, each found by whoever asks.
#[cfg(feature = "cluster")]
#[test]
fn a_cluster_spreads_the_keys() {
    let nodes = server::Cluster::start();
    let addresses = nodes.addresses();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let store = Store::cluster(&addresses[..1], TIMEOUT).unwrap();
    for (algorithm, mut counter) in counters(&store, 3, long_window()) {
        for key in 0..60 {
            let key = format!("user {key}");
            let remaining = [1, 1, 2, 1].map(|cost| counter.record(&key, cost).unwrap().remaining);
            assert_eq!(remaining, [2, 1, 1, 0], "{algorithm}");
        }
    }
    for keys in nodes.keys() {
        // 180 keys over two halves of the slots.
        assert!(keys > 40, "{keys}");
    }
}

/// The nodes run the call once they go on.
#[cfg(feature = "cluster")]
#[test]
fn a_call_that_timed_out_is_charged_once_in_a_cluster() {
    let nodes = server::Cluster::start();
    let addresses = nodes.addresses();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let patient = Store::cluster(&addresses, TIMEOUT).unwrap();
    let hasty = Store::cluster(&addresses, Duration::from_secs(1)).unwrap();
    let window = long_window();
    for ((algorithm, mut hasty), (_, mut first)) in counters(&hasty, 10, window)
        .into_iter()
        .zip(counters(&patient, 10, window))
    {
        answered(&mut *hasty);
        assert_eq!(
            first.record("alice", 1).unwrap().remaining,
            9,
            "{algorithm}"
        );
        nodes.pause();
        let result = hasty.record("alice", 1);
        nodes.go_on();
        assert!(matches!(result, Err(StoreError::Away { .. })), "{result:?}");
        until("the late charge", || {
            (first.fetch("alice").unwrap().remaining < 9).then_some(())
        });
        // A node serves connections in their order: no call of an older one waits any more.
        let mut last = counters(&patient, 10, window);
        let (_, last) = last
            .iter_mut()
            .find(|(name, _)| *name == algorithm)
            .unwrap();
        assert_eq!(last.record("alice", 0).unwrap().remaining, 8, "{algorithm}");
    }
}

#[cfg(feature = "cluster")]
#[test]
fn a_call_follows_a_slot_to_its_node() {
    let nodes = server::Cluster::start();
    let addresses = nodes.addresses();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let store = Store::cluster(&addresses[..1], TIMEOUT).unwrap();
    let mut counter =
        FixedWindow::new(store, Limit::new("test", 9, long_window()).unwrap()).unwrap();
    let mut remaining = || counter.record("user", 1).unwrap().remaining;
    assert_eq!(remaining(), 8);
    let (slot, from, to) = nodes.remove_key();
    let [from_id, to_id]: [String; 2] =
        [from, to].map(|node| redis::from_redis_value(node.command(&["CLUSTER", "MYID"])).unwrap());
    let set = |node: &server::Server, words: [&str; 2]| {
        node.command(&[["CLUSTER", "SETSLOT", &slot].as_slice(), &words].concat());
    };
    set(to, ["IMPORTING", &from_id]);
    set(from, ["MIGRATING", &to_id]);
    assert_eq!([remaining(), remaining()], [8, 7], "ASK");
    set(to, ["NODE", &to_id]);
    set(from, ["NODE", &to_id]);
    assert_eq!([remaining(), remaining()], [6, 5], "MOVED");
}
