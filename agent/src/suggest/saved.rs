//! The state of a summary, to continue later.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::traffic::{ByWindow, ServiceTraffic, Unit};

/// The state of a [`super::Collector`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedCollector {
    /// From the first packet to the last.
    pub seconds: f64,
    /// Steps of 10 s with packets.
    pub active_steps: u64,
    pub packets: u64,
    pub others: u64,
    pub early: u64,
    /// With the sources that were summarised early.
    pub services: Vec<ServiceTraffic>,
    /// The other sources.
    pub sources: Vec<SavedSource>,
}

/// A source of a service.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedSource {
    /// The index in [`SavedCollector::services`].
    pub service: u32,
    pub address: IpAddr,
    /// As in [`super::SourceTraffic`].
    pub busiest: [ByWindow<u64>; Unit::ALL.len()],
    pub packets: u64,
    pub connections: u64,
    /// Connections that were opened and not completed.
    pub pending: u64,
    pub completed: u64,
    pub bytes: f64,
    /// The sum of the squares of the packets' lengths.
    pub squares: f64,
    pub active_steps: u64,
}

impl SavedCollector {
    /// Whether it can be one that was saved: sources are of its services, and parts are no more than the whole.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        let is_possible = |source: &SavedSource| {
            (source.service as usize) < self.services.len()
                && source.packets > 0
                && source.connections <= source.packets
                && source.pending.saturating_add(source.completed) <= source.connections
                && source.bytes >= 0.0
                && source.squares >= 0.0
        };
        let named = self.services.iter().flat_map(|service| {
            service
                .named
                .iter()
                .chain(service.sample.iter().map(|(_, source)| source))
        });
        (0.0..1e10).contains(&self.seconds)
            && self.active_steps < 1 << 32
            && self.packets < 1 << 60
            && self.sources.iter().all(is_possible)
            && self
                .sources
                .iter()
                .all(|source| source.packets < 1 << 48 && source.active_steps < 1 << 32)
            && named
                .into_iter()
                .all(|source| source.connections <= source.packets && source.packets < 1 << 48)
            && self
                .services
                .iter()
                .all(|service| service.packets < 1 << 60 && service.light_packets < 1 << 60)
    }
}
