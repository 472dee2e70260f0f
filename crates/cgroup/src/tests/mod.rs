//! Tests with a fake host in a temporary directory: written values, and errors where that fails.

use std::sync::{Mutex, MutexGuard, PoisonError};

mod files;
mod lifted;
mod made_up;
mod owners;
mod services;
mod taken_back;
mod threads;

/// Until it is dropped, tests start no process: between its fork and its program it has a copy of each descriptor, so that
/// a closed end of a FIFO would still seem open.
pub fn without_new_processes() -> MutexGuard<'static, ()> {
    static STARTS: Mutex<()> = Mutex::new(());
    STARTS.lock().unwrap_or_else(PoisonError::into_inner)
}
