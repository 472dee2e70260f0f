//! Windows of four hosts while the store or a host is away: no window passes more than a tenth above its count.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;
use testbed::delay::delayed;
use testbed::fleet::{Host, KEYS, Spread, passed_during, windows};
use testbed::redis::Redis;
use testbed::tests;
use testbed::trials::Test;
use testbed::wait::PATIENCE;

use crate::quotas::{N, daily, exhaust, fleet, joined, settle};

pub const TESTS: &[Test] = tests![
    windows_hold_while_the_store_is_away,
    windows_hold_while_the_store_stalls,
    windows_hold_while_a_host_stands_still,
    windows_hold_while_the_store_is_far_away,
    a_bucket_holds_while_the_store_is_far_away,
    a_bucket_holds_when_demand_comes_in_pulses,
    a_slow_bucket_holds_over_outages,
];

const WINDOW: Duration = Duration::from_secs(10);
const AWAY: Duration = Duration::from_secs(5);
const HOSTS: usize = 4;

/// Waits for an instant before the end of a window.
fn wait_until_left(left: Duration) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let since = Duration::from_nanos((now.as_nanos() % WINDOW.as_nanos()) as u64);
    let wait = 2 * WINDOW - left - since;
    thread::sleep(wait.checked_sub(WINDOW).unwrap_or(wait));
}

/// Measures even demand of five times the count while something happens: at least one window's count passes. `events`
/// returns how often a host exchanges nothing for a lease because of it.
fn windows_hold(what: &str, url: &str, time: Duration, events: impl FnOnce(&[Host]) -> usize) {
    windows_hold_above(windows::COUNT, what, url, time, events);
}

/// The same, and at least so many pass in all.
fn windows_hold_above(
    least: u64,
    what: &str,
    url: &str,
    time: Duration,
    events: impl FnOnce(&[Host]) -> usize,
) {
    let mut expected = 0;
    let events = |fleet: &[Host]| expected = events(fleet);
    let outcomes = windows::measure_during(url, HOSTS, Spread::Even, WINDOW, time, events);
    for outcome in outcomes {
        eprintln!("{outcome:?}");
        let windows::Outcome {
            algorithm,
            most,
            passed,
            gone,
            ..
        } = outcome;
        let event = format!("{algorithm}: {what}; most in a window");
        passed_during(&event, most, windows::COUNT);
        // On a busy machine a host is away for a lease once more, and has a share of its own meanwhile.
        let own = (gone.saturating_sub(expected) * windows::COUNT as usize / HOSTS) as u64;
        assert!(
            most <= windows::COUNT * 11 / 10 + own,
            "{what}, {algorithm}: {most} of {}, {gone} times gone of {expected}",
            windows::COUNT
        );
        assert!(passed >= least, "{what}, {algorithm}: {passed}");
    }
}

/// A window begins while no host has the store.
fn windows_hold_while_the_store_is_away() {
    let redis = Redis::start(&[]);
    windows_hold(
        "a window begins while the store is away for 5 s",
        &redis.url(),
        3 * WINDOW,
        |_| {
            wait_until_left(AWAY / 2);
            redis.hang();
            thread::sleep(AWAY);
            redis.go_on();
            HOSTS
        },
    );
}

fn windows_hold_while_the_store_stalls() {
    let redis = Redis::start(&[]);
    let time = 2 * WINDOW + WINDOW / 2;
    windows_hold("the store is away for 2 s in 3", &redis.url(), time, |_| {
        let (start, mut times) = (Instant::now(), 0);
        while start.elapsed() < time {
            redis.hang();
            thread::sleep(Duration::from_secs(2));
            redis.go_on();
            thread::sleep(Duration::from_secs(1));
            times += 1;
        }
        times * HOSTS
    });
}

fn windows_hold_while_a_host_stands_still() {
    let redis = Redis::start(&[]);
    windows_hold(
        "a host stands still for 5 s",
        &redis.url(),
        3 * WINDOW,
        |fleet| {
            wait_until_left(AWAY / 2);
            fleet[0].signal(Signal::SIGSTOP);
            thread::sleep(AWAY);
            fleet[0].signal(Signal::SIGCONT);
            1
        },
    );
}

/// The time of a request to a store that is far away, one way.
const FAR: Duration = Duration::from_millis(180);

/// A store far away: where a host connects to it.
fn far_away(redis: &Redis) -> String {
    let store = delayed(([127, 0, 0, 1], redis.port()).into(), FAR);
    format!("redis://{store}")
}

