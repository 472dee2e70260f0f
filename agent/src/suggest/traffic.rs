//! Traffic summarised by source: the input of a decision, without packets.
//!
//! Serialisable and mergeable. Bounded: a histogram for each unit and window, and a list of named sources, for at most
//! [`MOST_SERVICES`] services.

use std::fmt;
use std::net::IpAddr;

use hdrhistogram::Histogram;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The lengths of the windows in which sources are counted, in seconds.
pub const WINDOWS: [u64; 5] = [1, 10, 60, 600, 3_600];
/// The most services: protocols, and local ports of TCP and UDP.
pub const MOST_SERVICES: usize = 512;
/// The most named sources of a service: the busiest of those that were active for half of the time, and as many of the
/// others.
pub const NAMED: usize = 4_096;
/// The number of sampled sources of a service.
pub const SAMPLED: usize = 256;

/// The largest count in a file: a host's bytes of 3 days at 100 Gbit/s.
const LARGEST_COUNT: u64 = 1 << 48;

/// A unit of limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    Packets,
    /// TCP SYNs.
    Connections,
    /// HTTP/1.x request lines, and DNS queries.
    Requests,
    /// Of whole frames, as limits count them.
    Bytes,
}

impl Unit {
    /// All units, in the order of arrays by unit.
    pub const ALL: [Self; 4] = [
        Self::Packets,
        Self::Connections,
        Self::Requests,
        Self::Bytes,
    ];

    /// The name in configs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::Connections => "connections",
            Self::Requests => "requests",
            Self::Bytes => "bytes",
        }
    }
}

/// Protocols that limits distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    Tcp,
    Udp,
    /// ICMP and ICMPv6.
    Icmp,
}

impl Transport {
    /// The name in configs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
        }
    }
}

/// A protocol and local port, or all packets of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Service {
    pub protocol: Transport,
    /// The local port; `None` for all packets of the protocol.
    pub port: Option<u16>,
}

impl fmt::Display for Service {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.protocol {
            Transport::Tcp => "TCP",
            Transport::Udp => "UDP",
            Transport::Icmp => "ICMP",
        };
        match self.port {
            Some(port) => write!(out, "{name} port {port}"),
            None => write!(out, "all {name}"),
        }
    }
}

/// A histogram of sources by count: exact up to 255, above that within 1 %.
#[derive(Clone, Debug)]
pub struct Counts(Histogram<u64>);

impl Default for Counts {
    fn default() -> Self {
        Self(Histogram::new(2).unwrap_or_else(|_| unreachable!("two digits are supported")))
    }
}

impl Counts {
    /// Adds a source.
    pub fn add(&mut self, count: u64) {
        self.add_several(count, 1);
    }

    /// The number of sources.
    #[must_use]
    pub fn sources(&self) -> u64 {
        self.0.len()
    }

    /// Each count and its number of sources, the lowest first.
    pub fn rows(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0
            .iter_recorded()
            .map(|row| (row.value_iterated_to(), row.count_at_value()))
    }

    /// The number of sources with a higher count.
    #[must_use]
    pub fn above(&self, count: u64) -> u64 {
        self.rows()
            .filter(|(value, _)| *value > count)
            .map(|(_, sources)| sources)
            .sum()
    }

    /// The lowest count that this share of the sources with at most `highest` does not exceed.
    #[must_use]
    pub fn quantile(&self, share: f64, highest: u64) -> u64 {
        let within = || self.rows().take_while(|(value, _)| *value <= highest);
        let sources: u64 = within().map(|(_, sources)| sources).sum();
        let wanted = (share * sources as f64).ceil() as u64;
        let mut below = 0;
        let found = within().find(|(_, sources)| {
            below += sources;
            below >= wanted
        });
        found.map_or(0, |(value, _)| value)
    }

    /// The same without sources with these counts.
    #[must_use]
    pub fn without(&self, counts: impl Iterator<Item = u64>) -> Self {
        let mut removed = Self::default();
        counts.for_each(|count| removed.add(count));
        let mut rest = self.clone();
        // Fails only if there is nothing to remove.
        let _ = rest.0.subtract(&removed.0);
        rest
    }

    fn merge(&mut self, other: &Self) {
        other
            .rows()
            .for_each(|(value, sources)| self.add_several(value, sources));
    }

