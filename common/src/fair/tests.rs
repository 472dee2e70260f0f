use proptest::prelude::*;

use super::*;
use crate::rule::Rule;

const NOW: Ticks = 1 << 50;
const SECOND: Ticks = 32_000_000_000;

/// The words of a level of `rate` units a second, alive at [`NOW`].
fn words(rate: u64, burst: u64) -> Words {
    Words {
        until: NOW + 2 * SECOND,
        level: at(rate, burst),
        ..Words::default()
    }
}

/// A level of `rate` units a second.
fn at(rate: u64, burst: u64) -> Level {
    Level::new(SECOND.div_ceil(rate), burst * Level::parts(0), 0)
}

/// Every order in which this many steps of one side and of another can happen: which side makes each step.
fn interleavings(left: usize, right: usize) -> Vec<Vec<bool>> {
    if left == 0 || right == 0 {
        return vec![std::iter::repeat_n(left > 0, left + right).collect()];
    }
    let with = |side: bool, rest: Vec<Vec<bool>>| {
        rest.into_iter()
            .map(move |rest| [vec![side], rest].concat())
    };
    with(true, interleavings(left - 1, right))
        .chain(with(false, interleavings(left, right - 1)))
        .collect()
}

/// The words that an evaluation reads while a row is rewritten: `order` has its loads (`true`) among the stores.
fn torn(old: Words, new: Words, order: &[bool]) -> Words {
    use core::cell::{Cell, RefCell};
    let place = |word: Word| word as usize;
    let row = RefCell::new([0u64; 3]);
    for (word, value) in old.stores(Words::default()) {
        row.borrow_mut()[place(word)] = value;
    }
    let (mut stores, left) = (new.stores(old).into_iter(), Cell::new(0));
    // The stores before each load.
    let mut before = vec![0];
    for is_load in order {
        match is_load {
            true => before.push(0),
            false => *before.last_mut().unwrap() += 1,
        }
    }
    let before = RefCell::new(before.into_iter());
    let stores = RefCell::new(&mut stores);
    Words::read(|word| {
        for _ in 0..before.borrow_mut().next().unwrap_or(0) {
            let (word, value) = stores.borrow_mut().next().unwrap();
            row.borrow_mut()[place(word)] = value;
            left.set(left.get() + 1);
        }
        row.borrow()[place(word)]
    })
}

#[test]
fn an_evaluation_amid_a_rewriting_is_by_one_of_both_levels() {
    let off = Words {
        level: Level::OFF,
        ..words(1, 1)
    };
    let expired = |words: Words| Words {
        until: NOW - SECOND,
        ..words
    };
    let levels = [
        words(1_000, 50),
        words(100, 50),
        words(100, 5),
        words(3, 2),
        words(1_000_000, 50),
        off,
    ];
    let all: Vec<Words> = levels
        .into_iter()
        .flat_map(|words| [words, expired(words)])
        .collect();
    let orders = interleavings(4, 3);
    assert_eq!(orders.len(), 35);
    // Full, with some debt, and with as much as any of the levels allows.
    let states: Vec<u64> = (0..60).map(|nth| NOW + nth * nth * SECOND / 900).collect();
    let passes = |words: Words, state: u64, cost: u64| {
        let level = words.level_at(NOW);
        level.is_off() || level.bucket(0).decide(state, NOW, cost) != Decision::Refuse
    };
    // The row may have expired; what replaces it has not.
    for (old, new) in all
        .iter()
        .flat_map(|old| levels.iter().map(move |new| (*old, *new)))
    {
        for order in &orders {
            let read = torn(old, new, order);
            for (state, cost) in states.iter().flat_map(|state| [(*state, 1), (*state, 44)]) {
                let possible = [old, new].map(|words| passes(words, state, cost));
                let found = passes(read, state, cost);
                assert!(
                    possible.contains(&found),
                    "{old:?} to {new:?} by {order:?}: {read:?} gives {found} where both give {possible:?}"
                );
            }
        }
    }
}

