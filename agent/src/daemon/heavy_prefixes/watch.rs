//! The samples, shared by queries and the thread.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use heavy_prefixes::Window;

/// The samples, and whether they are taken.
pub(super) struct Watch {
    pub(super) window: Window,
    /// The last query.
    pub(super) requested_at: Instant,
    /// Whether there is a thread.
    pub(super) is_running: bool,
    pub(super) lost: u64,
}

pub(super) fn lock(watch: &Mutex<Watch>) -> MutexGuard<'_, Watch> {
    // After a panic elsewhere, some samples are missing.
    watch.lock().unwrap_or_else(PoisonError::into_inner)
}
