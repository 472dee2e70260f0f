//! Windows that a fleet shares: the units passed in each, by the common clock.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::time::TickScale;

use super::{Asker, Host, KEYS, LIMIT, Spread};
use crate::wait::PATIENCE;

/// Each is a separate limit; the same hosts share all of them.
pub const ALGORITHMS: [&str; 3] = ["fixed-window", "sliding-window", "sliding-log"];
/// Units in a window.
pub const COUNT: u64 = 1_000;
/// The demand as a multiple of the limit.
const TIMES: f64 = 5.0;
/// Agents know the store's clock to some milliseconds: decisions this close to the end of a window may belong to
/// either.
const CLOCK_ERROR: Duration = Duration::from_millis(5);

/// The units passed between two readings of the clock.
#[derive(Clone, Copy, Debug)]
struct Batch {
    asked: Duration,
    answered: Duration,
    passed: u64,
}

/// The result for a limit.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub algorithm: &'static str,
    pub seconds: f64,
    pub wanted: u64,
    pub passed: u64,
    /// The most units that certainly passed within one window; for a log, within any span of that length.
    pub most: u64,
    /// The least units in a window with demand from its start to its end, if there was one.
    pub least: Option<u64>,
    /// How often the others removed a host because it did not publish for a lease.
    pub gone: usize,
}

/// Measures agents on a store on this machine, with a demand of five times the limit for each of three limits.
pub fn measure(
    url: &str,
    hosts: usize,
    spread: Spread,
    window: Duration,
    time: Duration,
) -> Vec<Outcome> {
    measure_during(url, hosts, spread, window, time, |_| {})
}

/// The same while something happens to the hosts or their store.
pub fn measure_during(
    url: &str,
    hosts: usize,
    spread: Spread,
    window: Duration,
    time: Duration,
    events: impl FnOnce(&[Host]),
) -> Vec<Outcome> {
    let cluster = format!("store = {url:?}\nname = \"windows-{hosts}-{spread:?}\"");
    let terms = |algorithm: &str| {
        format!(
            "{KEYS}\nrate = \"{COUNT}/{}s\"\nalgorithm = {algorithm:?}",
            window.as_secs()
        )
    };
    let more = |algorithm: &str| {
        format!(
            "[[limit]]\nname = {algorithm:?}\nscope = \"request\"\nkey = [\"service\"]\n{}\n",
            terms(algorithm)
        )
    };
    let [first, rest @ ..] = ALGORITHMS;
    let limit = format!("{}\n{}", terms(first), rest.map(more).concat());
    let fleet: Vec<Host> = (0..hosts)
        .map(|nth| Host::start(&format!("host-{nth}"), &cluster, &limit))
        .collect();
    for host in &fleet {
        host.until(PATIENCE, "joined", |cluster| {
            cluster["hosts"] == hosts && cluster["limits"][0]["share_from"] == "keys"
        });
    }
    let start = Instant::now();
    let driven: Vec<(u64, Vec<[Batch; 3]>)> = thread::scope(|scope| {
        let drive = |(nth, host): (usize, &Host)| {
            let mut asker = host.connect();
            scope.spawn(move || {
                drive(
                    &mut asker,
                    (start, time),
                    |after| spread.part(nth, hosts, after),
                    window,
                )
            })
        };
        let drivers: Vec<_> = fleet.iter().enumerate().map(drive).collect();
        events(&fleet);
        drivers
            .into_iter()
            .map(|driver| driver.join().unwrap())
            .collect()
    });
    let (seconds, gone) = (
        start.elapsed().as_secs_f64(),
        fleet.iter().map(Host::times_gone).sum(),
    );
    let wanted = driven.iter().map(|(wanted, _)| wanted).sum();
    let of = |(nth, algorithm): (usize, &'static str)| {
        let mut batches: Vec<Batch> = driven
            .iter()
            .flat_map(|(_, batches)| batches.iter().map(|batch| batch[nth]))
            .collect();
        batches.sort_by_key(|batch| batch.answered);
        let (most, least) = if algorithm == "sliding-log" {
            (most_in_any(&batches, window), None)
        } else {
            in_aligned(&batches, window, algorithm == "sliding-window")
        };
        let passed = batches.iter().map(|batch| batch.passed).sum();
        Outcome {
            algorithm,
            seconds,
            wanted,
            passed,
            most,
            least,
            gone,
        }
    };
    ALGORITHMS.into_iter().enumerate().map(of).collect()
}

/// (the demand for each, the passed units).
fn drive(
    asker: &mut Asker,
    (start, time): (Instant, Duration),
    part: impl Fn(Duration) -> f64,
    window: Duration,
) -> (u64, Vec<[Batch; 3]>) {
    let demand = TIMES * COUNT as f64 / window.as_secs_f64();
    let (mut due, mut asked, mut last) = (0.0, 0, Duration::ZERO);
    let mut batches = Vec::new();
    while last < time {
        thread::sleep(Duration::from_millis(10));
        let now = start.elapsed();
        due += demand * part(now) * (now - last).as_secs_f64();
        last = now;
        while asked < due as u64 {
            let count = (due as u64 - asked).min(30);
            asked += count;
            let names = [LIMIT, ALGORITHMS[1], ALGORITHMS[2]];
            let questions = names
                .into_iter()
                .flat_map(|name| (0..count).map(|_| Asker::question_to(name, "one")));
            let before = wall_clock();
            let allowed = asker.ask_all(questions);
            let after = wall_clock();
            let mut parts = allowed.chunks(count as usize);
            batches.push([(); 3].map(|()| {
                let passed = parts
                    .next()
                    .unwrap()
                    .iter()
                    .filter(|allowed| **allowed)
                    .count() as u64;
                Batch {
                    asked: before,
                    answered: after,
                    passed,
                }
            }));
        }
    }
    (asked, batches)
}

/// The store's clock: it runs on this machine.
fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// The most units in a window aligned to multiples of its length, by the clock or its ticks, and the least in one that
/// was fully observed.
fn in_aligned(batches: &[Batch], window: Duration, by_ticks: bool) -> (u64, Option<u64>) {
    let (Some(first), Some(last)) = (batches.first(), batches.last()) else {
        return (0, None);
    };
    let length = window.as_nanos() as u64;
    let scale = TickScale::for_longest_life(2 * window.as_nanos());
    let nth = |at: Duration| {
        let at = at.as_nanos() as u64;
        if by_ticks {
            scale.ticks(at) / scale.ticks(length)
        } else {
            at / length
        }
    };
    let mut sums = std::collections::BTreeMap::new();
    for batch in batches {
        let (begin, end) = (
            nth(batch.asked.saturating_sub(CLOCK_ERROR)),
            nth(batch.answered + CLOCK_ERROR),
        );
        if begin == end {
            *sums.entry(begin).or_insert(0) += batch.passed;
        }
    }
    let (begun, ended) = (nth(first.asked), nth(last.answered));
    let whole = sums
        .iter()
        .filter(|(window, _)| **window > begun && **window < ended)
        .map(|(_, sum)| *sum);
    (sums.values().copied().max().unwrap_or(0), whole.min())
}

/// The most in any span of this length.
fn most_in_any(batches: &[Batch], span: Duration) -> u64 {
    let from = |first: &Batch| {
        let within = |batch: &&Batch| {
            batch.asked >= first.asked && batch.answered + CLOCK_ERROR <= first.asked + span
        };
        batches
            .iter()
            .filter(within)
            .map(|batch| batch.passed)
            .sum()
    };
    batches.iter().map(from).max().unwrap_or(0)
}
