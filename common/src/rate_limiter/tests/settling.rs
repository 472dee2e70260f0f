//! Forced charges, reservations and refunds against models that are written from the algorithms' definitions.

use std::cell::Cell;

use proptest::prelude::*;

use super::*;

/// Instants are 10 ms apart, and no window ends at one: they are told apart to 1 ms.
const STEP: u64 = SECOND / 100;
const START: u64 = 1_000 * SECOND + STEP / 4;
const WINDOW: u64 = 60 * SECOND + STEP / 2;

#[derive(Clone, Copy, Debug)]
enum Operation {
    Charge(u64),
    Force(u64),
    Refund(u64),
    Reserve(u64),
    /// Of the open reservations, one, with what was used.
    Commit(usize, u64),
    Release(usize),
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (1u64..40).prop_map(Operation::Charge),
        1 => (1u64..400).prop_map(Operation::Force),
        1 => (1u64..60).prop_map(Operation::Refund),
        4 => (1u64..40).prop_map(Operation::Reserve),
        2 => (any::<usize>(), 0u64..80).prop_map(|(nth, used)| Operation::Commit(nth, used)),
        1 => any::<usize>().prop_map(Operation::Release),
    ]
}

fn operations() -> impl Strategy<Value = Vec<(u64, Operation)>> {
    // Gaps from nothing to more than two windows.
    prop::collection::vec(
        (
            prop_oneof![3 => 0u64..20, 2 => 0u64..2_000, 1 => 0u64..14_000],
            operation(),
        ),
        1..120,
    )
}

/// An algorithm by its definition. All units are kept.
trait Model {
    fn passes(&mut self, now: u64, cost: u64) -> bool;
    fn charge(&mut self, now: u64, cost: u64);
    /// `charged`: when the units were charged, and when they are made up for.
    fn refund(&mut self, now: u64, charged: (u64, u64), units: u64);
    /// When all charges until now will be made up for.
    fn ends(&mut self, _: u64) -> u64 {
        u64::MAX
    }
    /// (the remaining units, the debt); `None` where it may differ for a while.
    fn left(&mut self, now: u64) -> Option<(u64, u64)>;
}

/// A level in units × the nanoseconds between two units, which is then refilled by 1 each nanosecond.
struct Bucket {
    interval: i128,
    most: i128,
    level: i128,
    filled: u64,
}

impl Bucket {
    fn refill(&mut self, now: u64) {
        self.level = self.most.min(self.level + i128::from(now - self.filled));
        self.filled = now;
    }
}

impl Model for Bucket {
    fn passes(&mut self, now: u64, cost: u64) -> bool {
        self.refill(now);
        self.level >= i128::from(cost) * self.interval
    }

    fn charge(&mut self, now: u64, cost: u64) {
        self.refill(now);
        self.level -= i128::from(cost) * self.interval;
    }

    fn refund(&mut self, now: u64, (_, ends): (u64, u64), units: u64) {
        self.refill(now);
        let left = i128::from(ends.saturating_sub(now));
        let returned = (i128::from(units) * self.interval).min(left);
        self.level = self.most.min(self.level + returned);
    }

    fn ends(&mut self, now: u64) -> u64 {
        self.refill(now);
        now + (self.most - self.level) as u64
    }

    fn left(&mut self, now: u64) -> Option<(u64, u64)> {
        self.refill(now);
        let units = self.level.div_euclid(self.interval);
        Some((units.max(0) as u64, (-units).max(0) as u64))
    }
}

/// Each window's begin and units.
struct Fixed {
    most: u64,
    windows: Vec<(u64, u64)>,
}

impl Fixed {
    fn at(&mut self, instant: u64) -> Option<&mut u64> {
        let within = |begin: u64| (begin..begin + WINDOW).contains(&instant);
        let window = self.windows.iter_mut().rfind(|(begin, _)| within(*begin));
        window.map(|(_, count)| count)
    }
}

impl Model for Fixed {
    fn passes(&mut self, now: u64, cost: u64) -> bool {
        self.at(now).map_or(0, |count| *count) + cost <= self.most
    }

    fn charge(&mut self, now: u64, cost: u64) {
        match self.at(now) {
            Some(count) => *count += cost,
            None => self.windows.push((now, cost)),
        }
    }

    fn refund(&mut self, _: u64, (at, _): (u64, u64), units: u64) {
        if let Some(count) = self.at(at) {
            *count = count.saturating_sub(units);
        }
    }

    fn left(&mut self, now: u64) -> Option<(u64, u64)> {
        let count = self.at(now).map_or(0, |count| *count);
        Some((
            self.most.saturating_sub(count),
            count.saturating_sub(self.most),
        ))
    }
}

/// The units of each window by its number.
struct Sliding {
    most: u64,
    windows: Vec<u64>,
}

