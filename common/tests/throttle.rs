//! Packets through the table and all their rules, in memory: alone against a model, and on two threads at once.

use common::limiter::{Costs, LeakyBucket, Rate, TokenBucket};
use common::rule::{Action, Cost, Enforcement, OnFull, Rule, RuleSpan, Size, Subject};
use common::table::LOCK;
use common::throttle::{Outcome, Passage, TableEvent, Verdict, evaluate};
use common::time::TickScale;
use proptest::prelude::*;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use testbed::memory::{MASKS, Memory, of_every_algorithm};

const SCALE: TickScale = TickScale::FINEST;

fn token_bucket(per_second: u64, burst: u64) -> Rule {
    MASKS.with(TokenBucket::new(
        Rate::per_second(per_second),
        burst,
        Costs::Single,
        SCALE,
    ))
}

fn source(number: u32) -> Subject {
    Subject {
        lo: u64::from(number.to_be()) << 32 | 0xffff_0000,
        is_ipv4: 1,
        size: Size::of_one(100),
        ..Subject::default()
    }
}

/// One key's rules side by side in one slot.
fn in_one_slot(rules: &mut [Rule]) {
    let last = rules.len() - 1;
    for (nth, rule) in rules.iter_mut().enumerate() {
        rule.position = nth as u8 + 1;
        rule.opens_key = u8::from(nth == 0);
        rule.closes_key = u8::from(nth == last);
    }
}

/// Each rule with a key of its own.
fn in_own_slots(rules: &mut [Rule]) {
    for (nth, rule) in rules.iter_mut().enumerate() {
        rule.group = nth as u16;
    }
}

fn pass(memory: &Memory, subject: &Subject) -> bool {
    let span = RuleSpan {
        first: 0,
        count: memory.rules.len() as u32,
    };
    matches!(evaluate(&memory, span, subject), Verdict::Pass(_))
}

#[test]
fn each_algorithm_passes_its_limit_and_then_refuses() {
    for (name, rule, ring) in of_every_algorithm(Rate::per_second(10)) {
        let memory = Memory::new(vec![rule], 16, 4, ring);
        let passed = (0..100).filter(|_| pass(&memory, &source(1))).count();
        assert_eq!(passed, 10, "{name}");
        assert_eq!(
            (
                memory.counted(Outcome::Passed),
                memory.counted(Outcome::Throttled)
            ),
            (10, 90),
            "{name}"
        );
        assert!(
            pass(&memory, &source(2)),
            "{name}: one source's limit is not another's"
        );
        memory.clock.fetch_add(3_000_000_000 << SCALE.left, SeqCst);
        assert!(pass(&memory, &source(1)), "{name}: the limit starts over");
    }
}

proptest! {
    /// Rows without a fast path take the slow path from the first packet on.
    #[test]
    fn the_fast_path_and_the_slow_path_give_the_same_verdicts(
        which in proptest::collection::vec(0usize..4, 1..6),
        enforcement in 0usize..3,
        packets in proptest::collection::vec((0u32..3, 0u64..300_000_000), 1..200),
    ) {
        let mut rules: Vec<Rule> =
            which.iter().map(|which| of_every_algorithm(Rate::per_second(5 + *which as u64))[*which].1).collect();
        let enforcement = [Enforcement::Enforce, Enforcement::Observe, Enforcement::Soft][enforcement];
        let last = rules.len() - 1;
        rules[last].enforcement = enforcement as u8;
        in_own_slots(&mut rules);
        let fast = Memory::new(rules.clone(), 64, 4, 0);
        let slow = Memory::of_rows(rules, 64, 4, 0);
        for (number, pause) in packets {
            for memory in [&fast, &slow] {
                memory.clock.fetch_add(pause << SCALE.left, SeqCst);
            }
            prop_assert_eq!(pass(&fast, &source(number)), pass(&slow, &source(number)));
        }
        for outcome in [Outcome::Passed, Outcome::Throttled, Outcome::WouldThrottle, Outcome::Over] {
            prop_assert_eq!(fast.counted(outcome), slow.counted(outcome));
        }
    }
}

