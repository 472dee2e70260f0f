//! One limit per key for several agents on a real store: `cluster = "keys"`.

use std::cell::RefCell;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::tests;
use testbed::trials::Test;
use testbed::wait::PATIENCE;

use crate::fleet::{Asker, BURST, Host, KEYS, Kept, Spread, measure, windows};
use crate::quotas::settle;
use crate::redis::Redis;

pub const TESTS: &[Test] = tests![
    a_key_has_one_limit_on_four_hosts,
    windows_are_shared_by_four_hosts,
    windows_end_and_begin_on_four_hosts,
    a_key_that_one_host_used_up_is_used_up_on_the_others,
    keys_without_a_store_follow_when_store_is_down,
    keys_of_a_start_without_a_store_have_a_share_by_hosts_last_seen,
    a_thousand_hot_keys_of_ten_thousand_have_one_limit_each,
    the_busiest_keys_are_exchanged_and_the_others_counted,
];

fn fleet(count: usize, cluster: &str, limit: &str) -> Vec<Host> {
    let limit = format!("{KEYS}\n{limit}");
    let fleet: Vec<Host> = (0..count)
        .map(|nth| Host::start(&format!("host-{nth}"), cluster, &limit))
        .collect();
    for host in &fleet {
        host.until(PATIENCE, "one of all", |cluster| {
            cluster["hosts"] == count && is_from("keys")(cluster)
        });
    }
    fleet
}

fn is_from(from: &'static str) -> impl Fn(&Value) -> bool {
    move |cluster| cluster["limits"][0]["share_from"] == from
}

/// Five times the limit. `cargo xtask accuracy` measures for half a minute, and how much less passes.
fn a_key_has_one_limit_on_four_hosts() {
    const HOSTS: usize = 4;
    let redis = Redis::start(&[]);
    for spread in Spread::ALL.into_iter().chain([Spread::One]) {
        let time = Duration::from_secs(3);
        let outcome = measure(&redis.url(), (HOSTS, "100ms"), Kept::Keys, spread, time);
        // A host that was away for a lease has a share of its own meanwhile.
        let allowed = 1.1 * outcome.limit + outcome.gone as f64 * outcome.limit / HOSTS as f64;
        assert!(outcome.passed as f64 <= allowed, "{spread}: {outcome:?}");
        assert!(outcome.wanted > outcome.passed, "{outcome:?}");
    }
}

/// All of it is asked for on every host at once, before any can have heard of another, and then again and again.
fn windows_are_shared_by_four_hosts() {
    const N: u64 = 100;
    let redis = Redis::start(&[]);
    for algorithm in ["fixed-window", "sliding-window", "sliding-log"] {
        let cluster = format!("store = {:?}\nname = {algorithm:?}", redis.url());
        let fleet = fleet(
            4,
            &cluster,
            &format!("rate = \"{N}/h\"\nalgorithm = {algorithm:?}"),
        );
        let begun = hour(&redis);
        let passed: u64 = thread::scope(|scope| {
            let ask = |host: &Host| {
                let mut asker = host.connect();
                move || {
                    let start = Instant::now();
                    let mut passed = asker.ask(N);
                    while start.elapsed() < Duration::from_secs(2) {
                        thread::sleep(Duration::from_millis(50));
                        passed += asker.ask(N / 20);
                    }
                    passed
                }
            };
            let asked: Vec<_> = fleet.iter().map(|host| scope.spawn(ask(host))).collect();
            asked.into_iter().map(|asked| asked.join().unwrap()).sum()
        });
        // A host that is kept from publishing for a lease, on a machine that has other things to do, counts as gone, and
        // what it was left may pass beside what the others pass.
        let gone: usize = fleet.iter().map(Host::times_gone).sum();
        // Agents know the store's clock to some milliseconds: an hour that began just before may not have for all of them.
        let time = hour(&redis) - begun + 2.0 / 3_600.0;
        let hours = match algorithm {
            "fixed-window" => {
                1 + u64::from((begun - 1.0 / 3_600.0).floor() < (begun + time).floor())
            }
            _ => 1,
        };
        eprintln!(
            "{algorithm}: {passed} of {N} in {hours} windows, {gone} times a host was taken for gone"
        );
        // The share that a sliding window drops as time passes.
        let most = (hours as f64 + time) * N as f64;
        assert!(
            passed as f64 <= 1.1 * most + gone as f64 * N as f64 / 4.0,
            "{algorithm}: {passed} of {most}, {gone} gone"
        );
        assert!(passed >= N * 95 / 100, "{algorithm}: {passed} of {N}");
    }
}

