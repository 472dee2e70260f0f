//! Files that survive a reboot, in the directory `[agent] state_dir`.

mod directory;

pub use directory::{StateDirectory, StateError};