#[test]
fn a_packet_is_charged_by_all_or_by_none() {
    for arrange in [in_one_slot as fn(&mut [Rule]), in_own_slots] {
        let mut rules = vec![
            token_bucket(1_000, 100),
            token_bucket(1_000, 10),
            token_bucket(1_000, 50),
        ];
        arrange(&mut rules);
        let memory = Memory::new(rules, 16, 4, 0);
        assert_eq!((0..200).filter(|_| pass(&memory, &source(1))).count(), 10);
        // Packets that the second refused were not charged to the others: without it, they have 90 and 40 left.
        let mut memory = memory;
        memory.rules[1].enforcement = Enforcement::Observe as u8;
        assert_eq!((0..200).filter(|_| pass(&memory, &source(1))).count(), 40);
        memory.rules[2].enforcement = Enforcement::Observe as u8;
        assert_eq!((0..200).filter(|_| pass(&memory, &source(1))).count(), 50);
    }
}

#[test]
fn a_soft_limit_passes_its_share_above_and_counts_it_apart() {
    let mut rules = vec![token_bucket(100, 100), token_bucket(110, 110)];
    rules[0].enforcement = Enforcement::Soft as u8;
    in_one_slot(&mut rules);
    let memory = Memory::new(rules, 16, 4, 0);
    assert_eq!(
        (0..1_000).filter(|_| pass(&memory, &source(1))).count(),
        110
    );
    assert_eq!(memory.counted(Outcome::Over), 10);
    assert_eq!(memory.counted(Outcome::Throttled), 890);
}

#[test]
fn an_elastic_limit_gives_more_only_while_there_is_room() {
    let mut rules = vec![token_bucket(100, 100), token_bucket(300, 300)];
    rules[0].enforcement = Enforcement::Elastic as u8;
    in_one_slot(&mut rules);
    let memory = Memory::new(rules, 16, 4, 0);
    assert_eq!(
        (0..1_000).filter(|_| pass(&memory, &source(1))).count(),
        100
    );
    let now = memory.clock.load(SeqCst);
    memory.room_until.store(now, SeqCst);
    assert_eq!((0..1_000).filter(|_| pass(&memory, &source(1))).count(), 0);
    memory.room_until.store(now + 1, SeqCst);
    assert_eq!(
        (0..1_000).filter(|_| pass(&memory, &source(1))).count(),
        200
    );
    assert_eq!(memory.counted(Outcome::Over), 200);
    // Nobody has renewed it.
    memory.clock.store(now + 1, SeqCst);
    assert_eq!((0..1_000).filter(|_| pass(&memory, &source(1))).count(), 0);
}

#[test]
fn a_limit_that_marks_refuses_nothing_and_charges_only_what_conforms() {
    for count in [1, 2] {
        let mut rules = vec![token_bucket(1, 10), token_bucket(1, 1_000)];
        rules.truncate(count);
        rules[0].enforcement = Enforcement::Mark as u8;
        in_one_slot(&mut rules);
        let memory = Memory::new(rules, 16, 4, 0);
        let span = RuleSpan {
            first: 0,
            count: count as u32,
        };
        for nth in 0..100 {
            let marked_by = if nth < 10 { Passage::UNMARKED } else { 0 };
            assert_eq!(
                evaluate(&&memory, span, &source(1)),
                Verdict::Pass(Passage {
                    marked_by,
                    departure: Passage::AT_ONCE
                })
            );
        }
        assert_eq!(
            (
                memory.counted(Outcome::Passed),
                memory.counted(Outcome::Over)
            ),
            (100, 90)
        );
    }
}

#[test]
fn a_limit_that_shapes_spaces_packets_and_refuses_what_the_queue_does_not_hold() {
    for count in [1, 2] {
        let mut rules = vec![MASKS.with(LeakyBucket::new(
            Rate::per_second(10),
            5,
            Costs::Single,
            SCALE,
        ))];
        rules.resize(count, token_bucket(1_000, 1_000));
        rules[0].action = Action::Shape as u8;
        in_one_slot(&mut rules);
        let memory = Memory::new(rules, 16, 4, 0);
        let span = RuleSpan {
            first: 0,
            count: count as u32,
        };
        for turn in 0..5 {
            let departure = memory.clock.load(SeqCst) + ((turn * 100_000_000) << SCALE.left);
            let passage = Passage {
                marked_by: Passage::UNMARKED,
                departure,
            };
            assert_eq!(evaluate(&&memory, span, &source(1)), Verdict::Pass(passage));
        }
        assert_eq!(evaluate(&&memory, span, &source(1)), Verdict::Refuse(0));
    }
}