/// Two windows of two seconds of each kind, five times their count; `cargo xtask accuracy` takes half a minute, with
/// windows of ten seconds.
fn windows_end_and_begin_on_four_hosts() {
    let redis = Redis::start(&[]);
    for spread in Spread::ALL.into_iter().chain([Spread::One]) {
        for outcome in windows::measure(
            &redis.url(),
            4,
            spread,
            Duration::from_secs(2),
            Duration::from_secs(5),
        ) {
            let windows::Outcome {
                algorithm,
                seconds,
                wanted,
                passed,
                most,
                least,
                gone,
            } = outcome;
            let what = format!(
                "{algorithm}, {spread}, {seconds:.1} s: {passed} of {wanted} passed, {gone} times gone"
            );
            eprintln!("{what}; at most {most} in a window, at least {least:?}");
            assert!(
                most <= windows::COUNT * 11 / 10 + gone as u64 * windows::COUNT / 4,
                "{what}: {most}"
            );
            assert!(passed > 0, "{what}");
        }
    }
}

/// The store's clock, in hours.
fn hour(redis: &Redis) -> f64 {
    redis
        .cli(&["time"])
        .lines()
        .next()
        .unwrap()
        .parse::<f64>()
        .unwrap()
        / 3_600.0
}

/// A user who has used up an hour's count on one host finds it used up on another, which never saw that user before.
fn a_key_that_one_host_used_up_is_used_up_on_the_others() {
    let redis = Redis::start(&[]);
    let cluster = format!("store = {:?}", redis.url());
    let fleet = fleet(2, &cluster, "rate = \"100/h\"\nalgorithm = \"sliding-log\"");
    let mut one = fleet[0].connect();
    let start = Instant::now();
    let mut passed = 0;
    while passed < 100 {
        passed += one.ask(10);
        thread::sleep(Duration::from_millis(20));
        assert!(
            start.elapsed() < PATIENCE,
            "{passed} of 100: {:#}",
            fleet[0].cluster()
        );
    }
    settle(std::slice::from_ref(&redis), &fleet);
    let passed = fleet[1].connect().ask(100);
    assert!(
        passed <= 10,
        "{passed} more on the other host: {:#}",
        fleet[1].cluster()
    );
}

