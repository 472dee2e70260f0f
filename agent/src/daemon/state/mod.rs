//! Files that survive a reboot, in the directory `[agent] state_dir`.

mod bans;
mod file;
mod journal;
mod keep;
mod restore;

pub use bans::save_bans;
pub use file::{MOST_TABLE_WORDS, Saved, SavedBan};
pub use host::{Moment, StateDirectory, StateError, StateLock};
pub use journal::BanJournal;
pub use keep::Keeping;
pub use restore::Restore;