#[test]
fn packets_that_were_put_together_cost_what_they_were() {
    let large = Subject {
        size: Size {
            packets: 4,
            bytes: 6_000,
        },
        ..source(1)
    };
    for (unit, most, passes) in [
        (Cost::Packets, 10, 2),
        (Cost::Bytes, 13_000, 2),
        (Cost::One, 3, 3),
    ] {
        let mut rule = token_bucket(1, most);
        rule.cost = unit as u8;
        let memory = Memory::new(vec![rule], 16, 2, 0);
        assert_eq!(
            (0..10).filter(|_| pass(&memory, &large)).count(),
            passes,
            "{unit:?}"
        );
    }
}

#[test]
fn a_limit_on_observe_refuses_nothing_with_a_full_table() {
    for enforcement in [Enforcement::Observe, Enforcement::Mark] {
        let mut rule = Rule {
            on_full: OnFull::Throttle as u8,
            ..token_bucket(1, 10)
        };
        rule.enforcement = enforcement as u8;
        let memory = Memory::new(vec![rule], 1, 2, 0);
        for number in 0..100 {
            assert!((0..20).all(|_| pass(&memory, &source(number))));
        }
    }
}

#[test]
fn a_flood_of_new_sources_evicts_no_busier_source() {
    // 64 slots; ten sources that have used five of ten, then a hundred thousand that come once.
    let memory = Memory::new(vec![token_bucket(1, 10)], 16, 2, 0);
    for number in 0..10 {
        assert_eq!((0..5).filter(|_| pass(&memory, &source(number))).count(), 5);
    }
    for number in 1_000..101_000 {
        assert!(pass(&memory, &source(number)));
        memory.clock.fetch_add(1_000 << SCALE.left, SeqCst);
    }
    // A tenth of a second has passed.
    for number in 0..10 {
        assert_eq!(
            (0..20).filter(|_| pass(&memory, &source(number))).count(),
            5,
            "source {number} was forgotten"
        );
    }
    assert!(memory.noted(TableEvent::Evicted) > 0);
}

/// Of 100,000 keys, 830 find their home set full: the tail of the Poisson distribution with mean 4 beyond 8. Of these, one
/// in twenty finds its alternate set full: the part of that distribution from 8 on.
#[test]
fn of_a_table_that_is_half_full_one_key_in_a_thousand_or_fewer_finds_no_room() {
    let memory = Memory::new(vec![token_bucket(1, 10)], 25_000, 2, 0);
    // Two packets each, so that nobody who comes later is as busy as those who have a slot.
    assert!(
        (0..100_000).all(|number| pass(&memory, &source(number)) && pass(&memory, &source(number)))
    );
    let without = memory.noted(TableEvent::FullPassed) / 2;
    assert!((10..100).contains(&without), "{without}");
    assert_eq!(memory.noted(TableEvent::Evicted), 0);
    // Each of the others has its whole allowance, and no more.
    let passed: usize = (0..100_000)
        .map(|number| (0..20).filter(|_| pass(&memory, &source(number))).count())
        .sum();
    assert_eq!(passed as u64, 8 * (100_000 - without) + 20 * without);
}

/// In a block of sets that is full but for a few slots, keys of all algorithms and widths of slots pass their limit, by the
/// home set and by the alternate one.
#[test]
fn keys_in_alternate_sets_pass_their_limit() {
    for slot_words in [4, 8] {
        for (name, rule, ring) in of_every_algorithm(Rate::per_second(10)) {
            // The first word of a slot's rings counts refusals.
            let memory = Memory::new(vec![Rule { ring: 1, ..rule }], 8, slot_words, ring + 1);
            let slots = memory.shape.capacity() as u32;
            // Two packets each, so that nobody who comes later is as busy as those who have a slot.
            for number in 0..slots {
                assert!(pass(&memory, &source(number)) && pass(&memory, &source(number)));
            }
            let full = memory.noted(TableEvent::FullPassed) / 2;
            assert!(
                full < u64::from(slots) / 4,
                "{name}: {full} of {slots} keys found no room"
            );
            let passed: usize = (0..slots)
                .map(|number| (0..20).filter(|_| pass(&memory, &source(number))).count())
                .sum();
            assert_eq!(
                passed as u64,
                8 * (u64::from(slots) - full) + 20 * full,
                "{name}, slots of {slot_words} words"
            );
        }
    }
}

