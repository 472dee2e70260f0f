//! Releases locks of sets that a killed agent has left.
//!
//! A kernel program takes and releases a lock within one run, and a run always completes. An agent that copies states
//! into a table in use can be killed while it has a lock.

use std::sync::atomic::Ordering;

use common::table::LOCK;

use crate::table::sources::Sources;

/// How often a set must be found locked: a program that locks it for each packet may be seen once or twice.
const LOOKS: u32 = 8;

impl Sources {
    /// Unlocks sets whose owner was killed, and returns their number. `wait` returns when every program run that
    /// started before has ended.
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
