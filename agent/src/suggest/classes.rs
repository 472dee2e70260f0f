//! Classes for the few sources that exceed their limits but otherwise resemble most sources.
//!
//! A source gets a class only on evidence. All of these are required:
//!
//! - it was active in at least half of the capture, in steps of 10 s: a flood starts and ends;
//! - the lengths of its packets vary like those of others: at least a quarter of their median standard deviation;
//! - for TCP, it has as many packets per connection as others: at least half of the value that 95 % of them reach;
//! - it requires at most [`LARGEST_MULTIPLIER`] times the limits;
//! - such sources are few: at most [`MOST`], and at most 2 % of the service's sources. More of them are a crowd, and a
//!   crowd of similar sources may be an attack: then none gets a class.

use std::collections::BTreeMap;
use std::net::IpAddr;

use config::human::number;
use serde::Serialize;

use super::limit::{Exceeding, SuggestedLimit};
use super::traffic::{Service, ServiceTraffic, SourceTraffic, Traffic, Transport, WINDOWS};

pub const LARGEST_MULTIPLIER: u32 = 50;
/// The possible multipliers, so that there are few classes.
const MULTIPLIERS: [u32; 6] = [2, 3, 5, 10, 20, LARGEST_MULTIPLIER];
/// The most sources in classes.
const MOST: usize = 16;
/// The reciprocal of the largest share of a service's sources in classes.
const ONE_IN: u64 = 50;
/// The factor between the needs of a class's sources and its allowance.
const MARGIN: f64 = 1.5;
/// The number of sources that a limit's basis lists.
const NAMED: usize = 3;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SuggestedClass {
    /// Its name in the config.
    pub name: String,
    /// The factor on the limits.
    pub multiplier: u32,
    pub sources: Vec<ClassSource>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassSource {
    /// The address; of IPv6 the first of the /64.
    pub address: IpAddr,
    /// The limit that it exceeds most.
    pub limit: String,
    /// As in [`Exceeding`].
    pub value: u64,
    /// As in [`Exceeding`].
    pub window_seconds: u64,
    /// Packets per connection; `null` without connections.
    pub packets_per_connection: Option<f64>,
    /// The share of the capture in which it was active.
    pub active: f64,
}

/// The properties of most sources of a service.
pub(super) struct Bulk {
    /// The median standard deviation of packets' lengths.
    deviation: f64,
    /// Packets per connection that 95 % of sources reach.
    per_connection: f64,
}

impl Bulk {
    /// From the sampled sources that exceed no limit.
    pub(super) fn of(service: &ServiceTraffic, limits: &[&SuggestedLimit]) -> Self {
        let is_within = |source: &&SourceTraffic| {
            limits
                .iter()
                .all(|limit| limit.factor(&source.busiest[limit.unit as usize]).0 <= 1.0)
        };
        let sources: Vec<&SourceTraffic> = service
            .sample
            .iter()
            .map(|(_, source)| source)
            .filter(is_within)
            .collect();
        let opening = || sources.iter().filter(|source| source.connections > 0);
        Self {
            deviation: at(sources.iter().map(|source| source.deviation).collect(), 0.5),
            per_connection: at(
                opening()
                    .map(|source| source.packets_per_connection())
                    .collect(),
                0.05,
            ),
        }
    }

    /// The reason why a source differs from them.
    pub(super) fn unlike(
        &self,
        source: &SourceTraffic,
        protocol: Transport,
        active_seconds: u64,
    ) -> Option<&'static str> {
        if source.only_opens() {
            Some("only opens connections")
        } else if !source.is_lasting(active_seconds) {
            Some("was active for less than half of the capture")
        } else if source.deviation * 4.0 < self.deviation {
            Some("its packets are all of one length")
        } else if protocol == Transport::Tcp
            && source.connections > 0
            && source.packets_per_connection() * 2.0 < self.per_connection
        {
            Some("has fewer packets per connection than others")
        } else {
            None
        }
    }
}

/// The value that this share of the values does not exceed.
fn at(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let place = (values.len() as f64 * share) as usize;
    values.get(place).copied().unwrap_or(0.0)
}

