//! Agents and a real store: how near to their limit they stay, and what holds when the store, or one of them, fails.

mod apart;
mod bans;
mod carry;
mod clock;
mod failover;
mod few;
mod joins;
mod keys;
mod ledger;
mod outages;
mod quotas;
mod resets;
mod settling;
mod stores;
mod trouble;
mod zone_changes;
mod zones;

use std::time::Duration;

use libtest_mimic::{Arguments, Trial};

use testbed::fleet::{Kept, Spread, measure};
use testbed::trials::Test;
use testbed::{fleet, redis, tests};

/// 2, 4 and 8 hosts by even, skewed and moving demand: at most a tenth above the limit by the time that really passed,
/// however busy the machine is. `cargo xtask accuracy` measures for half a minute, and how much less passes.
fn fleets_exceed_their_limit_by_a_tenth_at_most() {
    let redis = redis::Redis::start(&[]);
    let url = redis.url();
    for spread in Spread::ALL {
        for hosts in [2, 4, 8] {
            let outcome = measure(
                &url,
                (hosts, "100ms"),
                Kept::Shares,
                spread,
                Duration::from_secs(3),
            );
            assert!(
                outcome.error() <= 0.1,
                "{hosts} hosts, {spread}: {outcome:?}"
            );
            assert!(outcome.wanted > outcome.passed, "{outcome:?}");
        }
    }
}

fn main() {
    let arguments = Arguments::from_args();
    let obstacle = redis::obstacle();
    if let Some(reason) = obstacle {
        eprintln!("skipped: {reason}");
    }
    let own: &[Test] = tests![fleets_exceed_their_limit_by_a_tenth_at_most];
    let rooms = [
        own,
        keys::TESTS,
        quotas::TESTS,
        resets::TESTS,
        joins::TESTS,
        few::TESTS,
        outages::TESTS,
        settling::TESTS,
        ledger::TESTS,
        stores::TESTS,
        trouble::TESTS,
        carry::TESTS,
        apart::TESTS,
        failover::TESTS,
        bans::TESTS,
        zones::TESTS,
        zone_changes::TESTS,
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
    testbed::trials::run(&arguments, trials)
}
