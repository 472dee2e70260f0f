//! The host's facilities besides BPF: clocks, load, mounts, sockets, and files that survive a reboot.

pub mod clients;
pub mod clock;
pub mod descriptors;
pub mod load;
pub mod mounts;
mod state_directory;
pub mod syn_cookies;
pub mod unix_socket;

pub use clock::{Moment, monotonic_nanoseconds};
pub use mounts::{Mount, mounts};
pub use state_directory::{StateDirectory, StateError, StateLock, set_aside};