/// A source over all its services.
struct Candidate {
    factor: f64,
    source: ClassSource,
    unlike: Option<&'static str>,
}

/// Lists the busiest sources of each limit, and makes classes of those that qualify.
pub(super) fn classes(
    traffic: &Traffic,
    limits: &mut [SuggestedLimit],
    notes: &mut Vec<String>,
) -> Vec<SuggestedClass> {
    let mut candidates: BTreeMap<IpAddr, Candidate> = BTreeMap::new();
    let mut named: BTreeMap<(Service, super::traffic::Unit), Vec<Exceeding>> = BTreeMap::new();
    let mut most = MOST as u64;
    for service in &traffic.services {
        let own: Vec<&SuggestedLimit> = limits
            .iter()
            .filter(|limit| limit.service == service.service)
            .collect();
        let bulk = Bulk::of(service, &own);
        for limit in &own {
            let mut is_exceeded = false;
            for source in &service.named {
                let (factor, window) = limit.factor(&source.busiest[limit.unit as usize]);
                if factor <= 1.0 {
                    continue;
                }
                is_exceeded = true;
                let unlike = bulk.unlike(source, service.service.protocol, traffic.active_seconds);
                let (value, window_seconds) =
                    (source.busiest[limit.unit as usize][window], WINDOWS[window]);
                let row = Exceeding {
                    address: source.address,
                    value,
                    window_seconds,
                    factor,
                    unlike,
                };
                named
                    .entry((limit.service, limit.unit))
                    .or_default()
                    .push(row);
                let new = Candidate {
                    factor,
                    source: ClassSource {
                        address: source.address,
                        limit: limit.name(),
                        value,
                        window_seconds,
                        packets_per_connection: (source.connections > 0)
                            .then(|| source.packets_per_connection()),
                        active: (source.active_seconds as f64
                            / traffic.active_seconds.max(1) as f64)
                            .min(1.0),
                    },
                    unlike,
                };
                match candidates.get_mut(&source.address) {
                    None => drop(candidates.insert(source.address, new)),
                    Some(known) => {
                        let unlike = known.unlike.or(unlike);
                        if factor > known.factor {
                            *known = new;
                        }
                        known.unlike = unlike;
                    }
                }
            }
            if is_exceeded {
                most = most.min(limit.basis.sources / ONE_IN);
            }
        }
    }
    for limit in limits.iter_mut() {
        let mut rows = named
            .remove(&(limit.service, limit.unit))
            .unwrap_or_default();
        rows.sort_by(|one, other| {
            other
                .factor
                .total_cmp(&one.factor)
                .then(one.address.cmp(&other.address))
        });
        rows.truncate(NAMED);
        limit.basis.busiest = rows;
    }
    let multiplier = |factor: f64| {
        MULTIPLIERS
            .into_iter()
            .find(|multiplier| f64::from(*multiplier) >= factor * MARGIN)
    };
    let alike: Vec<Candidate> = candidates
        .into_values()
        .filter(|candidate| candidate.unlike.is_none())
        .collect();
    if alike.len() as u64 > most {
        notes.push(format!(
            "{} sources exceed limits and otherwise resemble most sources; more than {most} may be an attack, so none gets a \
             class. Put those that you know into a [[class]]",
            number(alike.len() as u64)
        ));
        return Vec::new();
    }
    let mut classes: BTreeMap<u32, Vec<ClassSource>> = BTreeMap::new();
    for Candidate { factor, source, .. } in alike {
        match multiplier(factor) {
            Some(multiplier) => classes.entry(multiplier).or_default().push(source),
            None => notes.push(format!(
                "{} exceeds {} {factor:.0} times and gets no class: the largest multiplier is {LARGEST_MULTIPLIER}. If you \
                 know it, put it into a [[class]] or into never_limit",
                source.address, source.limit
            )),
        }
    }
    let class = |(multiplier, sources): (u32, Vec<ClassSource>)| SuggestedClass {
        name: format!("heavy-{multiplier}x"),
        multiplier,
        sources,
    };
    classes.into_iter().map(class).collect()
}
