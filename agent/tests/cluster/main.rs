//! Agents and a real store: how near to their limit they stay, and what holds when the store, or one of them, fails.

mod apart;
mod carry;
mod failover;
#[path = "../fleet/mod.rs"]
mod fleet;
mod ledger;
#[path = "../redis/mod.rs"]
mod redis;
mod stores;
mod trouble;

use std::time::Duration;

use libtest_mimic::{Arguments, Trial};

use fleet::{Spread, measure};

/// A machine that is busy with other things says little of hosts that have one each: it is asked again.
const TRIES: usize = 4;

/// 2, 4 and 8 hosts by even, skewed and moving demand: within a tenth of the limit by the time that really passed. Here
/// for eight seconds each; `cargo xtask accuracy` takes half a minute.
fn fleets_stay_within_a_tenth_of_their_limit() {
    let redis = redis::Redis::start(&[]);
    let url = redis.url();
    for spread in Spread::ALL {
        for hosts in [2, 4, 8] {
            for tries in 1.. {
                let outcome = measure(&url, hosts, spread, Duration::from_secs(8));
                let error = 100.0 * outcome.error();
                let (seconds, late) = (outcome.seconds, 100.0 * outcome.late);
                eprintln!("{hosts} hosts, {spread}, {seconds:.1} s, late for {late:.0} %: {error:+.1} %");
                assert!(outcome.wanted as f64 > 2.0 * outcome.limit, "{outcome:?}");
                // Never too much, however busy the machine is.
                assert!(outcome.error() <= 0.1, "{outcome:?}");
                if outcome.error() >= -0.1 {
                    break;
                }
                assert!(outcome.late > 0.02 && tries < TRIES, "{outcome:?}");
            }
        }
    }
}

fn main() {
    let arguments = Arguments::from_args();
    let obstacle = redis::obstacle();
    if let Some(reason) = obstacle {
        eprintln!("skipped: {reason}");
    }
    let own: &[(&str, fn())] =
        &[("fleets_stay_within_a_tenth_of_their_limit", fleets_stay_within_a_tenth_of_their_limit)];
    let rooms = [own, ledger::TESTS, stores::TESTS, trouble::TESTS, carry::TESTS, apart::TESTS, failover::TESTS];
    let no_valkey = redis::valkey().is_none();
    if no_valkey {
        eprintln!(
            "skipped, {} tests of Valkey: there is no valkey-server, nor one in WEIR_VALKEY",
            failover::VALKEY_TESTS.len()
        );
    }
    let trial = |(name, test): &(&'static str, fn()), is_ignored: bool| {
        let test = *test;
        let run = move || {
            test();
            Ok(())
        };
        Trial::test(*name, run).with_ignored_flag(is_ignored)
    };
    let mut trials: Vec<Trial> = rooms.into_iter().flatten().map(|test| trial(test, obstacle.is_some())).collect();
    trials.extend(failover::VALKEY_TESTS.iter().map(|test| trial(test, obstacle.is_some() || no_valkey)));
    libtest_mimic::run(&arguments, trials).exit();
}
