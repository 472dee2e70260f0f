//! The host's facilities besides BPF: clocks, load, mounts, sockets, and files that survive a reboot.

pub mod backoff;
pub mod clients;
pub mod clock;
pub mod descriptors;
pub mod listener;
pub mod load;
pub mod mounts;
pub mod names;
pub mod program;
pub mod read;
pub mod replace;
mod state_directory;
pub mod syn_cookies;
pub mod unix_socket;

pub use clock::{Moment, monotonic_nanoseconds};
pub use listener::Listener;
pub use mounts::{Mount, mounts};
pub use program::PROGRAM;
pub use state_directory::{Damaged, StateDirectory, StateError, StateLock, read_saved};
