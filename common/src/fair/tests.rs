use proptest::prelude::*;

use super::*;

const NOW: Ticks = 1 << 50;
const SECOND: Ticks = 32_000_000_000;

/// The words of a level of `rate` units a second, alive at [`NOW`].
fn words(rate: u64, burst: u64) -> Words {
    Words {
        until: NOW + 2 * SECOND,
        level: Level::new(SECOND.div_ceil(rate), burst),
        one_in: 0,
    }
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
    for (word, value) in old.stores() {
        row.borrow_mut()[place(word)] = value;
    }
    let (mut stores, left) = (new.stores().into_iter(), Cell::new(0));
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
    let orders = interleavings(3, 3);
    assert_eq!(orders.len(), 20);
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

proptest! {
    #[test]
    fn any_level_fits_its_word_and_refuses_something(interval in any::<u64>(), burst in any::<u64>(), shift in 0u8..=12) {
        let level = Level::new(interval, burst);
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
        let level = Level::new(SECOND.div_ceil(rate), burst);
        let bucket = TokenBucket::from_parameters(level.bucket(0).parameters());
        if cost <= burst {
            prop_assert_eq!(level.bucket(0).decide(NOW + ahead, NOW, cost), bucket.decide(NOW + ahead, NOW, cost));
        }
    }

    /// A key that always sends, under levels that change at any instant: in each phase no more passes than that phase's level
    /// allows, whatever the levels before it.
    #[test]
    fn no_phase_passes_more_than_its_level(
        phases in proptest::collection::vec((1u64..2_000, 1u64..60, 1u64..400), 1..12),
        step in 1u64..20,
    ) {
        let (mut state, mut now) = (0, NOW);
        for (rate, burst, milliseconds) in phases {
            let bucket = Level::new(SECOND.div_ceil(rate), burst).bucket(0);
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
