//! More threads than CPUs on one key, preempted between reading a state and changing it.

mod memory;

use std::sync::Barrier;

use common::limiter::token_bucket::Costs;
use common::limiter::{FixedWindow, LeakyBucket, Rate, SlidingWindow, TokenBucket};
use common::rule::{Rule, RuleSpan, Size, Subject};
use common::throttle::{Outcome, TableEvent, Verdict, judge};
use common::time::TickScale;
use memory::Memory;

const THREADS: u64 = 16;
const PACKETS: u64 = 60;
const ROUNDS: usize = 10;
const SCALE: TickScale = TickScale::FINEST;
const MASKS: Rule = Rule { mask_hi: u64::MAX, mask_lo: u64::MAX, mask_ipv4: u32::MAX, ..Rule::EMPTY };

/// Every algorithm with states of one or two words.
fn of_every_algorithm(rate: Rate) -> [(&'static str, Rule, u32); 4] {
    [
        ("token-bucket", MASKS.with_token_bucket(TokenBucket::new(rate, rate.count, Costs::Single, SCALE)), 0),
        ("leaky-bucket", MASKS.with_leaky_bucket(LeakyBucket::new(rate, rate.count, Costs::Single, SCALE)), 0),
        ("fixed-window", MASKS.with_fixed_window(FixedWindow::new(rate, SCALE)), 0),
        ("sliding-window", MASKS.with_sliding_window(SlidingWindow::new(rate, SCALE)), 0),
    ]
}

/// All threads' packets at once, with the clock at a standstill: (passed, refused).
fn hammer(memory: &Memory) -> (u64, u64) {
    let subject = Subject { lo: 1 << 32 | 0xffff_0000, is_ipv4: 1, size: Size::of_one(100), ..Subject::default() };
    let span = RuleSpan { first: 0, count: memory.rules.len() as u32 };
    let barrier = Barrier::new(THREADS as usize);
    let passed = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    let pass = |_: &u64| matches!(judge(&memory, span, &subject), Verdict::Pass(_));
                    (0..PACKETS).filter(pass).count() as u64
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    (passed, THREADS * PACKETS - passed)
}

/// Whatever the limit, and however often they are preempted: what conforms passes, or its refusal is counted as contended.
#[test]
fn sixteen_threads_on_one_key_refuse_nothing_that_conforms_in_silence() {
    let all = THREADS * PACKETS;
    for delay_one_in in [0, 1, 2, 7].repeat(ROUNDS) {
        for limit in [100, 1_000] {
            for (name, rule, ring) in of_every_algorithm(Rate::per_second(limit)) {
                let mut memory = Memory::new(vec![rule], 16, 4, ring);
                memory.delay_one_in = delay_one_in;
                let (passed, refused) = hammer(&memory);
                let contended = memory.noted(TableEvent::Contended);
                println!(
                    "{name}, {limit}, one in {delay_one_in}: {passed} passed, {refused} refused, {contended} contended"
                );
                let conform = limit.min(all);
                assert!(passed <= conform, "{name}: {passed} of {conform} passed");
                assert!(passed + contended >= conform, "{name}: {passed} passed, {contended} contended of {conform}");
                assert_eq!(
                    (memory.counted(Outcome::Passed), memory.counted(Outcome::Throttled)),
                    (passed, refused),
                    "{name}"
                );
                if conform == all {
                    assert_eq!(refused, contended, "{name}: every refusal has its reason");
                }
            }
        }
    }
}

/// The same with two rules on the key: what the second loses is given back to the first.
#[test]
fn sixteen_threads_under_two_rules_refuse_nothing_that_conforms_in_silence() {
    let all = THREADS * PACKETS;
    for delay_one_in in [0, 1, 3].repeat(ROUNDS) {
        for (name, mut first, ring) in of_every_algorithm(Rate::per_second(1_000)) {
            let mut second = of_every_algorithm(Rate::per_second(1_000))[0].1;
            (first.position, first.opens_key, first.closes_key) = (1, 1, 0);
            (second.position, second.opens_key, second.closes_key) = (3, 0, 1);
            let mut memory = Memory::new(vec![first, second], 16, 4, ring);
            memory.delay_one_in = delay_one_in;
            let (passed, refused) = hammer(&memory);
            let contended = memory.noted(TableEvent::Contended);
            println!("{name} and a bucket, one in {delay_one_in}: {passed} passed, {contended} contended");
            assert_eq!((passed + refused, refused), (all, contended), "{name}");
        }
    }
}
