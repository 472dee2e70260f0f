//! Windows of four hosts while the store or a host is away: no window passes more than a tenth above its count.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;
use testbed::fleet::{Host, Spread, windows};
use testbed::redis::Redis;
use testbed::tests;
use testbed::trials::Test;

pub const TESTS: &[Test] = tests![
    windows_hold_while_the_store_is_away,
    windows_hold_while_the_store_stalls,
    windows_hold_while_a_host_stands_still,
];

const WINDOW: Duration = Duration::from_secs(10);
const AWAY: Duration = Duration::from_secs(5);

/// Waits for an instant before the end of a window.
fn wait_until_left(left: Duration) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let since = Duration::from_nanos((now.as_nanos() % WINDOW.as_nanos()) as u64);
    let wait = 2 * WINDOW - left - since;
    thread::sleep(wait.checked_sub(WINDOW).unwrap_or(wait));
}

/// Measures even demand of five times the count while something happens.
fn windows_hold(what: &str, redis: &Redis, time: Duration, events: impl FnOnce(&[Host])) {
    let url = redis.url();
    for outcome in windows::measure_during(&url, 4, Spread::Even, WINDOW, time, events) {
        eprintln!("{what}: {outcome:?}");
        let windows::Outcome {
            algorithm,
            most,
            passed,
            ..
        } = outcome;
        assert!(
            most <= windows::COUNT * 11 / 10,
            "{what}, {algorithm}: {most} of {}",
            windows::COUNT
        );
        assert!(passed >= windows::COUNT, "{what}, {algorithm}: {passed}");
    }
}

/// A window begins while no host has the store.
fn windows_hold_while_the_store_is_away() {
    let redis = Redis::start(&[]);
    windows_hold("a store away for 5 s", &redis, 3 * WINDOW, |_| {
        wait_until_left(AWAY / 2);
        redis.hang();
        thread::sleep(AWAY);
        redis.go_on();
    });
}

fn windows_hold_while_the_store_stalls() {
    let redis = Redis::start(&[]);
    let time = 2 * WINDOW + WINDOW / 2;
    windows_hold("a store away for 2 s in 3", &redis, time, |_| {
        let start = Instant::now();
        while start.elapsed() < time {
            redis.hang();
            thread::sleep(Duration::from_secs(2));
            redis.go_on();
            thread::sleep(Duration::from_secs(1));
        }
    });
}

fn windows_hold_while_a_host_stands_still() {
    let redis = Redis::start(&[]);
    windows_hold("a host stopped for 5 s", &redis, 3 * WINDOW, |fleet| {
        wait_until_left(AWAY / 2);
        fleet[0].signal(Signal::SIGSTOP);
        thread::sleep(AWAY);
        fleet[0].signal(Signal::SIGCONT);
    });
}
