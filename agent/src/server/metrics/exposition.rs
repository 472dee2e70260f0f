//! Converts the agent's documents to metrics.

mod agent;
mod bans;
mod cluster;
mod fair;
mod groups;
mod limits;
mod notifications;
mod packets;
mod page;
mod rules;
#[cfg(test)]
pub(super) mod tests;

use cgroup::GroupStatus;
use prometheus::process_collector::ProcessCollector;
use prometheus::{Error, Registry, TextEncoder};

use super::ledger::Ledger;
use crate::stats::{LimitStatus, Status};
use page::Page;

/// The documents from which metrics are made.
#[derive(Clone, Debug, Default)]
pub struct Documents {
    /// The agent's status.
    pub status: Status,
    /// All limits, on packets and on requests.
    pub limits: Vec<LimitStatus>,
    /// All process groups.
    pub groups: Vec<GroupStatus>,
}

/// Families of counters that `weir limits --reset-counters` sets to 0.
const OF_LIMITS: [&str; 3] = ["weir_limit_", "weir_decisions_", "weir_waited_"];

/// Writes the text. Keeps values between scrapes, so that counters never decrease.
pub struct Exposition {
    ledger: Ledger,
    /// The number of resets of the limits' counters at the last scrape.
    resets: u64,
    process: Registry,
}

impl Exposition {
    /// With the metrics of this process.
    ///
    /// # Errors
    ///
    /// When the process's own metrics are not available.
    pub fn new() -> Result<Self, Error> {
        let process = Registry::new();
        process.register(Box::new(ProcessCollector::for_self()))?;
        Ok(Self {
            ledger: Ledger::default(),
            resets: 0,
            process,
        })
    }

    /// The text.
    ///
    /// # Errors
    ///
    /// When a value is not a valid metric, which is a bug in Weir.
    pub fn text(&mut self, documents: &Documents) -> Result<String, Error> {
        if self.resets != documents.status.counter_resets {
            self.resets = documents.status.counter_resets;
            self.ledger
                .restart(|series| OF_LIMITS.iter().any(|family| series.starts_with(family)));
        }
        let mut page = Page {
            registry: Registry::new(),
            ledger: &mut self.ledger,
        };
        page.agent(&documents.status)?;
        page.packets(&documents.status)?;
        page.limits(&documents.limits)?;
        page.groups(&documents.groups)?;
        page.notifications(&documents.status.notifications)?;
        page.attacks(&documents.status, &documents.limits)?;
        page.fair(&documents.status.fair)?;
        if let Some(cluster) = &documents.status.cluster {
            page.cluster(cluster)?;
        }
        if let Some(crowdsec) = &documents.status.crowdsec {
            page.crowdsec(crowdsec)?;
        }
        page.rules(&documents.status.rules)?;
        let mut families = page.registry.gather();
        families.extend(self.process.gather());
        self.ledger.end_round();
        TextEncoder::new().encode_to_string(&families)
    }
}
