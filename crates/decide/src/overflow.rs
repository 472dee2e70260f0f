//! The allowance that all keys without room share.

use std::sync::atomic::{AtomicI64, Ordering};

use common::rate_limiter::Policy;

use super::shard::{Guard, Lock};
use super::tiers;

/// The state of the keys without room.
#[derive(Debug)]
pub(super) struct Overflow {
    state: Lock<State>,
    /// The current period of a rate by the calendar.
    period: AtomicI64,
}

#[derive(Debug)]
struct State {
    words: Box<[u64]>,
    /// The latest period in which it was used: a clock that is set back over midnight does not reset it.
    period: i64,
}

impl Overflow {
    pub(super) fn new(words: usize) -> Self {
        Self {
            state: Lock::new(State {
                words: vec![0; words].into(),
                period: 0,
            }),
            period: AtomicI64::new(0),
        }
    }

    /// Sets the current period.
    pub(super) fn set_period(&self, period: i64) {
        if self.period.load(Ordering::Relaxed) != period {
            self.period.store(period, Ordering::Relaxed);
        }
    }

    /// Reads or changes the state at `now`.
    pub(super) fn with<T>(
        &self,
        tiers: &[Policy],
        now: u64,
        work: impl FnOnce(&mut [u64]) -> T,
    ) -> T {
        let mut state: Guard<'_, State> = self.state.lock();
        let state = &mut *state;
        let period = self.period.load(Ordering::Relaxed);
        // One period back is a clock that was set over midnight again; more is one that was far ahead.
        let is_another = period > state.period || period < state.period - 1;
        if is_another || !tiers::is_alive(tiers, &state.words, now) {
            tiers::open(tiers, &mut state.words, now);
            state.period = period;
        }
        work(&mut state.words)
    }
}