    fn add_several(&mut self, count: u64, sources: u64) {
        // Fails only for a histogram of fixed size.
        let _ = self.0.record_n(count.min(LARGEST_COUNT), sources);
    }
}

impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.rows())
    }
}

impl<'de> Deserialize<'de> for Counts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut counts = Self::default();
        for (value, sources) in Vec::<(u64, u64)>::deserialize(deserializer)? {
            // Bounds the memory, and sums of counts.
            if value > LARGEST_COUNT || sources > LARGEST_COUNT {
                return Err(serde::de::Error::custom("a count is too large"));
            }
            counts
                .0
                .record_n(value, sources)
                .map_err(serde::de::Error::custom)?;
        }
        Ok(counts)
    }
}

pub type ByWindow<T> = [T; WINDOWS.len()];

/// One source of one service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourceTraffic {
    /// The address; of IPv6 the first of the /64.
    pub address: IpAddr,
    /// The highest count in a window, by unit.
    pub busiest: [ByWindow<u64>; Unit::ALL.len()],
    pub packets: u64,
    /// TCP SYNs.
    pub connections: u64,
    /// Standard deviation of the packets' lengths, in bytes.
    pub deviation: f64,
    /// Seconds in which it was active, in steps of 10.
    pub active_seconds: u64,
}

impl SourceTraffic {
    /// Whether it only opens connections: fewer other packets than half its SYNs. Each connection of a real client has
    /// two or more.
    #[must_use]
    pub const fn only_opens(&self) -> bool {
        self.connections > 0 && (self.packets - self.connections) * 2 < self.connections
    }

    /// Whether it was active for at least half of the seconds in which any source was.
    #[must_use]
    pub const fn is_lasting(&self, active_seconds: u64) -> bool {
        self.active_seconds * 2 >= active_seconds
    }

