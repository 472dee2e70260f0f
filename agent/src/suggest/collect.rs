//! Summarises packets as [`Traffic`], in bounded memory for any number of sources.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

use common::key::{HashSeed, Key};
use common::packet::{Address, Direction, Packet, Protocol};
use common::record::Recorded;
use common::rule::Size;
use foldhash::fast::RandomState;

use super::saved::{SavedCollector, SavedSource};
use super::traffic::{
    ByWindow, MOST_SERVICES, Service, ServiceTraffic, SourceTraffic, Traffic, Transport, Unit,
};
use super::window::Busiest;

/// The most sources of services at a time, some 300 to 700 bytes each.
const MOST_SOURCES: usize = 1 << 16;
/// The least number of a source's packets whose lengths are significant.
const TELLING: u64 = 20;
/// The most packets of a forged source.
const LIGHT: u64 = 3;
const SECOND: u64 = 1_000_000_000;
/// The length in seconds of steps in which a source is active or not.
const STEP: u64 = 10;
/// The first local port that Linux uses for outgoing connections (`net.ipv4.ip_local_port_range`).
const FIRST_EPHEMERAL: u16 = 32_768;
/// Ports below this are well known.
const WELL_KNOWN: u16 = 1_024;
/// Selects the sampled sources: the same for each capture, so that summaries can be merged.
const SEED: HashSeed = HashSeed::of_number(1);

/// A source of a service.
#[derive(Debug, Default)]
struct Record {
    busiest: Busiest,
    busiest_bytes: Busiest<u64>,
    /// Connections and requests, if the source has any.
    others: [Option<Box<Busiest>>; 2],
    packets: u64,
    connections: u64,
    /// Connections that were opened and not completed.
    pending: u64,
    completed: u64,
    bytes: f64,
    squares: f64,
    active_steps: u64,
    last_step: u64,
}

impl Record {
    fn add(&mut self, nanoseconds: u64, counted: &Recorded) {
        self.packets += counted.packets;
        self.busiest.add(nanoseconds, counted.packets);
        self.busiest_bytes.add(nanoseconds, counted.bytes);
        for (other, count) in self
            .others
            .iter_mut()
            .zip([counted.connections, counted.requests])
        {
            if count > 0 {
                other.get_or_insert_default().add(nanoseconds, count);
            }
        }
        self.bytes += counted.bytes as f64;
        self.squares += counted.squares as f64;
        let step = nanoseconds / (STEP * SECOND);
        if step != self.last_step {
            (self.last_step, self.active_steps) = (step, self.active_steps + 1);
        }
    }

    fn busiest(&self) -> [ByWindow<u64>; Unit::ALL.len()] {
        let other = |nth: usize| {
            self.others[nth]
                .as_ref()
                .map(|busiest| busiest.counts())
                .unwrap_or_default()
        };
        [
            self.busiest.counts(),
            other(0),
            other(1),
            self.busiest_bytes.counts(),
        ]
    }

    fn finish(&self, address: IpAddr) -> SourceTraffic {
        let mean = self.bytes / self.packets as f64;
        SourceTraffic {
            address,
            busiest: self.busiest(),
            packets: self.packets,
            connections: self.connections,
            deviation: (self.squares / self.packets as f64 - mean * mean)
                .max(0.0)
                .sqrt(),
            active_seconds: self.active_steps * STEP,
        }
    }
}

/// A service during the summary.
#[derive(Debug)]
struct Open {
    traffic: ServiceTraffic,
    completed: Busiest,
    unanswered: Busiest,
}

