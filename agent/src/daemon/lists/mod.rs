//! Ban lists: reads their sources, and replaces the lists in the kernel as a whole.
//!
//! A thread waits for intervals and for changes of files. Each URL is fetched on a thread of its own, so that a slow
//! server delays nothing else. The lists of an earlier agent stay in effect until those of this one replace them.

mod forecast;
mod one;
mod set;
mod source;
mod watch;
mod worker;

pub use forecast::notes as forecast;
pub use set::BanLists;

use std::sync::Arc;

use config::policy::Config;

use super::events::EventLog;
use super::packets::Packets;
use crate::geo::Databases;

/// Puts the lists of a config in effect: files, and the last valid copies of URLs. URLs are fetched afterwards.
#[must_use]
pub fn start(config: &Config, databases: &Databases, packets: Packets, events: Arc<EventLog>) -> Arc<BanLists> {
    let (lists, messages) = BanLists::new(config, databases, packets, events);
    worker::start(Arc::downgrade(&lists), messages);
    lists
}
