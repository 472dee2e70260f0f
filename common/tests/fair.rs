//! Packets under fair rules, in memory: while they are off, at a level, and beside other rules.

use common::fair::{Level, MOST_FAIR, Wider, Words};
use common::limiter::{Costs, Rate, TokenBucket};
use common::rule::{Cost, KeyKind, OnFull, Rule, RuleSpan, Size, Subject};
use common::throttle::{Outcome, TableEvent, Verdict, evaluate};
use common::time::TickScale;
use std::sync::atomic::Ordering::SeqCst;
use testbed::memory::{MASKS, Memory};

const SECOND: u64 = 32_000_000_000;

/// A fair rule of a key of its own.
fn fair(group: u16) -> Rule {
    Rule {
        group,
        ..MASKS.fair(0)
    }
}

fn hard(group: u16, per_second: u64) -> Rule {
    let bucket = TokenBucket::new(
        Rate::per_second(per_second),
        per_second,
        Costs::Single,
        TickScale::FINEST,
    );
    Rule {
        group,
        ..MASKS.with(bucket)
    }
}

/// Puts a level in effect for two seconds.
fn set(memory: &mut Memory, rule: usize, level: Level) {
    let until = *memory.clock.get_mut() + 2 * SECOND;
    let words = Words {
        until,
        level,
        ..Words::default()
    };
    let rule = &mut memory.rules[rule];
    *rule = rule.with_fair_words(words);
}

fn level(per_second: u64, burst: u64) -> Level {
    Level::new(SECOND.div_ceil(per_second), burst * Level::parts(0), 0)
}

fn source(number: u32) -> Subject {
    Subject {
        lo: u64::from(number.to_be()) << 32 | 0xffff_0000,
        is_ipv4: 1,
        size: Size::of_one(100),
        ..Subject::default()
    }
}

fn verdict(memory: &Memory, subject: &Subject) -> Verdict {
    let span = RuleSpan {
        first: 0,
        count: memory.rules.len() as u32 | RuleSpan::FAIR,
    };
    evaluate(&memory, span, subject)
}

/// How many of a source's packets pass.
fn passed(memory: &Memory, number: u32, packets: u32) -> usize {
    let passes = |_: &u32| matches!(verdict(memory, &source(number)), Verdict::Pass(_));
    (0..packets).filter(passes).count()
}

#[test]
fn a_fair_rule_that_is_off_refuses_nothing_and_leaves_no_state() {
    let memory = Memory::new(vec![fair(0)], 16, 2, 0);
    assert_eq!(passed(&memory, 1, 1_000), 1_000);
    assert_eq!(memory.counted(Outcome::Passed), 1_000);
    assert!(memory.words.iter().all(|word| word.load(SeqCst) == 0));
}

#[test]
fn each_key_has_the_level_and_no_key_below_it_is_refused() {
    let mut memory = Memory::new(vec![fair(0)], 64, 2, 0);
    set(&mut memory, 0, level(10, 5));
    assert_eq!([1, 2, 3].map(|number| passed(&memory, number, 100)), [5; 3]);
    memory.clock.fetch_add(SECOND, SeqCst);
    assert_eq!([1, 4].map(|number| passed(&memory, number, 100)), [5, 5]);
    assert_eq!(
        (
            memory.counted(Outcome::Passed),
            memory.counted(Outcome::Throttled)
        ),
        (25, 475)
    );
    // One packet in 100 ms is what the level allows.
    for _ in 0..20 {
        memory.clock.fetch_add(SECOND / 10, SeqCst);
        set(&mut memory, 0, level(10, 5));
        assert_eq!(passed(&memory, 5, 1), 1);
    }
}

#[test]
fn a_level_that_nobody_renews_ends() {
    let mut memory = Memory::new(vec![hard(1, 100), fair(0)], 64, 2, 0);
    set(&mut memory, 1, level(10, 5));
    assert_eq!(passed(&memory, 1, 1_000), 5);
    memory.clock.fetch_add(2 * SECOND, SeqCst);
    // What is left is the other rule, which was not charged for what the level refused.
    assert_eq!(passed(&memory, 1, 1_000), 100);
}

