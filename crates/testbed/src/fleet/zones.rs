//! A fleet in several zones, each with a store of its own, at a distance from the store of all zones.

use std::net::SocketAddr;
use std::time::Duration;

use super::{BURST, Host, RATE};
use crate::delay::delayed;
use crate::redis::Redis;
use crate::wait::PATIENCE;

/// The zones' stores, the store of all zones, and the hosts, zone by zone.
pub struct Zones {
    pub stores: Vec<Redis>,
    pub all: Redis,
    pub hosts: Vec<Host>,
    /// Hosts of each zone.
    pub each: usize,
    far: SocketAddr,
    lines: String,
}

impl Zones {
    /// Starts `each` hosts in each of `zones`, with a way to the store of all zones that takes `one_way`. `lines` follow in
    /// `[cluster]`.
    pub fn start(zones: usize, each: usize, one_way: Duration, lines: &str) -> Self {
        let all = Redis::start(&[]);
        let far = delayed(SocketAddr::from(([127, 0, 0, 1], all.port())), one_way);
        let mut fleet = Self {
            stores: (0..zones).map(|_| Redis::start(&[])).collect(),
            all,
            hosts: Vec::new(),
            each,
            far,
            lines: lines.to_owned(),
        };
        for nth in 0..zones * each {
            let host = fleet.host(nth);
            fleet.hosts.push(host);
        }
        fleet
    }

    /// Starts a host of a number.
    pub fn host(&self, nth: usize) -> Host {
        Host::start(
            &format!("host-{nth}"),
            &self.cluster(nth / self.each),
            &Self::limit(),
        )
    }

    /// The lines of the limit.
    pub fn limit() -> String {
        format!("cluster = \"shares\"\nrate = \"{RATE}/s\"\nburst = {BURST}")
    }

    /// The lines of `[cluster]` for a zone's hosts.
    pub fn cluster(&self, zone: usize) -> String {
        let own = self.stores[zone].url();
        let cluster = self.without_zones();
        format!("{cluster}[cluster.zone]\nname = \"zone-{zone}\"\nstore = {own:?}\n")
    }

    /// The same without zones.
    pub fn without_zones(&self) -> String {
        format!("store = \"redis://{}\"\n{}\n", self.far, self.lines)
    }

    /// Waits until the zones have equal shares, as without demand.
    pub fn divided(&self) {
        self.joined();
        let equal = 1.0 / self.stores.len() as f64;
        for host in &self.hosts {
            host.until(PATIENCE, "with an equal share of its zone", |cluster| {
                let share = cluster["limits"][0]["zone_share"].as_f64();
                share.is_some_and(|share| (share - equal).abs() < 0.01)
            });
        }
    }

    /// Waits until each host has a lease, and knows of all zones and of the hosts of its own.
    pub fn joined(&self) {
        let zones = self.stores.len();
        for host in &self.hosts {
            host.until(PATIENCE, "joined", |cluster| {
                let limit = &cluster["limits"][0];
                limit["share_from"] == "lease"
                    && limit["zones"] == zones
                    && limit["hosts"] == self.each
            });
        }
    }
}
