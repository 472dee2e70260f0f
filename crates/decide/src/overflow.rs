//! The allowance that all keys without room share.

use std::sync::atomic::{AtomicI64, Ordering};

use common::rate_limiter::Policy;
use serde::{Deserialize, Serialize};

use super::shard::{Guard, Lock};
use super::tiers;

/// The state of the keys without room.
#[derive(Debug)]
pub(super) struct Overflow {
    state: Lock<State>,
    /// The current period of a rate by the calendar.
    period: AtomicI64,
}

/// A copy of the state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SavedOverflow {
    pub(super) words: Vec<u64>,
    pub(super) period: i64,
}

#[derive(Debug)]
struct State {
    words: Box<[u64]>,
    /// The latest period in which it was used: a clock that is set back over midnight does not reset it.
    period: i64,
    /// Whether the next store has it.
    is_moved: bool,
}

impl Overflow {
    pub(super) fn new(words: usize) -> Self {
        Self {
            state: Lock::new(State {
                words: vec![0; words].into(),
                period: 0,
                is_moved: false,
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

    /// Reads or changes the state at `now`; `None`: the next store has it.
    pub(super) fn with<T>(
        &self,
        tiers: &[Policy],
        now: u64,
        work: impl FnOnce(&mut [u64]) -> T,
    ) -> Option<T> {
        let mut state: Guard<'_, State> = self.state.lock();
        if state.is_moved {
            return None;
        }
        let state = &mut *state;
        let period = self.period.load(Ordering::Relaxed);
        if !state.is_of(period) || !tiers::is_alive(tiers, &state.words, now) {
            tiers::open(tiers, &mut state.words, now);
            state.period = period;
        }
        Some(work(&mut state.words))
    }

    /// Moves the state to the next store's, with `carry`.
    pub(super) fn move_to(&self, next: &Self, carry: impl FnOnce(&[u64]) -> Option<Vec<u64>>) {
        let mut state = self.state.lock();
        state.is_moved = true;
        next.set_period(self.period.load(Ordering::Relaxed));
        if let Some(words) = carry(&state.words) {
            next.restore(&words, state.period);
        }
    }

    /// Changes the state with `rebase` when its clock is set.
    pub(super) fn rebase(&self, rebase: impl FnOnce(&[u64]) -> Vec<u64>) {
        let mut state = self.state.lock();
        let words = rebase(&state.words);
        state.words.copy_from_slice(&words);
    }

    pub(super) fn copy(&self) -> SavedOverflow {
        let state = self.state.lock();
        SavedOverflow {
            words: state.words.to_vec(),
            period: state.period,
        }
    }

    pub(super) fn restore(&self, words: &[u64], period: i64) {
        let mut state = self.state.lock();
        if state.words.len() == words.len() {
            state.words.copy_from_slice(words);
            state.period = period;
        }
    }
}

impl State {
    /// Whether it is still used in a period: one period back is a clock that was set over midnight again; more is one
    /// that was far ahead.
    const fn is_of(&self, period: i64) -> bool {
        period <= self.period && period >= self.period - 1
    }
}