impl Sliding {
    /// (units of this window, those of the previous one, how much of it is in view, in nanoseconds).
    fn counts(&self, now: u64) -> (u128, u128, u128) {
        let of = |number: u64| u128::from(*self.windows.get(number as usize).unwrap_or(&0));
        let number = now / WINDOW;
        (
            of(number),
            of(number - 1),
            u128::from(WINDOW - now % WINDOW),
        )
    }
}

impl Model for Sliding {
    fn passes(&mut self, now: u64, cost: u64) -> bool {
        let (count, before, left) = self.counts(now);
        let window = u128::from(WINDOW);
        cost <= self.most
            && (count + u128::from(cost) - 1) * window + before * left
                < u128::from(self.most) * window
    }

    fn charge(&mut self, now: u64, cost: u64) {
        let number = (now / WINDOW) as usize;
        self.windows.resize(self.windows.len().max(number + 1), 0);
        self.windows[number] += cost;
    }

    fn refund(&mut self, _: u64, (at, _): (u64, u64), mut units: u64) {
        let number = (at / WINDOW) as usize;
        for number in [number, number - 1] {
            if let Some(count) = self.windows.get_mut(number) {
                let returned = units.min(*count);
                *count -= returned;
                units -= returned;
            }
        }
    }

    fn left(&mut self, now: u64) -> Option<(u64, u64)> {
        let (count, before, left) = self.counts(now);
        let window = u128::from(WINDOW);
        let (used, most) = (
            count * window + before * left,
            u128::from(self.most) * window,
        );
        let remaining = u128::from(self.most).saturating_sub(count + before * left / window);
        let debt = used.saturating_sub(most) / window;
        Some((if used < most { remaining as u64 } else { 0 }, debt as u64))
    }
}

/// The instants of all units. A refund after units beyond N returns nothing until those have left.
struct Log {
    most: usize,
    instants: Vec<u64>,
    beyond_until: u64,
    differs_until: u64,
}

impl Log {
    fn counting(&self, now: u64) -> usize {
        let counts = |at: &&u64| now - **at <= WINDOW;
        self.instants.iter().filter(counts).count()
    }
}

impl Model for Log {
    fn passes(&mut self, now: u64, cost: u64) -> bool {
        self.counting(now) + cost as usize <= self.most
    }

    fn charge(&mut self, now: u64, cost: u64) {
        self.instants.extend((0..cost).map(|_| now));
        // Units that were not returned may be displaced as well.
        if self.counting(now) > self.most || now <= self.differs_until {
            self.beyond_until = now + WINDOW;
        }
    }

    fn refund(&mut self, now: u64, (at, _): (u64, u64), units: u64) {
        let end = self.instants.partition_point(|instant| *instant <= at);
        let start = self
            .instants
            .partition_point(|instant| now - *instant > WINDOW);
        let first = end.saturating_sub(units as usize).max(start.min(end));
        self.instants.drain(first..end);
        if now <= self.beyond_until {
            self.differs_until = now + WINDOW;
        }
    }

    fn left(&mut self, now: u64) -> Option<(u64, u64)> {
        let left = self.most.saturating_sub(self.counting(now));
        (now > self.differs_until).then_some((left as u64, 0))
    }
}