#[test]
fn what_another_rule_refuses_is_not_charged_to_the_level() {
    let mut memory = Memory::new(vec![hard(1, 3), fair(0)], 64, 2, 0);
    set(&mut memory, 1, level(10, 5));
    let span_of_others = Verdict::Refuse(0);
    assert_eq!(passed(&memory, 1, 3), 3);
    for _ in 0..100 {
        assert_eq!(verdict(&memory, &source(1)), span_of_others);
    }
    memory.rules[0] = hard(2, 1_000);
    assert_eq!(
        passed(&memory, 1, 100),
        2,
        "what is left of the level's burst"
    );
    assert_eq!(verdict(&memory, &source(1)), Verdict::Refuse(1));
}

#[test]
fn several_fair_rules_charge_all_or_none() {
    let nth = |nth: u16| Rule {
        ring: nth,
        ..fair(nth)
    };
    let rules = (0..MOST_FAIR as u16).map(nth).collect();
    let mut memory = Memory::new(rules, 64, 2, 0);
    for (rule, burst) in [(0, 50), (1, 20), (3, 30)] {
        set(&mut memory, rule, level(10, burst));
    }
    assert_eq!(passed(&memory, 1, 100), 20);
    assert_eq!(verdict(&memory, &source(1)), Verdict::Refuse(1));
    // Those before the one that refused have given back what they were charged.
    set(&mut memory, 1, Level::OFF);
    assert_eq!(passed(&memory, 1, 100), 10);
    assert_eq!(verdict(&memory, &source(1)), Verdict::Refuse(3));
    set(&mut memory, 3, Level::OFF);
    assert_eq!(passed(&memory, 1, 100), 20);
}

/// Rules of two limits, of networks and of all sources, which are outside of the span: the rows after it.
fn with_wider_keys() -> Vec<Rule> {
    let second = Rule { ring: 1, ..fair(1) };
    let of_networks = |group: u16| Rule {
        mask_ipv4: 0xffff_ff00_u32.to_be(),
        ..fair(group)
    };
    let of_all = |group: u16| Rule {
        key: KeyKind::All as u8,
        ..fair(group)
    };
    vec![
        fair(0),
        second,
        of_networks(2),
        of_all(3),
        of_networks(4),
        of_all(5),
    ]
}

/// The level of a source, and the distances of wider keys that have one.
fn set_with(memory: &mut Memory, rule: usize, level: Level, wider: [u8; 2]) {
    let until = *memory.clock.get_mut() + 2 * SECOND;
    let words = Words {
        until,
        level,
        one_in: 0,
        wider: Wider::new(wider),
    };
    memory.rules[rule] = memory.rules[rule].with_fair_words(words);
}

