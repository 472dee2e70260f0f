//! A store's keys without room: the rates of the allowance that they share, its moves and saves.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::share::Share;

use super::overflow::SavedOverflow;
use super::state_store::StateStore;
use super::tiers::{self, Tiers};

/// Of a limit whose hosts exchange keys, all keys without room on a host share this part of its part.
const WITHOUT_ROOM: u64 = 10;

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

    /// The same use when the clock of the states is set.
    pub(super) fn rebase_overflow(&self, from: u64, to: u64) {
        let tiers = self.overflow_tiers();
        self.overflow.rebase(|words| {
            if tiers::is_alive(&tiers, words, from) {
                tiers::rebased(&tiers, words, from, to)
            } else {
                vec![0; words.len()]
            }
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
