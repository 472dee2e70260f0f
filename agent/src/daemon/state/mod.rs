//! Files that survive a reboot, in the directory `[agent] state_dir`.

mod file;
mod keep;

pub use file::{MOST_TABLE_WORDS, Saved, SavedReason, StateDamaged};
pub use host::{Moment, StateDirectory, StateError, StateLock};
pub use keep::{Keeping, Restore};
