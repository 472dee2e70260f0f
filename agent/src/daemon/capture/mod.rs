//! `weir record --capture`: packets for `weir replay`, for one client at a time.
//!
//! The kernel programs put packets into rings. The thread of a capture reads them every few milliseconds, and sends blocks
//! of pcapng to the client, which writes the file. The capture lasts as long as its client, and no longer than its time.

mod capturer;
mod running;

pub use capturer::{CaptureParts, Capturer};