    #[must_use]
    pub fn packets_per_connection(&self) -> f64 {
        self.packets as f64 / self.connections.max(1) as f64
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServiceTraffic {
    pub service: Service,
    pub packets: u64,
    /// By unit and window: each source's highest count. Without sources that only open connections.
    pub busiest: [ByWindow<Counts>; Unit::ALL.len()],
    /// By window: the most SYNs of each source that only opens connections.
    pub only_open: ByWindow<Counts>,
    /// Packets of sources with at most three.
    pub light_packets: u64,
    /// The number of such sources.
    pub light_sources: u64,
    /// The most completed connections of all sources in a window.
    pub completed: ByWindow<u64>,
    /// The most initial SYNs, at most three per source, of sources without a completed connection.
    pub unanswered: ByWindow<u64>,
    /// The busiest sources: of those that were active for half of the time, and of the others.
    pub named: Vec<SourceTraffic>,
    /// Sources with 20 packets or more, chosen by a hash of their address; each with that hash.
    pub sample: Vec<(u64, SourceTraffic)>,
}

impl ServiceTraffic {
    pub(super) fn new(service: Service) -> Self {
        Self {
            service,
            packets: 0,
            busiest: Default::default(),
            only_open: Default::default(),
            light_packets: 0,
            light_sources: 0,
            completed: Default::default(),
            unanswered: Default::default(),
            named: Vec::new(),
            sample: Vec::new(),
        }
    }

    /// Adds the source to the sample if its hash is among the lowest.
    pub(super) fn offer(&mut self, hash: u64, source: SourceTraffic) {
        let place = self.sample.partition_point(|(other, _)| *other < hash);
        if place < SAMPLED
            && self
                .sample
                .get(place)
                .is_none_or(|(other, _)| *other != hash)
        {
            self.sample.insert(place, (hash, source));
            self.sample.truncate(SAMPLED);
        }
    }

    /// Reduces the named sources to the busiest.
    pub(super) fn keep_busiest(&mut self, active_seconds: u64) {
        self.named
            .sort_by_key(|source| std::cmp::Reverse((source.packets, source.address)));
        let mut room = [NAMED; 2];
        self.named.retain(|source| {
            let room = &mut room[usize::from(source.is_lasting(active_seconds))];
            let is_kept = *room > 0;
            *room = room.saturating_sub(1);
            is_kept
        });
    }

    fn merge(&mut self, other: &Self, active_seconds: u64) {
        self.packets += other.packets;
        let all = |service: &Self| {
            service
                .busiest
                .iter()
                .flatten()
                .chain(&service.only_open)
                .cloned()
                .collect::<Vec<_>>()
        };
        let own = self.busiest.iter_mut().flatten().chain(&mut self.only_open);
        own.zip(all(other))
            .for_each(|(own, other)| own.merge(&other));
        self.light_packets += other.light_packets;
        self.light_sources += other.light_sources;
        for (own, other) in [
            (&mut self.completed, &other.completed),
            (&mut self.unanswered, &other.unanswered),
        ] {
            own.iter_mut()
                .zip(other)
                .for_each(|(own, other)| *own = (*own).max(*other));
        }
        for source in &other.named {
            match self
                .named
                .iter_mut()
                .find(|own| own.address == source.address)
            {
                Some(own) => own.merge(source),
                None => self.named.push(source.clone()),
            }
        }
        self.keep_busiest(active_seconds);
        other
            .sample
            .iter()
            .for_each(|(hash, source)| self.offer(*hash, source.clone()));
    }
}

impl SourceTraffic {
    fn merge(&mut self, other: &Self) {
        let own = self.busiest.iter_mut().flatten();
        own.zip(other.busiest.iter().flatten())
            .for_each(|(own, other)| *own = (*own).max(*other));
        let (packets, others) = (self.packets as f64, other.packets as f64);
        self.deviation =
            (self.deviation * packets + other.deviation * others) / (packets + others).max(1.0);
        self.packets += other.packets;
        self.connections += other.connections;
        self.active_seconds += other.active_seconds;
    }
}

/// Incoming traffic.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// The time from the first packet to the last.
    pub seconds: f64,
    /// Seconds with packets, in steps of 10: without the pauses between captures.
    pub active_seconds: u64,
    /// Summarised packets.
    pub packets: u64,
    /// Packets that no limit would count: not IP, malformed, essential, of other protocols, outgoing.
    pub others: u64,
    /// Sources that were summarised early to make room. One that returned is counted again.
    pub early: u64,
    /// Services, most packets first.
    pub services: Vec<ServiceTraffic>,
}

impl Traffic {
    /// Adds the traffic of another span of time. A source of both is counted twice; packets across the boundary are not
    /// counted as one window.
    pub fn merge(&mut self, other: &Self) {
        self.seconds += other.seconds;
        self.active_seconds += other.active_seconds;
        self.packets += other.packets;
        self.others += other.others;
        self.early += other.early;
        for service in &other.services {
            match self
                .services
                .iter_mut()
                .find(|own| own.service == service.service)
            {
                Some(own) => own.merge(service, self.active_seconds),
                None => self.services.push(service.clone()),
            }
        }
        self.order();
    }

    /// Sorts the services, and drops those beyond the maximum.
    pub(super) fn order(&mut self) {
        self.services.sort_by_key(|service| {
            (
                service.service.port.is_some(),
                std::cmp::Reverse(service.packets),
                service.service,
            )
        });
        self.services.truncate(MOST_SERVICES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_sources_below() {
        let mut counts = Counts::default();
        (1..=100).for_each(|count| counts.add(count));
        (0..50).for_each(|_| counts.add(100_000));
        assert_eq!((counts.sources(), counts.above(100)), (150, 50));
        assert_eq!(
            (
                counts.quantile(0.5, 100),
                counts.quantile(0.99, 100),
                counts.quantile(1.0, 100)
            ),
            (50, 99, 100)
        );
        assert!(counts.quantile(0.99, u64::MAX).abs_diff(100_000) <= 1_000);
        assert_eq!(Counts::default().quantile(0.5, 100), 0);
    }

    #[test]
    fn counts_survive_being_written_and_read() {
        let mut counts = Counts::default();
        [0, 1, 1, 7, 300, 4_000_000_000]
            .iter()
            .for_each(|count| counts.add(*count));
        let text = serde_json::to_string(&counts).unwrap();
        let read: Counts = serde_json::from_str(&text).unwrap();
        assert_eq!(
            read.rows().collect::<Vec<_>>(),
            counts.rows().collect::<Vec<_>>()
        );
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
    }
}
