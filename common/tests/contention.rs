//! More threads than CPUs on one key, preempted between reading a state and changing it.

use std::sync::Barrier;

use common::limiter::{Rate, SlidingLog};
use common::rule::{RuleSpan, Size, Subject};
use common::throttle::{Outcome, TableEvent, Verdict, evaluate};
use common::time::TickScale;
use testbed::memory::{MASKS, Memory, of_every_algorithm};

const THREADS: u64 = 16;
const PACKETS: u64 = 60;
const ROUNDS: usize = 10;
const SCALE: TickScale = TickScale::FINEST;

/// All threads' packets at once, with the clock at a standstill: (passed, refused).
fn hammer(memory: &Memory) -> (u64, u64) {
    let subject = Subject {
        lo: 1 << 32 | 0xffff_0000,
        is_ipv4: 1,
        size: Size::of_one(100),
        ..Subject::default()
    };
    let span = RuleSpan {
        first: 0,
        count: memory.rules.len() as u32,
    };
    let barrier = Barrier::new(THREADS as usize);
    let passed = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    let pass =
                        |_: &u64| matches!(evaluate(&memory, span, &subject), Verdict::Pass(_));
                    (0..PACKETS).filter(pass).count() as u64
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
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
                assert!(
                    passed + contended >= conform,
                    "{name}: {passed} passed, {contended} contended of {conform}"
                );
                assert_eq!(
                    [Outcome::Passed, Outcome::Throttled, Outcome::Contended]
                        .map(|outcome| memory.counted(outcome)),
                    [passed, refused, contended],
                    "{name}"
                );
                if conform == all {
                    assert_eq!(refused, contended, "{name}: every refusal has its reason");
                }
            }
        }
    }
}

/// The same with several rules on the key: what a later rule loses is given back to those before it.
///
/// A packet is refused for one of two reasons. It lost a race, under one rule, where it is counted: then the rules before
/// that one had charged it, and a charge may stay until it decays (a log's place behind its head, a bucket's charge whose
/// refund lost [`common::limiter::CHARGE_TRIES`] races). Or a rule of N held N charges at that instant: of packets that
/// passed, and of packets that lost a race under a later rule. Each contended packet charges each rule once at the most, so
/// N <= passed + contended then. Hence passed + contended >= min(N, all) for any number of rules; and if N >= all, no rule
/// is ever full, and every refusal is contended.
#[test]
fn sixteen_threads_under_several_rules_refuse_nothing_that_conforms_in_silence() {
    let all = THREADS * PACKETS;
    for delay_one_in in [0, 1, 3].repeat(ROUNDS) {
        for limit in [100, 1_000] {
            for (name, mut first, ring) in of_every_algorithm(Rate::per_second(limit)) {
                let [mut second, mut third] = [of_every_algorithm(Rate::per_second(1_000))[0].1; 2];
                (first.position, first.opens_key, first.closes_key) = (1, 1, 0);
                (second.position, second.opens_key, second.closes_key) = (3, 0, 0);
                (third.position, third.opens_key, third.closes_key) = (4, 0, 1);
                let mut memory = Memory::new(vec![first, second, third], 16, 8, ring);
                memory.delay_one_in = delay_one_in;
                let (passed, refused) = hammer(&memory);
                let contended = memory.noted(TableEvent::Contended);
                println!(
                    "{name}, {limit}, and two buckets, one in {delay_one_in}: {passed} passed, {contended} contended"
                );
                assert_eq!(
                    [Outcome::Passed, Outcome::Throttled, Outcome::Contended]
                        .map(|outcome| memory.counted(outcome)),
                    [passed, refused, contended],
                    "{name}"
                );
                let conform = limit.min(all);
                assert!(passed <= conform, "{name}: {passed} of {conform} passed");
                assert!(
                    passed + contended >= conform,
                    "{name}: {passed} passed, {contended} contended of {conform}"
                );
                if conform == all {
                    assert_eq!(refused, contended, "{name}: every refusal has its reason");
                }
            }
        }
    }
}

/// A CPU that is preempted between reading the head of a log and the place it names, while another takes that place.
#[test]
fn a_place_that_another_cpu_took_meanwhile_refuses_nothing() {
    let log = SlidingLog::new(Rate::per_second(1_000), SCALE);
    for rules in [1, 2] {
        let mut rule = MASKS.with(log);
        (rule.position, rule.opens_key, rule.closes_key) = (1, 1, u8::from(rules == 1));
        let mut bucket = of_every_algorithm(Rate::per_second(1_000))[0].1;
        (bucket.position, bucket.opens_key, bucket.closes_key) = (3, 0, 1);
        let mut memory = Memory::new([rule, bucket][..rules].to_vec(), 16, 4, log.most);
        memory.delay_loads_one_in = 2;
        let (passed, refused) = hammer(&memory);
        let contended = memory.noted(TableEvent::Contended);
        println!("{rules} rules: {passed} passed, {refused} refused, {contended} contended");
        assert_eq!(refused, contended, "{rules} rules: {passed} passed");
    }
}