/// Each host reads the others' use half a second late. On a busy machine replies come after their timeout, and less passes.
fn windows_hold_while_the_store_is_far_away() {
    let redis = Redis::start(&[]);
    windows_hold_above(
        1,
        "180 ms to the store, and 180 ms back",
        &far_away(&redis),
        2 * WINDOW,
        |_| 0,
    );
}

fn a_bucket_holds_while_the_store_is_far_away() {
    const RATE: u64 = 200;
    const BURST: u64 = 50;

    let redis = Redis::start(&[]);
    let (passed, time) = bucket_in_pulses((RATE, BURST), &far_away(&redis), &[(0, 10_000)]);
    let limit = BURST + (RATE as f64 * time.as_secs_f64()) as u64;
    passed_during(
        "token-bucket: 180 ms to the store, and 180 ms back",
        passed,
        limit,
    );
    assert!(passed <= limit * 11 / 10, "{passed} of {limit}");
    assert!(passed >= 4 * BURST, "{passed} of {limit}");
}

/// Demand on all hosts for a fifth of a second in two. Only before the first exchange each host has the burst.
fn a_bucket_holds_when_demand_comes_in_pulses() {
    const RATE: u64 = 50;
    const BURST: u64 = 50;

    let redis = Redis::start(&[]);
    let pulses: Vec<_> = (0..9).map(|nth| (nth * 2_000, 200)).collect();
    let (passed, time) = bucket_in_pulses((RATE, BURST), &redis.url(), &pulses);
    let limit = BURST + (RATE as f64 * time.as_secs_f64()) as u64;
    let event = "token-bucket: demand on four hosts for 0.2 s in 2 s; each has the burst before the first exchange";
    passed_during(event, passed, limit);
    assert!(passed <= limit * 11 / 10 + 3 * BURST, "{passed} of {limit}");
    assert!(passed >= 4 * BURST, "{passed} of {limit}");
}

/// In each outage another host has all demand, also before the lease has ended. What passes would refill in hours.
fn a_slow_bucket_holds_over_outages() {
    let redis = Redis::start(&[]);
    let cluster = format!("store = {:?}", redis.url());
    let fleet = fleet(HOSTS, &cluster, &daily("token-bucket"));
    joined(&fleet, HOSTS);
    let mut passed = Vec::new();
    for host in &fleet {
        redis.hang();
        passed.push(host.connect().ask(N / 5));
        for host in &fleet {
            host.until(PATIENCE, "alone", |cluster| {
                cluster["limits"][0]["share_from"] == "share"
            });
        }
        passed.push(host.connect().ask(N / 5 - 10));
        // Longer than an attempt to connect: units that pass during the last one are published.
        thread::sleep(Duration::from_secs(3));
        redis.go_on();
        joined(&fleet, HOSTS);
        settle(std::slice::from_ref(&redis), &fleet);
    }
    passed.extend(fleet.iter().map(exhaust));
    eprintln!("in each outage, then on each host: {passed:?}");
    let total: u64 = passed.iter().sum();
    let event = "token-bucket: the store is away four times, and another host is used each time";
    passed_during(event, total, N);
    // Before the lease ends, and then of the share: each unit of the first host counts for all hosts.
    let limit = N / 5 + (N - N / 5 * HOSTS as u64) / HOSTS as u64;
    assert!(total <= limit + N / 50, "{passed:?}");
    assert!(total >= limit - N / 50, "{passed:?}");
}

/// Asks four hosts for units of one key whenever a pulse lasts; its start and length are in milliseconds. Returns what
/// passed, and in what time.
fn bucket_in_pulses(
    (rate, burst): (u64, u64),
    store: &str,
    pulses: &[(u64, u64)],
) -> (u64, Duration) {
    let fleet = fleet(
        4,
        &format!("store = {store:?}"),
        &format!("{KEYS}\nrate = \"{rate}/s\"\nburst = {burst}"),
    );
    joined(&fleet, 4);
    let start = Instant::now();
    let passed = thread::scope(|scope| {
        let ask = |host: &Host| {
            let mut asker = host.connect();
            scope.spawn(move || {
                let mut passed = 0;
                for (due, length) in pulses {
                    let due = Duration::from_millis(*due);
                    thread::sleep(due.saturating_sub(start.elapsed()));
                    while start.elapsed() < due + Duration::from_millis(*length) {
                        passed += asker.ask(10);
                        thread::sleep(Duration::from_millis(5));
                    }
                }
                passed
            })
        };
        let asked: Vec<_> = fleet.iter().map(ask).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).sum()
    });
    (passed, start.elapsed())
}
