//! Keys that are forgotten, and a store without room.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use common::limiter::Rate;
use common::rate_limiter::Policy;
use config::policy::OnFull;
use proptest::prelude::*;

use super::*;

#[test]
fn memory_is_bounded_and_a_full_store_follows_on_full() {
    let fingerprints = Fingerprints::under([1, 2]);
    for (on_full, expected) in [
        (OnFull::Pass, 50_000),
        (OnFull::Throttle, 0),
        (OnFull::Share, 3),
    ] {
        let store = StateStore::new(bucket(1, 3), 1_000, on_full);
        // Every key is empty, so none can be removed.
        for key in 0..50_000u64 {
            store.decide(fingerprints.of(&key), SECOND, 3);
        }
        let keys = store.keys();
        assert!((900..1_100).contains(&keys), "{keys}");
        let late = (100_000..150_000u64)
            .filter(|key| store.decide(fingerprints.of(key), SECOND, 1).allowed);
        let passed = late.count();
        // The shared bucket was emptied by the first keys without a place.
        let expected = if on_full == OnFull::Share {
            0
        } else {
            expected
        };
        assert!(
            passed.abs_diff(expected) <= 200,
            "{on_full}: {passed} of {expected}"
        );
        // A peek at one of them says what a decision would.
        let key = fingerprints.of(&200_000u64);
        let peeked = store.peek(key, SECOND, 1);
        if on_full == OnFull::Share {
            assert!(
                !peeked.allowed && peeked.retry_after > Some(Duration::ZERO),
                "{peeked:?}"
            );
        }
        // Once they have decayed, there is room again.
        store.sweep(10 * SECOND);
        assert_eq!(store.keys(), 0);
        let back = (0..500u64)
            .filter(|key| !store.decide(fingerprints.of(key), 10 * SECOND, 4).allowed)
            .count();
        assert_eq!(
            back, 500,
            "a bucket of 3 passes no 4: these keys are counted again"
        );
    }
}

#[test]
fn a_flood_of_keys_is_forgotten_by_the_keys_that_follow() {
    let store = StateStore::new(bucket(1_000, 10), 10_000, OnFull::Throttle);
    let fingerprints = Fingerprints::under([1, 2]);
    // Each key is full again after a millisecond, so only a few are stored at a time.
    for key in 0..200_000u64 {
        assert!(store.decide(fingerprints.of(&key), key * 10_000, 1).allowed);
    }
    assert!(store.keys() < 10_000, "{}", store.keys());
}

#[test]
fn a_key_that_begins_with_less_is_remembered_while_there_is_room() {
    let policy = Policy::token_bucket(Rate::per_second(10), 100).with_initial(5);
    let store = StateStore::new(vec![policy], 1_000, OnFull::Throttle);
    let key = Fingerprints::under([1, 2]).of("alice");
    assert!(store.decide(key, SECOND, 5).allowed && !store.decide(key, SECOND, 1).allowed);
    store.sweep(100 * SECOND);
    assert_eq!(store.peek(key, 100 * SECOND, 1).remaining, 100);
    store.sweep(100 * SECOND + 2 * 86_400 * SECOND);
    assert_eq!(
        (store.keys(), store.peek(key, 300_000 * SECOND, 1).remaining),
        (0, 5)
    );
}

/// Prints how long the longest lock is taken when a million keys are removed, which the benchmark checks.
#[test]
fn the_longest_pause_of_forgetting_a_million_keys_is_printed() {
    let store = StateStore::new(bucket(1_000, 10), 1_000_000, OnFull::Pass);
    let fingerprints = Fingerprints::under([1, 2]);
    let mut longest = Duration::ZERO;
    for key in 0..1_000_000u64 {
        let key = fingerprints.of(&key);
        let start = Instant::now();
        assert!(store.decide(key, SECOND, 1).allowed);
        longest = longest.max(start.elapsed());
    }
    let before = store.keys();
    let start = Instant::now();
    let mut longest_sweep = Duration::ZERO;
    for shard in 0..store.shards() {
        let start = Instant::now();
        let forgotten = store.sweep_shard(shard, 2 * SECOND);
        longest_sweep = longest_sweep.max(start.elapsed());
        drop(forgotten);
    }
    eprintln!(
        "{before} keys forgotten in {:?}; the longest pause was {longest_sweep:?}, that of an insertion {longest:?}",
        start.elapsed()
    );
    assert!(before > 990_000 && store.keys() == 0);
}

proptest! {
    /// Every decision equals that of a store that never removes keys.
    #[test]
    fn forgetting_changes_no_verdict(steps in prop::collection::vec((0u64..SECOND, 0u8..20, 0u64..8, any::<bool>()), 1..200)) {
        let fingerprints = Fingerprints::under([1, 2]);
        let tiers = || vec![
            Policy::token_bucket(Rate::per_second(3), 7),
            Policy::sliding_window(Rate { count: 20, per_nanoseconds: 5 * SECOND }).unwrap(),
        ];
        let store = StateStore::new(tiers(), 100_000, OnFull::Throttle);
        let mut states: HashMap<u8, Vec<u64>> = HashMap::new();
        let mut now = SECOND;
        for (gap, key, cost, sweeps) in steps {
            now += gap;
            let words = states.entry(key).or_insert_with(|| {
                let mut words = vec![0; 3];
                tiers::open(&tiers(), &mut words, now);
                words
            });
            if sweeps { store.sweep(now); }
            let peeked = store.peek(fingerprints.of(&key), now, cost);
            prop_assert_eq!(peeked, tiers::peek(&tiers().into(), words, now, cost));
            let decided = store.decide(fingerprints.of(&key), now, cost);
            prop_assert_eq!(decided, tiers::decide(&tiers().into(), words, now, cost));
        }
    }
}

#[test]
fn every_key_there_is_room_for_finds_it() {
    let fingerprints = Fingerprints::under([1, 2]);
    for most in [1, 10, 64, 100, 500, 1_000, 4_000, 5_000, 20_000, 100_000] {
        let store = StateStore::new(bucket(1, 3), most, OnFull::Throttle);
        let held = (0..most as u64)
            .filter(|key| store.decide(fingerprints.of(key), SECOND, 3).allowed)
            .count();
        assert_eq!((held, store.keys()), (most, most));
        // One more is refused until a key has decayed.
        assert!(!store.decide(fingerprints.of("late"), SECOND, 1).allowed);
        assert!(
            store
                .decide(fingerprints.of("later"), 10 * SECOND, 1)
                .allowed,
            "{most}"
        );
    }
}
