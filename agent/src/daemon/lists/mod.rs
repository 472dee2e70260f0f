//! Ban lists: reads their sources, and replaces the lists in the kernel as a whole.
//!
//! A thread waits for intervals and for changes of files. Each URL is fetched on a thread of its own, so that a slow
//! server delays nothing else. The lists of an earlier agent stay in effect until those of this one replace them.

mod effect;
mod forecast;
mod one;
mod own;
mod set;
mod source;
mod watch;
mod worker;

pub use forecast::{Forecast, forecast};
use one::One;
pub use set::BanLists;

use std::sync::Arc;

use config::policy::Config;
use host::StateDirectory;

use super::events::EventLog;
use super::packets::Packets;
use crate::geo::{ClassLists, Databases};

/// The contents of the lists of a config's classes before anything runs: files, and the last valid copies. The notes are
/// about sources that cannot be used.
#[must_use]
pub fn of_classes(config: &Config) -> (ClassLists, Vec<String>) {
    let state = StateDirectory::at(&config.agent.state_dir);
    let mut notes = Vec::new();
    let lists = ClassLists::of(config, |list| {
        let (prefixes, problem) = One::at_start(list, &state);
        notes.extend(problem.map(|problem| {
            let count = config::human::number(prefixes.len() as u64);
            format!(
                "ban list {:?}: {problem}; {count} prefixes of its last copy are in its class",
                list.name
            )
        }));
        prefixes
    });
    (lists, notes)
}

/// Puts the lists of a config in effect: files, and the last valid copies of URLs. URLs are fetched afterwards.
#[must_use]
pub fn start(
    config: &Config,
    databases: &Databases,
    packets: Packets,
    events: Arc<EventLog>,
) -> Arc<BanLists> {
    let (lists, messages) = BanLists::new(config, databases, packets, events);
    worker::start(Arc::downgrade(&lists), messages);
    lists
}
