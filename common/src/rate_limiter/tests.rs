mod settling;

use core::cell::Cell;
use core::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::limiter::{Algorithm, Rate};

const SECOND: u64 = 1_000_000_000;

fn rate(count: u64, per_nanoseconds: u64) -> Rate {
    Rate {
        count,
        per_nanoseconds,
    }
}

/// A policy with its state, at instants that the test chooses.
#[derive(Clone)]
struct Held {
    policy: Policy,
    words: Vec<u64>,
}

impl Held {
    fn new(policy: Policy, now: u64) -> Self {
        let mut words = vec![0; policy.words()];
        policy.open(&mut words, now);
        Self { policy, words }
    }

    fn conforms(&self, now: u64, cost: u64) -> bool {
        self.policy.conforms(&self.words, now, cost)
    }

    fn charge(&mut self, now: u64, cost: u64) -> bool {
        self.policy.charge(&mut self.words, now, cost)
    }
}

/// Every algorithm, with limits of all sizes.
fn policies() -> impl Strategy<Value = Policy> {
    let sizes = (
        1u64..=400,
        1_000_000u64..3_600 * SECOND,
        1u64..500,
        0u64..500,
        0u64..10,
    );
    (0..=Algorithm::ALL.len(), sizes).prop_map(|(which, (count, per, burst, initial, step))| {
        match Algorithm::ALL.get(which) {
            Some(algorithm) => Policy::new(*algorithm, rate(count, per), burst).unwrap(),
            None => Policy::token_bucket(rate(count, per), burst)
                .with_initial(initial)
                .refilled_every(step * per / 7),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// The values beside a verdict follow the same definition: the wait ends exactly when the cost passes, the
    /// remaining units pass, and after the reset everything does.
    #[test]
    fn wait_remaining_and_reset_are_true(policy in policies(), start in SECOND..1 << 50, steps in prop::collection::vec((0u64..1_000_000, 0u64..40), 1..60)) {
        let mut held = Held::new(policy, start);
        let mut now = start;
        for (gap, cost) in steps {
            // Gaps from nothing to a few windows.
            now += gap * gap * gap / 1_000_000_000;
            let before = held.words.clone();
            prop_assert_eq!(held.conforms(now, cost), held.clone().charge(now, cost));
            match held.policy.wait(&held.words, now, cost) {
                None => prop_assert!(cost > policy.most()),
                Some(0) => prop_assert!(held.conforms(now, cost)),
                Some(wait) => {
                    prop_assert!(!held.conforms(now, cost));
                    prop_assert!(held.conforms(now + wait, cost), "after {} ns", wait);
                    // To the nanosecond, unless the clock is coarser.
                    prop_assert!(!held.conforms(now + wait.saturating_sub(2), cost) || wait < 2, "{} ns", wait);
                }
            }
            let remaining = held.policy.remaining(&held.words, now);
            prop_assert!(held.conforms(now, remaining) && !held.conforms(now, remaining + 1), "{} remain", remaining);
            let reset = held.policy.reset(&held.words, now);
            prop_assert_eq!(held.policy.remaining(&held.words, now + reset + 1), policy.most());
            prop_assert!(!held.policy.is_alive(&held.words, now + reset + 1));

            let passes = held.conforms(now, cost);
            prop_assert_eq!(held.charge(now, cost), passes);
            if !passes && policy.words() == 1 { prop_assert_eq!(&held.words, &before); }
        }
    }

    /// A bucket against a model that stores its level as a fraction and refills it at each step.
    #[test]
    fn a_bucket_is_the_obvious_one(count in 1u64..1_000, seconds in 1u64..100, burst in 1u64..1_000, initial in 0u64..1_000, step in 0u64..30, start in 0u64..1 << 40, arrivals in prop::collection::vec((0u64..5_000, 1u64..60), 1..200)) {
        let initial = initial.min(burst);
        let (per, step) = (seconds * SECOND, step * SECOND / 10);
        let policy = Policy::token_bucket(rate(count, per), burst).with_initial(initial).refilled_every(step);
        let mut held = Held::new(policy, start);
        // The level in units × per: the refill in a nanosecond is then `count`.
        let most = u128::from(burst) * u128::from(per);
        let mut content = u128::from(initial) * u128::from(per);
        let grid = |now: u64| now - now.checked_rem(step).unwrap_or(0);
        let (mut filled, mut now) = (grid(start), start);
        for (gap, cost) in arrivals {
            now += gap * per / 1_000 / count.max(1);
            content = (content + u128::from(grid(now) - filled) * u128::from(count)).min(most);
            filled = grid(now);
            let price = u128::from(cost) * u128::from(per);
            let passed = held.charge(now, cost);
            // Emission intervals are rounded up to a tick: never more passes, and less only at the very edge.
            let edge = u128::from(per) / 1_000 + u128::from(count) * 1_000;
            prop_assert!(if passed { content >= price } else { content < price + edge }, "{} of {}", price, content);
            if passed { content -= price; }
        }
    }

    /// A log against a queue of instants; costs take several places or none.
    #[test]
    fn a_log_is_the_obvious_queue(count in 1u64..100, arrivals in prop::collection::vec((0u64..SECOND / 4, 0u64..20), 1..200)) {
        let mut held = Held::new(Policy::sliding_log(rate(count, SECOND)).unwrap(), 0);
        let (mut passed, mut now) = (Vec::new(), 0);
        for (gap, cost) in arrivals {
            now += gap;
            passed.retain(|at| at + SECOND >= now);
            let expected = cost == 0 || passed.len() as u64 + cost <= count;
            prop_assert_eq!(held.charge(now, cost), expected);
            if expected { passed.extend((0..cost).map(|_| now)); }
        }
    }

    /// A cost under tiers is charged to all of them or to none.
    #[test]
    fn tiers_are_charged_all_or_none(a in policies(), b in policies(), costs in prop::collection::vec((0u64..SECOND, 0u64..30), 1..60)) {
        let time = Cell::new(SECOND);
        let clock = || time.get();
        let limiter = |policy| Limiter::<_, 512>::new(policy, clock).unwrap();
        let (mut first, mut second) = (limiter(a), limiter(b));
        for (gap, cost) in costs {
            time.set(time.get() + gap);
            let expected = first.peek(cost).allowed && second.peek(cost).allowed;
            let left = (first.remaining(), second.remaining());
            let mut tiers = Tiers::<&mut dyn RateLimiter, 2>([&mut first, &mut second]);
            let predicted = tiers.peek(cost);
            let outcome = tiers.decide(cost);
            prop_assert_eq!(outcome.allowed, expected);
            prop_assert_eq!(predicted.allowed, expected);
            prop_assert_eq!(outcome.remaining, first.remaining().min(second.remaining()));
            if !expected {
                prop_assert_eq!((first.remaining(), second.remaining()), left);
                prop_assert_eq!(outcome.retry_after, predicted.retry_after);
            }
        }
    }
}

#[test]
fn credits_come_in_steps_and_begin_with_the_initial_ones() {
    let policy = Policy::token_bucket(rate(600, 60 * SECOND), 100)
        .with_initial(30)
        .refilled_every(SECOND);
    let mut held = Held::new(policy, 5 * SECOND + 1);
    let at = |held: &Held, now| policy.remaining(&held.words, now);
    assert_eq!(at(&held, 5 * SECOND + 1), 30);
    assert!(held.charge(5 * SECOND + 1, 30) && !held.charge(6 * SECOND - 1, 1));
    assert_eq!(
        policy.wait(&held.words, 5 * SECOND + 1, 1),
        Some(SECOND - 1)
    );
    assert_eq!(
        policy.wait(&held.words, 5 * SECOND + 1, 11),
        Some(2 * SECOND - 1)
    );
    assert_eq!(
        (
            at(&held, 6 * SECOND),
            at(&held, 8 * SECOND - 1),
            at(&held, 60 * SECOND)
        ),
        (10, 20, 100)
    );
    assert_eq!(policy.wait(&held.words, 6 * SECOND, 101), None);
}

#[test]
fn policies_beyond_the_counters_are_refused() {
    assert_eq!(
        Policy::sliding_log(rate(1_025, SECOND)),
        Err(PolicyError::LogTooLong(Algorithm::SlidingLog))
    );
    assert_eq!(
        Policy::fixed_window(rate(1 << 40, SECOND)),
        Err(PolicyError::WindowTooShort)
    );
    assert_eq!(
        Policy::sliding_window(rate(1 << 39, SECOND)),
        Err(PolicyError::WindowTooShort)
    );
    let policy = Policy::sliding_log(rate(8, SECOND)).unwrap();
    assert_eq!(
        Limiter::<_, 8>::new(policy, || 0).err(),
        Some(PolicyError::TooFewWords { needed: 9 })
    );
}

#[test]
fn a_cost_beyond_the_limit_never_passes_and_says_so() {
    let mut limiter = Limiter::<_, 1>::new(Policy::leaky_bucket(rate(5, SECOND), 5), || 7).unwrap();
    let outcome = limiter.decide(6);
    assert_eq!(
        (outcome.allowed, outcome.remaining, outcome.retry_after),
        (false, 5, None)
    );
    let outcome = limiter.decide(5);
    assert_eq!(
        (outcome.allowed, outcome.remaining, outcome.retry_after),
        (true, 0, Some(Duration::ZERO))
    );
    assert_eq!(outcome.reset_after, Duration::from_secs(1));
}