impl Open {
    /// Adds a source that is complete.
    fn summarise(&mut self, address: Address, record: &Record, named: Named) {
        let traffic = &mut self.traffic;
        let source = record.finish(IpAddr::from(Ipv6Addr::from(address.octets())).to_canonical());
        if record.packets <= LIGHT {
            traffic.light_sources += 1;
            traffic.light_packets += record.packets;
        }
        if source.only_opens() {
            let counts = source.busiest[Unit::Connections as usize];
            traffic
                .only_open
                .iter_mut()
                .zip(counts)
                .for_each(|(counts, count)| counts.add(count));
        } else {
            for (counts, busiest) in traffic.busiest.iter_mut().zip(source.busiest) {
                // A source without any connections or requests is not counted by them.
                if busiest[0] > 0 {
                    counts
                        .iter_mut()
                        .zip(busiest)
                        .for_each(|(counts, count)| counts.add(count));
                }
            }
            if record.packets >= TELLING {
                let key = Key {
                    hi: address.hi,
                    lo: address.lo,
                    ..Key::default()
                };
                traffic.offer(SEED.hash(&key).0, source.clone());
            }
        }
        if named == Named::Yes && record.packets > LIGHT {
            traffic.named.push(source);
        }
    }
}

/// Summarises packets.
///
/// When there are too many sources, the half with the fewest packets is summarised early (the bound of Misra and Gries,
/// 1982, as for the refused sources of a replay): a flood of forged sources makes room for others, not the reverse.
/// When there are too many services, those with the fewest packets are dropped; their packets count for their protocol.
#[derive(Debug)]
pub struct Collector {
    services: HashMap<Service, u32, RandomState>,
    open: HashMap<u32, Open, RandomState>,
    next: u32,
    sources: HashMap<(u32, Address), Record, RandomState>,
    capacity: usize,
    most_services: usize,
    /// The time before the collector continued a saved one, in seconds.
    earlier_seconds: f64,
    first: Option<u64>,
    last: u64,
    active_steps: u64,
    last_step: u64,
    packets: u64,
    others: u64,
    early: u64,
}

impl Default for Collector {
    fn default() -> Self {
        Self::with_capacity(MOST_SOURCES)
    }
}

