//! Files that survive a reboot, in the directory `[agent] state_dir`.

mod clock;
mod directory;
mod file;
mod keep;

pub use clock::Moment;
pub use directory::{StateDirectory, StateError, StateLock};
pub use file::{MOST_TABLE_WORDS, Saved, StateDamaged};
pub use keep::{Keeping, Restore};