#[test]
fn wider_keys_are_charged_while_the_row_of_the_source_names_them() {
    let mut memory = Memory::new(with_wider_keys(), 64, 2, 0);
    let span = RuleSpan {
        first: 0,
        count: 2 | RuleSpan::FAIR,
    };
    let sent = |memory: &Memory, number: u32| {
        let verdicts = (0..10).map(|_| evaluate(&memory, span, &source(number)));
        let mut refused_by = [0; 6];
        for verdict in verdicts {
            if let Verdict::Refuse(rule) = verdict {
                refused_by[rule as usize] += 1;
            }
        }
        refused_by
    };
    // A network is out of step with others by a part of a packet.
    for (rule, burst) in [(2, 12 + 1), (3, 14), (5, 100)] {
        set(&mut memory, rule, level(10, burst));
    }
    // A level that no row names is not read.
    set(&mut memory, 0, level(10, 7));
    assert_eq!(sent(&memory, 1), [3, 0, 0, 0, 0, 0]);
    // Seven of the first source, five of the next one of its network, and two of a third elsewhere: all sources have 14.
    set_with(&mut memory, 0, level(10, 7), [2, 3]);
    assert_eq!(sent(&memory, 0x0a00_0002), [3, 0, 0, 0, 0, 0]);
    assert_eq!(sent(&memory, 0x0a00_0003), [0, 0, 5, 0, 0, 0]);
    assert_eq!(sent(&memory, 0x0a00_0103), [0, 0, 0, 8, 0, 0]);
    // A refusal by a wider key charges none: five and two are left of sources and of their network.
    set_with(&mut memory, 0, level(10, 7), [2, 0]);
    assert_eq!(sent(&memory, 0x0a00_0103), [5, 0, 0, 0, 0, 0]);
    assert_eq!(sent(&memory, 0x0a00_0104), [0, 0, 5, 0, 0, 0]);
    set_with(&mut memory, 0, level(10, 7), [0, 0]);
    assert_eq!(sent(&memory, 0x0a00_0003), [8, 0, 0, 0, 0, 0]);
    // The second limit has its own.
    memory.clock.fetch_add(10 * SECOND, SeqCst);
    set(&mut memory, 0, Level::OFF);
    set(&mut memory, 5, level(10, 4));
    set_with(&mut memory, 1, level(10, 9), [0, 4]);
    assert_eq!(sent(&memory, 0x0a00_0003), [0, 0, 0, 0, 0, 6]);
    // Without an agent, all levels end.
    memory.clock.fetch_add(2 * SECOND, SeqCst);
    assert_eq!(sent(&memory, 0x0a00_0003), [0; 6]);
}

#[test]
fn what_a_wider_key_refuses_is_charged_by_no_other_limit() {
    let mut memory = Memory::new(with_wider_keys(), 64, 2, 0);
    let span = RuleSpan {
        first: 0,
        count: 2 | RuleSpan::FAIR,
    };
    let passes = |memory: &Memory| {
        let packets = (0..100).map(|_| evaluate(&memory, span, &source(1)));
        packets
            .filter(|verdict| matches!(verdict, Verdict::Pass(_)))
            .count()
    };
    for (rule, burst) in [(2, 50 + 1), (4, 20 + 1)] {
        set(&mut memory, rule, level(10, burst));
    }
    set_with(&mut memory, 0, level(10, 30), [2, 0]);
    set_with(&mut memory, 1, level(10, 60), [3, 0]);
    // The network of the second limit refuses, after three charges, which are taken back.
    assert_eq!(passes(&memory), 20);
    set_with(&mut memory, 1, Level::OFF, [0, 0]);
    assert_eq!(passes(&memory), 10);
}

#[test]
fn bytes_of_merged_buffers_are_charged_as_many() {
    let rule = Rule {
        cost: Cost::Bytes as u8,
        ..MASKS.fair(12)
    };
    let mut memory = Memory::new(vec![rule], 64, 2, 0);
    set(
        &mut memory,
        0,
        Level::new((SECOND << 12) / 100_000, 10_000, 12),
    );
    let buffer = Subject {
        size: Size {
            packets: 40,
            bytes: 60_000,
        },
        ..source(1)
    };
    assert!(matches!(verdict(&memory, &buffer), Verdict::Pass(_)));
    memory.clock.fetch_add(SECOND / 2, SeqCst);
    assert_eq!(passed(&memory, 1, 1), 0);
    memory.clock.fetch_add(SECOND / 20, SeqCst);
    assert_eq!(passed(&memory, 1, 100), 50);
}

#[test]
fn a_full_table_keeps_the_level() {
    let rule = fair(0).when_full(OnFull::Share, common::limiter::Moves::Anywhere, false);
    let mut memory = Memory::with_cells(vec![rule], 1, 2, 0, 1 << 10);
    set(&mut memory, 0, level(10, 5));
    // More keys than slots, all of them busy.
    for number in 0..200 {
        assert!(passed(&memory, number, 50) <= 5, "source {number}");
    }
    assert!(memory.noted(TableEvent::FullShared) > 0);
    // Nobody gets a second burst by coming again.
    let again: usize = (0..200).map(|number| passed(&memory, number, 50)).sum();
    assert!(again <= 20, "{again}");
}
