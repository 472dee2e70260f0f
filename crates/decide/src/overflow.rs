//! The allowance that all keys without room share.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use common::rate_limiter::Policy;
use common::share::Share;
use serde::{Deserialize, Serialize};

use super::shard::{Guard, Lock};
use super::state_store::StateStore;
use super::tiers::{self, Tiers};

/// Of a limit whose hosts exchange keys, all keys without room on a host share this part of its part.
const WITHOUT_ROOM: u64 = 10;

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
    fn with<T>(&self, tiers: &[Policy], now: u64, work: impl FnOnce(&mut [u64]) -> T) -> Option<T> {
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
    fn move_to(&self, next: &Self, carry: impl FnOnce(&[u64]) -> Option<Vec<u64>>) {
        let mut state = self.state.lock();
        state.is_moved = true;
        next.set_period(self.period.load(Ordering::Relaxed));
        if let Some(words) = carry(&state.words) {
            next.restore(&words, state.period);
        }
    }

    fn copy(&self) -> SavedOverflow {
        let state = self.state.lock();
        SavedOverflow {
            words: state.words.to_vec(),
            period: state.period,
        }
    }

    fn restore(&self, words: &[u64], period: i64) {
        let mut state = self.state.lock();
        if state.words.len() == words.len() {
            state.words.copy_from_slice(words);
            state.period = period;
        }
    }
}

impl StateStore {
    /// Reads or changes the allowance that all keys without room share, in the current store. `now` is on the clock of
    /// the states.
    pub(super) fn with_overflow<T>(
        &self,
        now: u64,
        mut work: impl FnMut(&Tiers, &mut [u64]) -> T,
    ) -> T {
        let mut store = self;
        loop {
            let (part, rates) = (store.without_room(), store.in_effect());
            let tiers = part.as_ref().unwrap_or(&rates);
            let done = store.overflow.with(tiers, now, |words| work(tiers, words));
            if let Some(done) = done {
                return done;
            }
            // It is set before the state is moved.
            store = store.successor.get().map_or(store, Arc::as_ref);
        }
    }

    /// The rates that all keys without room share while hosts exchange keys, if they differ: such a key may have room on
    /// other hosts, which cannot know of its units here.
    fn without_room(&self) -> Option<Tiers> {
        let keyed = self.keyed.as_ref()?;
        let hosts = keyed.hosts.load(Ordering::Relaxed);
        let part = Share::one_of(WITHOUT_ROOM.saturating_mul(hosts));
        Some(self.in_effect().map(|tier| tier.at_share(part)))
    }

    /// The rates of the keys without room.
    fn overflow_tiers(&self) -> Tiers {
        self.without_room()
            .unwrap_or_else(|| Tiers::clone(&self.in_effect()))
    }

    /// Moves the use of the keys without room to the store that replaces this one.
    pub(super) fn move_overflow(&self, next: &Self, now: u64) {
        let (before, after) = (self.overflow_tiers(), next.overflow_tiers());
        self.overflow.move_to(&next.overflow, |words| {
            tiers::is_alive(&before, words, now)
                .then(|| tiers::carried(&before, words, &after, now))
        });
    }

    /// A copy of the use of the keys without room; `None` if their allowance is full within `least` nanoseconds.
    pub(super) fn save_overflow(&self, now: u64, least: u64) -> Option<SavedOverflow> {
        let (tiers, now, saved) = (
            self.overflow_tiers(),
            self.instant(now),
            self.overflow.copy(),
        );
        let is_slow = tiers::is_alive(&tiers, &saved.words, now)
            && tiers::reset(&tiers, &saved.words, now) >= least;
        is_slow.then_some(saved)
    }

    /// Sets the use of the keys without room from an earlier agent. `words` are its state under this store's tiers,
    /// `then` the present on their clock.
    pub(super) fn take_up_overflow(&self, words: &[u64], period: i64, then: u64, now: u64) {
        let rebased = (self.keyed.is_none() && then != now)
            .then(|| tiers::rebased(self.tiers(), words, then, now));
        self.overflow
            .restore(rebased.as_deref().unwrap_or(words), period);
    }
}

impl State {
    /// Whether it is still used in a period: one period back is a clock that was set over midnight again; more is one
    /// that was far ahead.
    const fn is_of(&self, period: i64) -> bool {
        period <= self.period && period >= self.period - 1
    }
}