/// Hot keys are asked for on all hosts, five times their limit; the others once in a while, on one.
fn a_thousand_hot_keys_of_ten_thousand_have_one_limit_each() {
    const HOSTS: usize = 4;
    const HOT: usize = 1_000;
    const COLD: usize = 9_000;
    const BURST: f64 = 10.0;
    let redis = Redis::start(&[]);
    let fleet = fleet(
        HOSTS,
        &format!("store = {:?}", redis.url()),
        "rate = \"1/s\"\nburst = 10",
    );
    let load = |what: &str| -> f64 {
        let text = redis.cli(&["info", "all"]);
        let value = text.lines().find_map(|line| {
            line.strip_prefix(what)?
                .strip_prefix(':')?
                .trim()
                .parse()
                .ok()
        });
        value.unwrap_or_else(|| panic!("no {what} in {text}"))
    };
    let counted = [
        "used_cpu_user",
        "used_cpu_sys",
        "total_net_input_bytes",
        "total_net_output_bytes",
    ];
    let before = counted.map(load);
    let (start, time) = (Instant::now(), Duration::from_secs(6));
    let (passed, refused_cold): (Vec<u64>, u64) = thread::scope(|scope| {
        let fleet = &fleet;
        let drive = |nth: usize| {
            let host = &fleet[nth];
            let mut asker = host.connect();
            scope.spawn(move || {
                let (mut passed, mut refused_cold) = (vec![0u64; HOT], 0);
                // Soon after their last packet, keys are exchanged no more.
                let (mut exchanged, mut seconds) = (0, 0);
                let (mut asked, mut cold, mut last) = (0u64, nth, Duration::ZERO);
                while last < time {
                    thread::sleep(Duration::from_millis(10));
                    let now = start.elapsed();
                    last = now;
                    // Five times a second and key, spread over the hosts.
                    let due = (5.0 * now.as_secs_f64() * HOT as f64 / HOSTS as f64) as u64;
                    while asked < due {
                        let keys: Vec<usize> = (asked..due.min(asked + 100))
                            .map(|ask| ask as usize % HOT)
                            .collect();
                        asked += keys.len() as u64;
                        let allowed = asker.ask_all(
                            keys.iter()
                                .map(|key| Asker::question(&format!("hot-{key}"))),
                        );
                        keys.iter()
                            .zip(allowed)
                            .for_each(|(key, allowed)| passed[*key] += u64::from(allowed));
                    }
                    refused_cold += 1 - asker.ask_for(&format!("cold-{}", cold % COLD), 1);
                    cold += HOSTS;
                    if now.as_secs() > seconds {
                        seconds = now.as_secs();
                        let limit = &host.cluster()["limits"][0];
                        assert_eq!(limit["keys_local"], 0, "{limit}");
                        exchanged = exchanged.max(limit["keys_exchanged"].as_u64().unwrap());
                    }
                }
                assert!(exchanged > 1_000, "{exchanged} keys were exchanged");
                (passed, refused_cold)
            })
        };
        let drivers: Vec<_> = (0..fleet.len()).map(drive).collect();
        let all = drivers.into_iter().map(|driver| driver.join().unwrap());
        all.fold((vec![0; HOT], 0), |mut all, (passed, refused)| {
            all.0
                .iter_mut()
                .zip(passed)
                .for_each(|(sum, passed)| *sum += passed);
            (all.0, all.1 + refused)
        })
    });
    let seconds = start.elapsed().as_secs_f64();
    let used: Vec<f64> = counted
        .map(load)
        .iter()
        .zip(before)
        .map(|(after, before)| (after - before) / seconds)
        .collect();
    eprintln!(
        "the store, a second and a thousand hot keys on {HOSTS} hosts: {:.0} ms of CPU time, {:.0} kB in, {:.0} kB out",
        1e3 * (used[0] + used[1]),
        used[2] / 1e3,
        used[3] / 1e3
    );
    let limit = BURST + seconds;
    let most = passed.iter().max().unwrap();
    let mean = passed.iter().sum::<u64>() as f64 / HOT as f64;
    eprintln!("{limit:.1} a key: at most {most} passed, {mean:.1} on average");
    assert_eq!(refused_cold, 0);
    // Asked for once in 0.8 s by each host: a host that is kept from publishing for a lease of a second passes two units
    // of a key before the others hear of it. Kept for longer it counts as gone, and has a share of its own meanwhile.
    let unheard = 2.0 * (HOSTS - 1) as f64;
    let gone: usize = fleet.iter().map(Host::times_gone).sum();
    let allowed = 1.1 * limit + unheard + gone as f64 * limit / HOSTS as f64;
    assert!(
        *most as f64 <= allowed,
        "{mean} of {limit}, at most {most} of {allowed}; {gone} times gone"
    );
}

