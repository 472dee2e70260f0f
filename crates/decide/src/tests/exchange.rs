//! Units of hosts that are without each other.

use common::limiter::Refund;
use common::share::Share;

use super::*;
use crate::tiers::Charges;

const NOW: u64 = 1_790_000_000 * SECOND;
const KEY: Fingerprint = Fingerprint::of_word(7);

/// A hundred units in ten hours.
fn bucket() -> StateStore {
    buckets(&[100])
}

/// Of these bursts.
fn buckets(bursts: &[u64]) -> StateStore {
    let rate = Rate {
        count: 100,
        per_nanoseconds: 36_000 * SECOND,
    };
    let tiers = bursts
        .iter()
        .map(|burst| Policy::token_bucket(rate, *burst));
    StateStore::new(tiers.collect::<Vec<_>>(), 10, OnFull::Throttle)
        .keyed(Duration::from_millis(100))
}

fn left(store: &StateStore) -> (u64, u64) {
    let outcome = store.peek(KEY, NOW, 1);
    (outcome.remaining, outcome.debt)
}

/// Nobody pays for units that nobody passed.
#[test]
fn the_units_of_others_take_no_more_than_a_bucket_has() {
    for (used, others, expected) in [(10, 30, 60), (60, 180, 0), (100, 300, 0)] {
        let store = bucket();
        assert!((0..used).all(|_| store.allowed(KEY, NOW, 1)));
        store.charge_for_others(KEY.word(), others, NOW);
        assert_eq!(left(&store), (expected, 0), "{used}, {others}");
    }
}

/// A reload has replaced the store by one with other tiers.
#[test]
fn units_of_others_are_charged_to_the_store_in_effect() {
    let (before, after) = (buckets(&[100, 50]), Arc::new(bucket()));
    assert!(before.allowed(KEY, NOW, 1));
    before.move_to(&after, NOW);
    before.charge_for_others(KEY.word(), 30, NOW);
    assert_eq!(left(&before), (69, 0));
    assert_eq!(left(&after), (69, 0));
}

/// Of four hosts.
#[test]
fn forced_charges_and_refunds_under_a_share_are_those_of_the_limit() {
    let store = bucket();
    store.force(KEY, NOW, 50);
    store.set_share(Share::one_of(4));
    store.refund(KEY, NOW, Refund::newest(20, NOW), &Charges::default());
    store.set_share(Share::WHOLE);
    assert_eq!(left(&store), (70, 0));
    store.set_share(Share::one_of(4));
    store.force(KEY, NOW, 10);
    store.set_share(Share::WHOLE);
    assert_eq!(left(&store), (30, 0));
    store.set_share(Share::one_of(4));
    store.force(KEY, NOW, 80);
    store.set_share(Share::WHOLE);
    assert_eq!(left(&store), (0, 50));
}

#[test]
fn a_host_that_parts_reports_the_buckets_that_it_used() {
    let store = bucket();
    store.set_share(Share::one_of(4));
    assert!(store.allowed(KEY, NOW, 1));
    assert_eq!(
        store.separate(NOW, 3_600 * SECOND),
        [] as [u64; 0],
        "ends before"
    );
    assert!(store.allowed(KEY, NOW, 1));
    assert_eq!(store.separate(NOW, SECOND), [KEY.word()]);
    assert_eq!(store.separate(NOW, SECOND), [] as [u64; 0]);
}
