//! Locks of sets that an agent left when it was killed.
//!
//! A kernel program holds a lock within one run, and a run is never ended midway. An agent that copies states into a
//! table in use can be killed between taking a lock and giving it back.

use std::sync::atomic::Ordering;

use common::table::LOCK;

use super::sources::Sources;

/// How often a set has to be found locked: a program that locks it anew for each packet might be met once or twice.
const LOOKS: u32 = 8;

impl Sources {
    /// Unlocks sets that nobody holds, and returns how many there were. `wait` returns when every run of a program has
    /// ended that had begun before it.
    pub fn release_locks(&self, mut wait: impl FnMut()) -> usize {
        let mut locked: Vec<usize> = (0..self.shape().sets).map(|set| self.set(set)).collect();
        for look in 0..LOOKS {
            locked.retain(|first| self.table.word(*first).load(Ordering::SeqCst) & LOCK != 0);
            if locked.is_empty() {
                return 0;
            }
            if look + 1 < LOOKS {
                wait();
            }
        }
        for first in &locked {
            self.table.word(*first).fetch_and(!LOCK, Ordering::SeqCst);
        }
        locked.len()
    }
}