fn keys_without_a_store_follow_when_store_is_down() {
    for (when, share, passes) in [
        ("share", 0.5, true),
        ("local", 1.0, true),
        ("open", 1.0, true),
        ("closed", 0.0, false),
    ] {
        let mut redis = Redis::start(&[]);
        let cluster = format!("store = {:?}\nwhen_store_is_down = {when:?}", redis.url());
        let mut fleet = fleet(2, &cluster, "rate = \"1000/s\"\nburst = 100");
        redis.kill();
        for host in &fleet {
            host.until(PATIENCE, "alone", |cluster| {
                is_from(when)(cluster)
                    && cluster["limits"][0]["share"] == share
                    && cluster["health"] == "down"
            });
            let passed = host.connect().ask(10_000);
            match when {
                "open" => assert_eq!(passed, 10_000),
                _ => assert_eq!(passed > 0, passes, "{when}"),
            }
        }
        redis.restart();
        for host in &fleet {
            host.until(PATIENCE, "back", |cluster| {
                is_from("keys")(cluster)
                    && cluster["limits"][0]["share"] == 1.0
                    && cluster["hosts"] == 2
            });
        }
        // One that leaves is forgotten at once.
        fleet.remove(1).stop(Signal::SIGTERM);
        fleet[0].until(PATIENCE, "the only one", |cluster| cluster["hosts"] == 1);
    }
}

/// Before the first reply nobody knows how long it takes: what holds then is what holds without a store.
fn keys_of_a_start_without_a_store_have_a_share_by_hosts_last_seen() {
    const LIMIT: &str = "rate = \"1000/s\"\nburst = 100";
    for (mode, share) in [("share", 0.5), ("local", 1.0), ("closed", 0.0)] {
        let mut redis = Redis::start(&[]);
        let cluster = format!("store = {:?}\nwhen_store_is_down = {mode:?}", redis.url());
        let mut fleet = fleet(2, &cluster, LIMIT);
        for host in &fleet {
            host.until(PATIENCE, "saved", |_| host.state("exchange").contains('2'));
        }
        redis.kill();
        fleet[0].restart(Signal::SIGKILL);
        fleet[1].restart(Signal::SIGTERM);
        let passes = |host: &Host, key: &str, times: f64| {
            let start = Instant::now();
            let passed = host.connect().ask_for(key, 10 * BURST) as f64;
            let most =
                times * share * (BURST as f64 + 1_000.0 * start.elapsed().as_secs_f64()) + 1.0;
            assert!(
                passed <= most && (passed > 0.0 || share == 0.0),
                "{mode}, {key}: {passed} of {most}"
            );
        };
        for (nth, host) in fleet.iter().enumerate() {
            passes(host, "joining", 1.0);
            host.reload(
                &format!("host-{nth}"),
                &cluster,
                &format!("{KEYS}\n{}", LIMIT.replace('1', "2")),
            );
            passes(host, "reloaded", 2.0);
            host.until(PATIENCE, "alone", |cluster| {
                is_from(mode)(cluster)
                    && cluster["limits"][0]["share"] == share
                    && cluster["hosts"] == 2
            });
            passes(host, "alone", 2.0);
        }
        redis.restart();
        for host in &fleet {
            host.until(PATIENCE, "back", |cluster| {
                is_from("keys")(cluster)
                    && cluster["limits"][0]["share"] == 1.0
                    && cluster["hosts"] == 2
            });
        }
    }
}

fn the_busiest_keys_are_exchanged_and_the_others_counted() {
    let redis = Redis::start(&[]);
    let cluster = format!("store = {:?}\nmax_hot_keys = 2", redis.url());
    let fleet = fleet(2, &cluster, "rate = \"10/min\"");
    let asker = RefCell::new(fleet[0].connect());
    fleet[0].until(PATIENCE, "full", |cluster| {
        for key in ["a", "b", "c", "d", "e"] {
            asker.borrow_mut().ask_for(key, 1);
        }
        let limit = &cluster["limits"][0];
        limit["keys_exchanged"].as_u64() >= Some(2) && limit["keys_local"] == 3
    });
}