/// Runs the operations on the library's limiter and on the model: no verdict is wider than the definition, and none
/// narrower, except a log's within a window of a refund after units beyond N.
fn compare<const WORDS: usize>(
    policy: Policy,
    mut model: impl Model,
    operations: &[(u64, Operation)],
) -> Result<(), TestCaseError> {
    let time = Cell::new(START);
    let mut limiter = Limiter::<_, WORDS>::new(policy, || time.get()).unwrap();
    let mut open: Vec<(Reservation, (u64, u64), u64)> = Vec::new();
    for (gap, operation) in operations {
        time.set(time.get() + gap * STEP);
        let now = time.get();
        let outcome = match *operation {
            Operation::Charge(cost) => {
                let passes = model.passes(now, cost);
                let outcome = limiter.decide(cost);
                prop_assert!(passes || !outcome.allowed, "{cost} passed at {now}");
                prop_assert!(!passes || outcome.allowed || model.left(now).is_none());
                if outcome.allowed {
                    model.charge(now, cost);
                }
                outcome
            }
            Operation::Force(cost) => {
                model.charge(now, cost);
                limiter.force(cost)
            }
            Operation::Refund(cost) => {
                model.refund(now, (now, u64::MAX), cost);
                limiter.refund(cost)
            }
            Operation::Reserve(cost) => {
                let passes = model.passes(now, cost);
                match limiter.reserve(cost) {
                    Ok(reservation) => {
                        prop_assert!(passes, "{cost} reserved at {now}");
                        model.charge(now, cost);
                        open.push((reservation, (now, model.ends(now)), cost));
                    }
                    Err(refusal) => {
                        prop_assert!(!refusal.allowed);
                        prop_assert!(!passes || model.left(now).is_none());
                    }
                }
                limiter.peek(1)
            }
            Operation::Commit(..) | Operation::Release(_) if open.is_empty() => continue,
            Operation::Commit(nth, used) => {
                let (reservation, at, cost) = open.swap_remove(nth % open.len());
                model.refund(now, at, cost.saturating_sub(used));
                if used > cost {
                    model.charge(now, used - cost);
                }
                limiter.commit(reservation, used)
            }
            Operation::Release(nth) => {
                let (reservation, at, cost) = open.swap_remove(nth % open.len());
                model.refund(now, at, cost);
                limiter.release(reservation)
            }
        };
        if let Some(left) = model.left(now) {
            prop_assert_eq!(
                (outcome.remaining, outcome.debt),
                left,
                "{:?} at {}",
                operation,
                now
            );
        }
        // What is refused passes as soon as the reply promises.
        if let Some(wait) = limiter.retry_after(1) {
            let at = now + wait.as_nanos() as u64;
            prop_assert!(limiter.conforms_at(at, 1));
            prop_assert!(wait.as_nanos() < 2 || !limiter.conforms_at(at - 2, 1));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn settled_units_of_a_bucket_are_those_of_its_level(microseconds in 1u64..200_000, burst in 1u64..100, operations in operations()) {
        let interval = microseconds * 1_000;
        let most = i128::from(interval * burst);
        let model = Bucket { interval: interval.into(), most, level: most, filled: START };
        compare::<1>(Policy::token_bucket(rate(1, interval), burst), model, &operations)?;
    }

    #[test]
    fn settled_units_of_a_fixed_window_are_those_of_its_count(most in 1u64..100, operations in operations()) {
        let policy = Policy::fixed_window(rate(most, WINDOW)).unwrap();
        compare::<1>(policy, Fixed { most, windows: Vec::new() }, &operations)?;
    }

    #[test]
    fn settled_units_of_a_sliding_window_are_those_of_two_counts(most in 1u64..100, operations in operations()) {
        let policy = Policy::sliding_window(rate(most, WINDOW)).unwrap();
        compare::<2>(policy, Sliding { most, windows: Vec::new() }, &operations)?;
    }

    #[test]
    fn settled_units_of_a_log_are_those_of_its_instants(most in 1usize..100, operations in operations()) {
        let policy = Policy::sliding_log(rate(most as u64, WINDOW)).unwrap();
        let model = Log { most, instants: Vec::new(), beyond_until: 0, differs_until: 0 };
        compare::<101>(policy, model, &operations)?;
    }
}

#[test]
fn a_bucket_returns_nothing_that_it_has_made_up_for() {
    let time = Cell::new(START);
    let policy = Policy::token_bucket(rate(1, SECOND), 100);
    let mut limiter = Limiter::<_, 1>::new(policy, || time.get()).unwrap();
    let all = limiter.reserve(100).unwrap();
    time.set(START + 100 * SECOND);
    assert!(limiter.allowed_n(100));
    // Released late, the first hundred are no second burst.
    limiter.release(all);
    assert!(!limiter.allowed());
    time.set(START + 200 * SECOND);
    let all = limiter.reserve(100).unwrap();
    time.set(START + 240 * SECOND);
    assert!(limiter.allowed_n(40));
    assert_eq!(limiter.release(all).remaining, 60);
}

#[test]
fn a_forced_charge_leaves_a_debt_that_the_refill_pays() {
    let time = Cell::new(START);
    let policy = Policy::token_bucket(rate(600, 60 * SECOND), 100);
    let mut limiter = Limiter::<_, 1>::new(policy, || time.get()).unwrap();
    let outcome = limiter.force(5_000);
    assert_eq!(
        (outcome.allowed, outcome.remaining, outcome.debt),
        (true, 0, 4_900)
    );
    // 10 come back each second.
    assert_eq!(limiter.retry_after(1), Some(Duration::from_millis(490_100)));
    time.set(START + 490 * SECOND);
    assert_eq!(
        (limiter.debt_at(limiter.now()), limiter.allowed()),
        (0, false)
    );
    time.set(START + 490 * SECOND + SECOND / 10);
    assert!(limiter.allowed() && !limiter.allowed());
}

/// The horizon of the clock bounds it, some years.
#[test]
fn the_largest_cost_is_a_debt_of_any_algorithm() {
    for algorithm in Algorithm::ALL {
        let policy = Policy::new(*algorithm, rate(100, 60 * SECOND), 100).unwrap();
        let mut held = Held::new(policy, START);
        policy.force(&mut held.words, START, u64::MAX);
        policy.force(&mut held.words, START, u64::MAX);
        assert!(!held.conforms(START + 30 * SECOND, 1), "{algorithm}");
        assert_eq!(policy.remaining(&held.words, START), 0, "{algorithm}");
        let refund = crate::limiter::Refund::newest(1_000, START);
        policy.refund(&mut held.words, START, refund);
        assert!(!held.conforms(START, 1), "{algorithm}");
        assert!(
            policy.wait(&held.words, START, 1).unwrap() > 30 * SECOND,
            "{algorithm}"
        );
    }
}