/// Sets whose keys have left their alternate sets are no longer marked, so that new keys read one set.
#[test]
fn marks_of_alternate_sets_go_with_their_keys() {
    let memory = Memory::new(vec![token_bucket(1, 10)], 2_000, 2, 0);
    let marks = || {
        let of_set = |set: usize| {
            (1..8)
                .filter(|slot| memory.words[set * 16 + slot * 2].load(SeqCst) & LOCK != 0)
                .count()
        };
        (0..2_000).map(of_set).sum::<usize>()
    };
    let generation = |nth: u32| {
        assert!((0..8_000).all(|number| pass(&memory, &source(nth << 16 | number))));
        memory.clock.fetch_add(60_000_000_000 << SCALE.left, SeqCst);
        marks()
    };
    let first = generation(1);
    assert!(first > 0);
    let last = (2..40).map(generation).last().unwrap();
    // If they stayed, forty generations would leave forty times as many.
    assert!(
        last < 8 * first,
        "{first} marks after one generation of keys, {last} after forty"
    );
}

#[test]
fn each_overflow_policy_does_what_it_says_and_is_counted() {
    for (on_full, event) in [
        (OnFull::Pass, TableEvent::FullPassed),
        (OnFull::Throttle, TableEvent::FullThrottled),
        (OnFull::Share, TableEvent::FullShared),
    ] {
        // One set of eight slots, taken by sources that are busier than any new one.
        let mut rule = token_bucket(1, 10);
        rule.on_full = on_full as u8;
        let memory = Memory::new(vec![rule], 1, 2, 0);
        for number in 0..8 {
            assert_eq!((0..9).filter(|_| pass(&memory, &source(number))).count(), 9);
        }
        let passed = (100..200)
            .filter(|number| pass(&memory, &source(*number)))
            .count();
        match on_full {
            OnFull::Pass => assert_eq!(passed, 100),
            OnFull::Throttle => assert_eq!(passed, 0),
            // Each is counted in cells of its own, as good as.
            OnFull::Share => assert_eq!(passed, 100),
        }
        assert_eq!(memory.noted(event), 100);
        if on_full == OnFull::Share {
            assert_eq!((0..20).filter(|_| pass(&memory, &source(100))).count(), 9);
        }
    }
}

/// Two threads, one key, a clock that stands still: exactly the limit passes, again and again, but for refusals that are
/// counted as contended.
#[test]
fn two_cpus_on_one_key_pass_exactly_the_limit() {
    for (name, rule, ring) in of_every_algorithm(Rate::per_second(50)) {
        let memory = Memory::new(vec![rule], 16, 4, ring);
        let rounds = 2_000;
        let barrier = Barrier::new(2);
        std::thread::scope(|scope| {
            let hammer = |leads: bool| {
                let (memory, barrier) = (&memory, &barrier);
                move || {
                    for round in 0..rounds {
                        barrier.wait();
                        for _ in 0..60 {
                            pass(memory, &source(1));
                        }
                        barrier.wait();
                        if leads {
                            let expected = 50 * (round + 1);
                            let passed = memory.counted(Outcome::Passed);
                            assert!(
                                passed <= expected,
                                "{name}: {passed} passed of {expected} in round {round}"
                            );
                            let contended = memory.noted(TableEvent::Contended);
                            assert!(
                                passed + contended >= expected,
                                "{name}: {passed} passed, {contended} contended of {expected}"
                            );
                            memory.clock.fetch_add(5_000_000_000 << SCALE.left, SeqCst);
                        }
                    }
                }
            };
            scope.spawn(hammer(true));
            scope.spawn(hammer(false));
        });
    }
}

/// Two threads meet a new source at the same instant: never two buckets for it.
#[test]
fn two_cpus_that_meet_a_new_source_pass_one_burst() {
    let memory = Memory::new(vec![token_bucket(1, 1)], 64, 2, 0);
    let rounds = 100_000;
    let barrier = Barrier::new(2);
    let passed = [const { AtomicU64::new(0) }; 2];
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (memory, barrier, passed) = (&memory, &barrier, &passed);
            scope.spawn(move || {
                for round in 0..rounds {
                    barrier.wait();
                    passed[thread].store(u64::from(pass(memory, &source(round))), SeqCst);
                    barrier.wait();
                    if thread == 0 {
                        let both = passed[0].load(SeqCst) + passed[1].load(SeqCst);
                        assert_eq!(both, 1, "round {round}");
                        memory.clock.fetch_add(100_000_000 << SCALE.left, SeqCst);
                    }
                }
            });
        }
    });
}

