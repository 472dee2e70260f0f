//! A table that is full of live state, of any mix: what greedy new sources get, and what polite ones lose.

use common::limiter::{Costs, FixedWindow, Moves, Rate, SlidingLog, SlidingWindow, TokenBucket};
use common::rule::{OnFull, Rule, RuleSpan, Size, Subject};
use common::throttle::{Verdict, evaluate};
use common::time::TickScale;
use std::sync::atomic::Ordering::SeqCst;
use testbed::memory::{MASKS, Memory};

const SCALE: TickScale = TickScale::FINEST;
const SECOND: u64 = 1_000_000_000;
/// A table for a thousand sources, as the agent cuts it.
const SETS: u32 = 219;
const CELLS: u32 = 1 << 18;
const POLITE: u32 = 400;
const GREEDY: u32 = 40;

fn rate(count: u64, seconds: u64) -> Rate {
    Rate {
        count,
        per_nanoseconds: seconds * SECOND,
    }
}

fn bucket(rate: Rate, burst: u64) -> Rule {
    let bucket = TokenBucket::new(rate, burst, Costs::Single, SCALE);
    MASKS
        .with(bucket)
        .when_full(OnFull::Share, Moves::Anywhere, false)
}

fn source(number: u32) -> Subject {
    Subject {
        lo: u64::from(number.to_be()) << 32 | 0xffff_0000,
        is_ipv4: 1,
        size: Size::of_one(100),
        ..Subject::default()
    }
}

/// One limit, how many made-up sources there are, and how much each of them uses.
struct Mix {
    name: &'static str,
    rule: Rule,
    rate: Rate,
    burst: u64,
    ring: u32,
    sources: u32,
    each: u64,
    /// Made-up sources a second, each of which comes once, while the new ones send.
    flood: u64,
}

struct Outcome {
    /// The most that a greedy source passed, over what its limit allows.
    excess: f64,
    /// The share of the polite packets that was refused.
    lost: f64,
}

/// A step is a hundredth of what a burst takes to come back, at the most a second.
fn run(mix: &Mix) -> Outcome {
    let memory = Memory::with_cells(
        vec![mix.rule],
        SETS,
        if mix.rule.words() == 1 { 2 } else { 4 },
        mix.ring,
        CELLS,
    );
    let span = RuleSpan { first: 0, count: 1 };
    let pass = |number: u32| matches!(evaluate(&&memory, span, &source(number)), Verdict::Pass(_));
    for number in 0..mix.sources {
        for _ in 0..mix.each {
            pass(0x0100_0000 + number);
        }
    }
    let refill = mix.rate.per_nanoseconds as f64 / mix.rate.count as f64;
    let step = ((refill * mix.burst as f64 / 100.0) as u64).min(SECOND);
    let steps = 300u64;
    let (mut number, mut due) = (0x0800_0000u32, 0.0);
    let mut greedy = vec![0u64; GREEDY as usize];
    let (mut sent, mut heard) = (0u64, 0u64);
    for nth in 0..steps {
        memory.clock.fetch_add(step << SCALE.left, SeqCst);
        due += mix.flood as f64 * step as f64 / SECOND as f64;
        while due >= 1.0 {
            due -= 1.0;
            number += 1;
            pass(number);
        }
        for (bot, passed) in greedy.iter_mut().enumerate() {
            // Half of them at once, the others a little at a time.
            let packets = if bot % 2 == 0 {
                mix.burst.div_ceil(10)
            } else {
                mix.burst.div_ceil(30)
            };
            *passed += (0..packets)
                .filter(|_| pass(0x0a00_0000 + bot as u32))
                .count() as u64;
        }
        // Half of the limit: a third of the burst in steps, then half the rate.
        let polite = mix.burst / 3 + (nth as f64 * step as f64 / refill / 2.0) as u64;
        let before = if nth == 0 {
            0
        } else {
            mix.burst / 3 + ((nth - 1) as f64 * step as f64 / refill / 2.0) as u64
        };
        for source in 0..POLITE {
            for _ in before..polite {
                sent += 1;
                heard += u64::from(pass(0x0b00_0000 + source));
            }
        }
    }
    let time = (steps * step) as f64;
    let allowed = mix.burst as f64 + time / refill;
    Outcome {
        excess: greedy.iter().copied().max().unwrap_or(0) as f64 / allowed,
        lost: 1.0 - heard as f64 / sent as f64,
    }
}

