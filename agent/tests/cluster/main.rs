//! Agents and a real store: how near to their limit they stay, and what holds when the store, or one of them, fails.

mod apart;
mod bans;
mod carry;
mod clock;
mod failover;
mod keys;
mod ledger;
mod stores;
mod trouble;

use std::time::Duration;

use libtest_mimic::{Arguments, Trial};

use testbed::fleet::{Kept, Spread, measure};
use testbed::trials::Test;
use testbed::{fleet, redis, tests};

/// 2, 4 and 8 hosts by even, skewed and moving demand: within a tenth of the limit by the time that really passed. Here
/// for eight seconds each; `cargo xtask accuracy` takes half a minute.
fn fleets_stay_within_a_tenth_of_their_limit() {
    let redis = redis::Redis::start(&[]);
    let url = redis.url();
    for spread in Spread::ALL {
        for hosts in [2, 4, 8] {
            let outcome = measure(&url, hosts, Kept::Shares, spread, Duration::from_secs(8));
            let error = outcome.error();
            let (seconds, percent, late) = (outcome.seconds, 100.0 * error, 100.0 * outcome.late);
            eprintln!(
                "{hosts} hosts, {spread}, {seconds:.1} s, late for {late:.0} %: {percent:+.1} %"
            );
            assert!(outcome.wanted as f64 > 2.0 * outcome.limit, "{outcome:?}");
            // Never too much, however busy the machine is. While nobody asks, nothing passes.
            assert!(error <= 0.1 && error >= -0.1 - outcome.late, "{outcome:?}");
        }
    }
}

fn main() {
    let arguments = Arguments::from_args();
    let obstacle = redis::obstacle();
    if let Some(reason) = obstacle {
        eprintln!("skipped: {reason}");
    }
    let own: &[Test] = tests![fleets_stay_within_a_tenth_of_their_limit];
    let rooms = [
        own,
        keys::TESTS,
        ledger::TESTS,
        stores::TESTS,
        trouble::TESTS,
        carry::TESTS,
        apart::TESTS,
        failover::TESTS,
        bans::TESTS,
    ];
    let no_clock = clock::obstacle();
    if let Some(reason) = no_clock {
        eprintln!(
            "skipped, {} tests of the store's clock: {reason}",
            clock::TESTS.len()
        );
    }
    let with_server = |prefix: &str, program: &str, rooms: &[&'static [Test]]| -> Vec<Trial> {
        let trial = |(name, test): &Test, is_ignored: bool| {
            let (program, test) = (program.to_owned(), *test);
            let run = move || {
                redis::start_servers_by(&program);
                test();
                Ok(())
            };
            Trial::test(format!("{prefix}{name}"), run)
                .with_ignored_flag(obstacle.is_some() || is_ignored)
        };
        let of_clock = clock::TESTS
            .iter()
            .map(|test| trial(test, no_clock.is_some()));
        rooms
            .iter()
            .copied()
            .flatten()
            .map(|test| trial(test, false))
            .chain(of_clock)
            .collect()
    };
    let mut trials = with_server("", "redis-server", &rooms);
    if let Some(program) = redis::valkey() {
        let rooms = [
            ledger::TESTS,
            stores::TESTS,
            apart::TESTS,
            failover::TESTS,
            bans::TESTS,
        ];
        trials.extend(with_server("valkey_", &program, &rooms));
    } else {
        eprintln!("skipped, the tests with Valkey: `cargo xtask integration` provides it");
    }
    libtest_mimic::run(&arguments, trials).exit();
}