/// The levels of wider keys come into effect before a higher level of sources, and end after it.
#[test]
fn a_level_is_never_read_without_the_wider_keys_of_its_time() {
    let with = |rate, wider: [u8; 2]| Words {
        wider: Wider::new(wider),
        ..words(rate, 5)
    };
    let (few, many) = (with(2, [0, 0]), with(30, [4, 0]));
    let (more, all) = (with(60, [4, 0]), with(60, [4, 5]));
    for (old, new) in [
        (few, many),
        (many, few),
        (many, more),
        (more, all),
        (all, few),
    ] {
        for order in interleavings(4, 3) {
            let read = torn(old, new, &order);
            let is_as = |words: Words| {
                let has_all = words.wider.to_bits() & !read.wider.to_bits() == 0;
                read.level == words.level && has_all
            };
            assert!(
                is_as(old) || is_as(new),
                "{old:?} to {new:?} by {order:?}: {read:?}"
            );
        }
    }
}

#[test]
fn the_words_of_a_row_have_the_distances_of_wider_keys() {
    let words = Words {
        one_in: u32::MAX,
        wider: Wider::new([255, 7]),
        ..words(10, 5)
    };
    let row = Rule::EMPTY.fair(0).with_fair_words(words);
    assert_eq!(row.fair_words(), words);
    let wider = words.wider;
    assert_eq!([0, 1].map(|nth| wider.distance(nth)), [255, 7]);
    let none_from = |wider: Wider| [0, 1, 2].map(|nth| wider.are_none_from(nth));
    assert_eq!(none_from(wider), [false, false, true]);
    assert_eq!(none_from(Wider::new([3, 0])), [false, true, true]);
    assert_eq!(none_from(Wider::NONE), [true; 3]);
    // One that only samples is busy; one whose level is off has none of wider keys.
    let load = |row: &Rule, word: Word| match word {
        Word::Until => row.tolerance,
        Word::Level => row.interval,
        Word::Rest => row.most,
    };
    let is_idle = |words: Words| {
        let row = Rule::EMPTY.fair(0).with_fair_words(words);
        Words::are_idle_in(|word| load(&row, word))
    };
    let level = Level::OFF;
    assert!(!is_idle(words) && !is_idle(Words { level, ..words }));
    let one_in = 0;
    assert!(is_idle(Words {
        level,
        one_in,
        ..words
    }));
}

#[test]
fn a_level_ends_with_its_deadline() {
    let words = Words {
        one_in: 1,
        ..words(10, 5)
    };
    for (now, is_alive) in [
        (words.until - 1, true),
        (words.until, false),
        (words.until + SECOND, false),
    ] {
        assert_eq!(!words.level_at(now).is_off(), is_alive);
        assert_eq!(words.sample_has(0, now), is_alive);
    }
    assert!(Words::default().are_idle() && !words.are_idle());
    let sampling = Words {
        level: Level::OFF,
        ..words
    };
    assert!(!sampling.are_idle() && sampling.level_at(NOW).is_off());
}

#[test]
fn one_in_so_many_packets_is_sampled() {
    for one_in in [1, 7, 4_096] {
        let words = Words {
            one_in,
            ..words(1, 1)
        };
        let spaced = (0..1u64 << 20).map(|nth| (nth << 12) as u32);
        let count = spaced
            .filter(|random| words.sample_has(*random, NOW))
            .count();
        assert_eq!(
            count as u64,
            (1u64 << 20).div_ceil(one_in.into()),
            "1 in {one_in}"
        );
    }
}

#[test]
fn merged_packets_pass_a_full_bucket_and_are_charged_as_many() {
    let bucket = words(10, 2).level.bucket(0);
    let Decision::Pass(state) = bucket.decide(0, NOW, 44) else {
        panic!("44 merged packets never pass a burst of 2");
    };
    assert_eq!(state, NOW + bucket.charge(44));
    assert_eq!(bucket.decide(state, NOW, 1), Decision::Refuse);
    // Four seconds later, all but four of them are made up for.
    assert_eq!(bucket.decide(state, NOW + 4 * SECOND, 1), Decision::Refuse);
    let later = NOW + 43 * SECOND / 10;
    assert_ne!(bucket.decide(state, later, 1), Decision::Refuse);
    assert_eq!(bucket.decide(state, later, 44), Decision::Refuse);
}