/// Fails if a greedy source exceeds its limit by a tenth, or polite ones lose a hundredth.
fn holds(mix: &Mix) {
    let outcome = run(mix);
    let what = format!(
        "{}, {} sources that used {} each, {} a second",
        mix.name, mix.sources, mix.each, mix.flood
    );
    println!(
        "{what}: the greediest {:.3}, the polite lost {:.4}",
        outcome.excess, outcome.lost
    );
    assert!(
        outcome.excess <= 1.1,
        "{what}: a greedy source passed {:.3} of its limit",
        outcome.excess
    );
    assert!(
        outcome.lost < 0.01,
        "{what}: the polite lost {:.4}",
        outcome.lost
    );
}

fn of_bucket(name: &'static str, rate: Rate, burst: u64) {
    let rule = bucket(rate, burst);
    for (sources, each, flood) in [
        (4_000, 1, 500),
        (4_000, burst / 2, 0),
        (4_000, burst, 500),
        (8_000, burst, 0),
        (30_000, 1, 0),
    ] {
        holds(&Mix {
            name,
            rule,
            rate,
            burst,
            ring: 0,
            sources,
            each,
            flood,
        });
    }
}

#[test]
fn a_full_table_of_a_fast_bucket_keeps_its_limit_and_the_polite() {
    of_bucket("1000/s", rate(1_000, 1), 200);
}

#[test]
fn a_full_table_of_a_slow_bucket_keeps_its_limit_and_the_polite() {
    of_bucket("10/min", rate(10, 60), 10);
}

#[test]
fn a_full_table_of_a_bucket_of_a_month_keeps_its_limit_and_the_polite() {
    of_bucket("100/month", rate(100, 2_592_000), 100);
}

/// Fixed windows and logs have one cell a key: fewer busy sources fill a hundredth of them.
#[test]
fn a_full_table_of_windows_and_logs_keeps_its_limits_and_the_polite() {
    let limit = rate(12, 60);
    for (name, rule, moves, ring, sources) in [
        (
            "fixed window",
            MASKS.with(FixedWindow::new(limit, SCALE)),
            Moves::Nowhere,
            0,
            3_000,
        ),
        (
            "sliding window",
            MASKS.with(SlidingWindow::new(limit, SCALE)),
            Moves::Inherit,
            0,
            4_000,
        ),
        (
            "sliding log",
            MASKS.with(SlidingLog::new(limit, SCALE)),
            Moves::Nowhere,
            12,
            3_000,
        ),
    ] {
        let rule = rule.when_full(OnFull::Share, moves, false);
        for each in [1, 6, 12] {
            // A slot has the words of the widest state.
            holds(&Mix {
                name,
                rule,
                rate: limit,
                burst: 12,
                ring,
                sources,
                each,
                flood: 0,
            });
        }
    }
}

/// A source that gives way and comes back does not have its burst again: its state waits in its cells.
#[test]
fn busy_sources_that_take_turns_in_a_full_table_have_one_burst_each() {
    let limit = rate(1, 60);
    let memory = Memory::with_cells(vec![bucket(limit, 10)], 8, 2, 0, CELLS);
    let span = RuleSpan { first: 0, count: 1 };
    let mut passed = vec![0u32; 300];
    for turn in 0..20 {
        for (number, passed) in passed.iter_mut().enumerate() {
            for _ in 0..1 + turn % 3 {
                *passed += u32::from(matches!(
                    evaluate(&&memory, span, &source(number as u32)),
                    Verdict::Pass(_)
                ));
            }
        }
    }
    assert!(
        passed.iter().all(|passed| *passed <= 10),
        "{:?}",
        passed.iter().max()
    );
    assert!(passed.iter().sum::<u32>() > 2_950);
}