impl Collector {
    /// Counts at most this many sources at a time.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            services: HashMap::default(),
            open: HashMap::default(),
            next: 0,
            sources: HashMap::default(),
            capacity,
            most_services: MOST_SERVICES,
            earlier_seconds: 0.0,
            first: None,
            last: 0,
            active_steps: 0,
            last_step: 0,
            packets: 0,
            others: 0,
            early: 0,
        }
    }

    /// The same with at most this many services, and with the memory for all sources: growth by doubling would temporarily
    /// take half as much again.
    #[must_use]
    pub fn reserved(mut self, most_services: usize) -> Self {
        self.most_services = most_services;
        self.sources.reserve(self.capacity);
        self
    }

    /// Records the time of a packet that no limit counts.
    pub fn pass(&mut self, nanoseconds: u64) {
        self.advance(nanoseconds);
        self.others += 1;
    }

    fn advance(&mut self, nanoseconds: u64) {
        self.first.get_or_insert(nanoseconds);
        self.last = self.last.max(nanoseconds);
        let step = nanoseconds / (STEP * SECOND);
        if step != self.last_step {
            (self.last_step, self.active_steps) = (step, self.active_steps + 1);
        }
    }

    /// Adds an incoming packet, at an instant that is no earlier than previous ones; `length` is its frame's.
    pub fn add(&mut self, nanoseconds: u64, packet: &Packet, length: u32) {
        let protocol = match packet.protocol {
            Protocol::Tcp => Transport::Tcp,
            Protocol::Udp => Transport::Udp,
            Protocol::Icmp => Transport::Icmp,
            Protocol::Other | Protocol::Hidden => return self.pass(nanoseconds),
        };
        if packet.is_essential {
            return self.pass(nanoseconds);
        }
        // The key of limits: IPv6 addresses by /64.
        let address = if packet.is_ipv4 {
            packet.source
        } else {
            Address {
                lo: 0,
                ..packet.source
            }
        };
        let port =
            packet
                .local_port(Direction::Ingress)
                .filter(|_| match (protocol, packet.ports()) {
                    (Transport::Tcp, _) => true,
                    // Not a reply to the host's own request.
                    (_, Some(ports)) => {
                        ports.source >= WELL_KNOWN || ports.destination < FIRST_EPHEMERAL
                    }
                    (_, None) => false,
                });
        let counted = Recorded::of(
            Size {
                packets: 1,
                bytes: length,
            },
            packet.kind,
        );
        self.add_counted(nanoseconds, protocol, port, address, &counted);
    }

    /// Adds incoming packets of a source, at an instant that is no earlier than previous ones. The port is `None` if
    /// they surely are for no service of this host.
    pub fn add_counted(
        &mut self,
        nanoseconds: u64,
        protocol: Transport,
        port: Option<u16>,
        address: Address,
        counted: &Recorded,
    ) {
        self.advance(nanoseconds);
        self.packets += counted.packets;
        let own = port.map(|port| Service {
            protocol,
            port: Some(port),
        });
        // A port to which nobody connects is one of the host's own connections.
        let is_open = |service: &Service| {
            protocol != Transport::Tcp
                || counted.connections > 0
                || self.services.contains_key(service)
        };
        let own = own.filter(is_open);
        for service in std::iter::once(Service {
            protocol,
            port: None,
        })
        .chain(own)
        {
            self.add_to(service, address, nanoseconds, counted);
        }
    }

    fn add_to(&mut self, service: Service, address: Address, nanoseconds: u64, counted: &Recorded) {
        let id = match self.services.get(&service) {
            Some(id) => *id,
            None => self.open_service(service),
        };
        if self.sources.len() >= self.capacity && !self.sources.contains_key(&(id, address)) {
            self.make_room();
        }
        let Some(open) = self.open.get_mut(&id) else {
            return;
        };
        open.traffic.packets += counted.packets;
        let record = self.sources.entry((id, address)).or_default();
        record.add(nanoseconds, counted);
        if service.protocol != Transport::Tcp {
            return;
        }
        let opened = counted.connections;
        if opened > 0 && record.completed == 0 {
            let first = LIGHT.saturating_sub(record.connections).min(opened);
            open.unanswered.add(nanoseconds, first);
        }
        record.connections += opened;
        record.pending += opened;
        let completed = record.pending.min(counted.packets.saturating_sub(opened));
        if completed > 0 {
            record.pending -= completed;
            record.completed += completed;
            open.completed.add(nanoseconds, completed);
        }
    }

    fn open_service(&mut self, service: Service) -> u32 {
        if self.services.len() >= self.most_services {
            self.forget_services();
        }
        let id = self.next;
        self.next += 1;
        self.services.insert(service, id);
        let traffic = ServiceTraffic::new(service);
        self.open.insert(
            id,
            Open {
                traffic,
                completed: Busiest::default(),
                unanswered: Busiest::default(),
            },
        );
        id
    }

    /// Drops the half of the services with the fewest packets.
    fn forget_services(&mut self) {
        let mut packets: Vec<u64> = self
            .open
            .values()
            .map(|open| open.traffic.packets)
            .collect();
        let middle = packets.len() / 2;
        let median = *packets.select_nth_unstable(middle).1;
        self.open
            .retain(|_, open| open.traffic.service.port.is_none() || open.traffic.packets > median);
        self.services.retain(|_, id| self.open.contains_key(id));
        self.sources.retain(|(id, _), _| self.open.contains_key(id));
    }

    /// Summarises the half of the sources with the fewest packets.
    fn make_room(&mut self) {
        let mut packets: Vec<u64> = self.sources.values().map(|record| record.packets).collect();
        let middle = packets.len() / 2;
        let median = *packets.select_nth_unstable(middle).1;
        // One by one: a copy of half of the sources would take as much memory as they do.
        let (open, early) = (&mut self.open, &mut self.early);
        self.sources.retain(|(id, address), record| {
            let is_kept = record.packets > median;
            if !is_kept {
                *early += 1;
                if let Some(open) = open.get_mut(id) {
                    open.summarise(*address, record, Named::No);
                }
            }
            is_kept
        });
    }

    /// The time from the first packet to the last, in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.earlier_seconds + (self.last - self.first.unwrap_or(self.last)) as f64 / SECOND as f64
    }

    /// The numbers of packets, of pairs of a source and a service, and of services.
    #[must_use]
    pub fn sizes(&self) -> (u64, u64, u64) {
        (
            self.packets,
            self.sources.len() as u64,
            self.services.len() as u64,
        )
    }

    /// The state, to continue later. Windows that are not over are cut here.
    #[must_use]
    pub fn save(&self) -> SavedCollector {
        let mut ids: Vec<u32> = self.open.keys().copied().collect();
        ids.sort_unstable();
        let service = |id: &u32| {
            let open = &self.open[id];
            let mut traffic = open.traffic.clone();
            (traffic.completed, traffic.unanswered) =
                (open.completed.counts(), open.unanswered.counts());
            traffic
        };
        let source = |((id, address), record): (&(u32, Address), &Record)| {
            Some(SavedSource {
                service: ids.binary_search(id).ok()? as u32,
                address: IpAddr::from(Ipv6Addr::from(address.octets())).to_canonical(),
                busiest: record.busiest(),
                packets: record.packets,
                connections: record.connections,
                pending: record.pending,
                completed: record.completed,
                bytes: record.bytes,
                squares: record.squares,
                active_steps: record.active_steps,
            })
        };
        SavedCollector {
            seconds: self.seconds(),
            active_steps: self.active_steps,
            packets: self.packets,
            others: self.others,
            early: self.early,
            services: ids.iter().map(service).collect(),
            sources: self.sources.iter().filter_map(source).collect(),
        }
    }

    /// Continues from a saved state.
    pub fn resume(&mut self, saved: SavedCollector) {
        self.earlier_seconds = saved.seconds;
        self.active_steps = saved.active_steps;
        (self.packets, self.others, self.early) = (saved.packets, saved.others, saved.early);
        for (id, traffic) in (0..).zip(saved.services) {
            self.services.insert(traffic.service, id);
            let (completed, unanswered) = (
                Busiest::of(traffic.completed),
                Busiest::of(traffic.unanswered),
            );
            self.open.insert(
                id,
                Open {
                    traffic,
                    completed,
                    unanswered,
                },
            );
            self.next = id + 1;
        }
        for source in saved.sources {
            let address = match source.address {
                IpAddr::V4(address) => Address::from_ipv4(address.octets()),
                IpAddr::V6(address) => Address::from_ipv6(address.octets()),
            };
            let [packets, connections, requests, bytes] = source.busiest;
            let other =
                |counts: ByWindow<u64>| (counts[0] > 0).then(|| Box::new(Busiest::of(counts)));
            let record = Record {
                busiest: Busiest::of(packets),
                busiest_bytes: Busiest::of(bytes),
                others: [other(connections), other(requests)],
                packets: source.packets,
                connections: source.connections,
                pending: source.pending,
                completed: source.completed,
                bytes: source.bytes,
                squares: source.squares,
                active_steps: source.active_steps,
                last_step: 0,
            };
            self.sources.insert((source.service, address), record);
        }
    }

    /// The summary of all packets.
    #[must_use]
    pub fn finish(mut self) -> Traffic {
        for ((id, address), record) in std::mem::take(&mut self.sources) {
            if let Some(open) = self.open.get_mut(&id) {
                open.summarise(address, &record, Named::Yes);
            }
        }
        let seconds = self.seconds();
        let active_seconds = self.active_steps * STEP;
        let close = |open: Open| {
            let mut traffic = open.traffic;
            (traffic.completed, traffic.unanswered) =
                (open.completed.counts(), open.unanswered.counts());
            traffic.keep_busiest(active_seconds);
            traffic
        };
        let mut traffic = Traffic {
            seconds,
            active_seconds,
            packets: self.packets,
            others: self.others,
            early: self.early,
            services: self.open.into_values().map(close).collect(),
        };
        traffic.order();
        traffic
    }
}

/// Whether a source can be a named one: those that were summarised early are the lightest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    Yes,
    No,
}

#[cfg(test)]
mod tests;