/// How many of a hundred keys that always send pass a packet in each hundredth of an interval, from a second after they began.
fn passed_in_step(is_in_step: bool) -> u64 {
    let bucket = at(5, 5).bucket(0);
    let mut states = [0; 100];
    let hundredth = SECOND / 500;
    let mut most = 0;
    for step in 0..1_000 {
        let now = NOW + step * hundredth;
        let mut passed = 0;
        for (key, state) in states.iter_mut().enumerate() {
            let bucket = if is_in_step {
                bucket
            } else {
                bucket.out_of_step(key as u64)
            };
            while let Decision::Pass(next) = bucket.decide(*state, now, 1) {
                (*state, passed) = (next, passed + 1);
            }
        }
        if step >= 500 {
            most = most.max(passed);
        }
    }
    most
}

#[test]
fn keys_that_began_together_pass_out_of_step() {
    assert_eq!(passed_in_step(true), 100);
    let most = passed_in_step(false);
    assert!(most <= 10, "{most}");
}

proptest! {
    #[test]
    fn any_level_fits_its_word_and_refuses_something(interval in any::<u64>(), burst in any::<u64>(), shift in 0u8..=12) {
        let level = Level::new(interval, burst, shift);
        prop_assert!(!level.is_off());
        let bucket = level.bucket(shift);
        prop_assert!(bucket.tolerance() <= HORIZON / 2);
        prop_assert!(bucket.tolerance() >= bucket.charge(1));
        let state = NOW.wrapping_add(bucket.tolerance());
        prop_assert_eq!(bucket.decide(state, NOW, 1), Decision::Refuse);
        // The largest buffer of the network stack leaves a debt that the clock can hold.
        let cost = if shift == 0 { 64 } else { 1 << 19 };
        prop_assert!(bucket.charge(cost) < HORIZON / 2);
    }

    #[test]
    fn a_level_is_a_token_bucket_for_costs_up_to_its_burst(rate in 1u64..1_000_000, burst in 1u64..1_000, ahead in 0u64..SECOND, cost in 1u64..1_000) {
        let level = at(rate, burst);
        let bucket = TokenBucket::from_parameters(level.bucket(0).parameters());
        if cost <= burst {
            prop_assert_eq!(level.bucket(0).decide(NOW + ahead, NOW, cost), bucket.decide(NOW + ahead, NOW, cost));
        }
    }

    #[test]
    fn a_key_out_of_step_passes_at_most_one_packet_less(rate in 1u64..1_000_000, burst in 2u64..100, key in any::<u64>()) {
        let bucket = at(rate, burst).bucket(0);
        let eighth = bucket.charge(1) / 8;
        let passed = |bucket: Bucket, eighths: u64| {
            let (mut state, mut passed) = (0, 0);
            for nth in 0..=eighths {
                while let Decision::Pass(next) = bucket.decide(state, NOW + nth * eighth, 1) {
                    (state, passed) = (next, passed + 1);
                }
            }
            passed
        };
        prop_assert_eq!(passed(bucket, 0), burst);
        for eighths in [0, 4, 100] {
            let (level, own) = (passed(bucket, eighths), passed(bucket.out_of_step(key), eighths));
            prop_assert!(own <= level && level <= own + 1, "{} and {}", own, level);
        }
    }

    /// A key that always sends, under levels that change at any instant: in each phase no more passes than that phase's level
    /// allows, whatever the levels before it.
    #[test]
    fn no_phase_passes_more_than_its_level(
        phases in proptest::collection::vec((1u64..2_000, 1u64..60, 1u64..400), 1..12),
        step in 1u64..20,
        key in any::<u64>(),
    ) {
        let (mut state, mut now) = (0, NOW);
        for (rate, burst, milliseconds) in phases {
            let bucket = at(rate, burst).bucket(0).out_of_step(key);
            let (begin, end) = (now, now + milliseconds * (SECOND / 1_000));
            let mut passed = 0;
            while now < end {
                while let Decision::Pass(next) = bucket.decide(state, now, 1) {
                    (state, passed) = (next, passed + 1);
                }
                now += step * (SECOND / 1_000);
            }
            let most = burst + (now - begin).div_ceil(bucket.charge(1));
            prop_assert!(passed <= most, "{} passed of {}", passed, most);
        }
    }
}