/// The same in a crowded table, where many keys are in their alternate sets, and slots become free meanwhile: never two
/// buckets for a key, whichever of its sets has room at which instant.
#[test]
fn two_cpus_that_meet_a_new_source_in_a_crowded_table_pass_one_burst() {
    let mut in_alternate = 0;
    for table in 0..20u32 {
        // 64 slots, of which 54 are used for the whole test.
        let memory = Memory::new(vec![token_bucket(1, 1), token_bucket(1, 1_000)], 8, 2, 0);
        for number in 0..54 {
            let stays = RuleSpan { first: 1, count: 1 };
            for _ in 0..1_000 {
                evaluate(&&memory, stays, &source(table << 16 | number));
            }
        }
        let spared = || memory.noted(TableEvent::FullPassed) + memory.noted(TableEvent::Contended);
        let once = RuleSpan { first: 0, count: 1 };
        let barrier = Barrier::new(2);
        let passed = [const { AtomicU64::new(0) }; 2];
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (memory, barrier, passed, spared) = (&memory, &barrier, &passed, &spared);
                scope.spawn(move || {
                    for round in 0..700 {
                        let before = spared();
                        barrier.wait();
                        let new = source(1 << 24 | table << 16 | round);
                        let verdict = evaluate(&memory, once, &new);
                        passed[thread]
                            .store(u64::from(matches!(verdict, Verdict::Pass(_))), SeqCst);
                        barrier.wait();
                        if thread == 0 && spared() == before {
                            let both = passed[0].load(SeqCst) + passed[1].load(SeqCst);
                            assert_eq!(both, 1, "table {table}, round {round}");
                        }
                        // A third of a second: three new keys are in use at a time, and the others' slots are free.
                        if thread == 0 {
                            memory.clock.fetch_add(333_000_000 << SCALE.left, SeqCst);
                        }
                        barrier.wait();
                    }
                });
            }
        });
        let slots = 0..memory.shape.capacity() as usize;
        let heads = slots.map(|slot| memory.words[slot * 2].load(SeqCst));
        in_alternate += heads
            .filter(|head| head >> 33 != 0 && head >> 32 & 1 == 0)
            .count();
    }
    assert!(
        in_alternate > 100,
        "{in_alternate} keys were in their alternate sets"
    );
}

/// Two threads, three tiers in one slot or in three: the tightest is used up exactly, the others not by more.
#[test]
fn tiers_are_charged_by_all_or_none_on_two_cpus() {
    for arrange in [in_one_slot as fn(&mut [Rule]), in_own_slots] {
        for round in 0..300 {
            let mut rules = vec![
                token_bucket(1, 1_000),
                token_bucket(1, 500),
                token_bucket(1, 800),
            ];
            arrange(&mut rules);
            let mut memory = Memory::new(rules, 16, 4, 0);
            let hammer = |memory: &Memory| (0..400).filter(|_| pass(memory, &source(1))).count();
            let passed = std::thread::scope(|scope| {
                let other = scope.spawn(|| hammer(&memory));
                hammer(&memory) + other.join().unwrap()
            });
            // A thread that is put to sleep while it holds the set makes the other refuse, which is counted.
            let contended = memory.noted(TableEvent::Contended) as usize;
            assert!(
                passed <= 500 && passed + contended >= 500,
                "{passed} passed, {contended} contended in round {round}"
            );
            // The others' remaining allowance equals what did not pass: refused packets were not charged.
            memory.rules[1].enforcement = Enforcement::Observe as u8;
            let left = (0..2_000).filter(|_| pass(&memory, &source(1))).count();
            assert_eq!(passed + left, 800, "round {round}");
        }
    }
}

proptest! {
    /// Any number of sources in a table with room for them: each gets what it would get alone.
    #[test]
    fn sources_do_not_disturb_each_other(arrivals in prop::collection::vec((0u32..40, 0u64..200_000_000), 1..500)) {
        let memory = Memory::new(vec![token_bucket(2, 3)], 256, 2, 0);
        let alone: Vec<Memory> = (0..40).map(|_| Memory::new(vec![token_bucket(2, 3)], 1, 2, 0)).collect();
        for (number, gap) in arrivals {
            memory.clock.fetch_add(gap << SCALE.left, SeqCst);
            let alone = &alone[number as usize];
            alone.clock.store(memory.clock.load(SeqCst), SeqCst);
            prop_assert_eq!(pass(&memory, &source(number)), pass(alone, &source(number)));
        }
    }
}
