//! `weir top --by prefix`: the prefixes from which packets come, while somebody asks for them.
//!
//! The kernel programs put the sources of sampled packets into rings. A thread reads them, and adjusts the sample so that
//! it has a few thousand packets a second, however many come. It ends some seconds after the last query.

mod rate;
mod running;
mod watch;
mod watcher;

pub use watcher::PrefixWatcher;
