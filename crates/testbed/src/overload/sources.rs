//! Groups of sources with rates that change while they send.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::packet::build::Frame;

use super::{MADE_UP, Rate};
use crate::network::{CLIENT_MAC, SERVER, SERVER_MAC};
use crate::stalls::Gaps;
use crate::wire::Sender;

/// The resolution of counts by time.
pub const BIN: Duration = Duration::from_millis(50);
/// 200 s; later units count in the last one.
const BINS: usize = 4_000;
/// The addresses of a group in one /24, unless it has others.
const IN_NETWORK: usize = 250;
/// The second byte of the first addresses.
const SECOND: u8 = 77;
/// The places of the checksum and of the payload in a frame.
const CHECKSUM: usize = 14 + 20 + 6;
const PAYLOAD: usize = 14 + 20 + 8;

/// Counts of units by the instant at which each was sent.
pub struct Bins(Vec<AtomicU32>);

impl Bins {
    fn new() -> Self {
        Self((0..BINS).map(|_| AtomicU32::new(0)).collect())
    }

    fn add(&self, bin: usize) {
        self.0[bin.min(BINS - 1)].fetch_add(1, Ordering::Relaxed);
    }

    /// The units of these bins.
    pub fn sum(&self, bins: Range<usize>) -> u64 {
        let range = bins.start.min(BINS)..bins.end.clamp(bins.start.min(BINS), BINS);
        let counts = self.0[range].iter();
        counts
            .map(|count| u64::from(count.load(Ordering::Relaxed)))
            .sum()
    }
}

/// Sources that send alike: 10.77.`network`.1 and the following addresses.
pub struct Group {
    network: u8,
    in_network: usize,
    number: usize,
    at_once: usize,
    is_random: bool,
    rate: Rate,
    /// Units that were sent, and those of them that were served.
    pub sent: Bins,
    pub served: Bins,
    by_source: Vec<AtomicU64>,
}

impl Group {
    /// So many sources, which send nothing yet and then one unit each in turn. 250 are of one /24, the next ones of the next.
    pub fn new(network: u8, number: usize) -> Self {
        Self {
            network,
            in_network: IN_NETWORK,
            number,
            at_once: 1,
            is_random: false,
            rate: Rate::new(0.0),
            sent: Bins::new(),
            served: Bins::new(),
            by_source: (0..number).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Each source is in a /24 of its own.
    #[must_use]
    pub fn in_networks_of_their_own(mut self) -> Self {
        self.in_network = 1;
        self
    }

    /// Each source sends so many units at once.
    #[must_use]
    pub fn at_once(mut self, units: usize) -> Self {
        self.at_once = units;
        self
    }

    /// Each unit is from a random source, so that their gaps are as random as those of independent clients.
    #[must_use]
    pub fn in_random_order(mut self) -> Self {
        self.is_random = true;
        self
    }

    /// From now on, all of its sources together send so many units a second.
    pub fn set_rate(&self, per_second: f64) {
        self.rate.set(per_second);
    }

    /// The address of a source.
    pub fn address(&self, source: usize) -> [u8; 4] {
        let (network, host) = (source / self.in_network, source % self.in_network);
        let network = usize::from(self.network) + network;
        [
            10,
            SECOND + (network >> 8) as u8,
            network as u8,
            host as u8 + 1,
        ]
    }

    pub fn addresses(&self) -> Vec<[u8; 4]> {
        (0..self.number)
            .map(|source| self.address(source))
            .collect()
    }

    fn source_of(&self, [_, second, third, host]: [u8; 4]) -> Option<usize> {
        let network = usize::from(second.checked_sub(SECOND)?) << 8 | usize::from(third);
        let network = network.checked_sub(self.network.into())?;
        let host = usize::from(host.checked_sub(1)?);
        let source = network * self.in_network + host;
        (host < self.in_network && source < self.number).then_some(source)
    }

    /// The share of the units sent in these bins that was served, from 0 to 1; `None` if none was sent.
    pub fn share(&self, bins: Range<usize>) -> Option<f64> {
        let sent = self.sent.sum(bins.clone());
        (sent > 0).then(|| self.served.sum(bins) as f64 / sent as f64)
    }

    /// The units of each source that were served so far.
    pub fn by_source(&self) -> Vec<u64> {
        let counts = self.by_source.iter();
        counts.map(|count| count.load(Ordering::Relaxed)).collect()
    }
}

/// A datagram or connection: its group, its source, and the bin in which it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    pub group: usize,
    pub source: usize,
    pub bin: usize,
}

/// Groups that send until they are stopped.
pub struct Sources {
    pub groups: Vec<Group>,
    start: Instant,
    stop: AtomicBool,
    pub gaps: Gaps,
}

impl Sources {
    pub fn new(groups: Vec<Group>) -> Self {
        Self {
            groups,
            start: Instant::now(),
            stop: AtomicBool::new(false),
            gaps: Gaps::default(),
        }
    }

    /// The time since their creation, and its present bin.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    pub fn now(&self) -> usize {
        (self.elapsed().as_nanos() / BIN.as_nanos()) as usize
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The unit of a datagram, by its address and content.
    pub fn unit(&self, datagram: &[u8], from: SocketAddr) -> Option<Unit> {
        let IpAddr::V4(from) = from.ip() else {
            return None;
        };
        let bin = u32::from_be_bytes(datagram.try_into().ok()?) as usize;
        let mut groups = self.groups.iter().enumerate();
        groups.find_map(|(group, one)| {
            let source = one.source_of(from.octets())?;
            Some(Unit { group, source, bin })
        })
    }

    /// Counts a unit as served.
    pub fn serve(&self, unit: Unit) {
        let group = &self.groups[unit.group];
        group.served.add(unit.bin);
        group.by_source[unit.source].fetch_add(1, Ordering::Relaxed);
    }

    /// Sends datagrams to a port of the server until they are stopped. Call it inside the client's namespace.
    pub fn send_datagrams(&self, port: u16) {
        let sender = Sender::new();
        let frames_of = |group: &Group| -> Vec<Vec<u8>> {
            let addresses = group.addresses().into_iter();
            addresses.map(|from| frame(from, port)).collect()
        };
        let mut frames: Vec<_> = self.groups.iter().map(frames_of).collect();
        let mut pace = Pace::new(self);
        while !self.is_stopped() {
            let bin = self.now();
            let units = pace.due(bin);
            for unit in &units {
                let frame = &mut frames[unit.group][unit.source];
                frame[PAYLOAD..PAYLOAD + 4].copy_from_slice(&(bin as u32).to_be_bytes());
            }
            let frame_of = |unit: &Unit| frames[unit.group][unit.source].as_slice();
            let due: Vec<&[u8]> = units.iter().map(frame_of).collect();
            sender.send_all(&due);
            self.gaps.mark();
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A datagram of four bytes that change: without a checksum.
pub fn frame(from: [u8; 4], port: u16) -> Vec<u8> {
    let mut frame = Frame::between(CLIENT_MAC, SERVER_MAC)
        .ipv4(from, SERVER)
        .udp(5000, port, &[0; 4])
        .build();
    frame[CHECKSUM..CHECKSUM + 2].fill(0);
    frame
}

/// The units that are due by the time that has passed.
pub struct Pace<'s> {
    sources: &'s Sources,
    last: Instant,
    /// Of each group: parts of units, and the next source.
    due: Vec<f64>,
    next: Vec<usize>,
    random: u64,
}

impl<'s> Pace<'s> {
    pub fn new(sources: &'s Sources) -> Self {
        Self {
            sources,
            last: Instant::now(),
            due: vec![0.0; sources.groups.len()],
            next: vec![0; sources.groups.len()],
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// The units that are due now, in random order, counted as sent in this bin.
    pub fn due(&mut self, bin: usize) -> Vec<Unit> {
        let elapsed = self.last.elapsed().min(MADE_UP).as_secs_f64();
        self.last = Instant::now();
        let (sources, mut units) = (self.sources, Vec::new());
        for (nth, group) in sources.groups.iter().enumerate() {
            self.due[nth] += elapsed * group.rate.get() / group.at_once as f64;
            while self.due[nth] >= 1.0 {
                self.due[nth] -= 1.0;
                let source = if group.is_random {
                    self.random_below(group.number)
                } else {
                    self.next[nth]
                };
                self.next[nth] = (source + 1) % group.number;
                for _ in 0..group.at_once {
                    group.sent.add(bin);
                    units.push(Unit {
                        group: nth,
                        source,
                        bin,
                    });
                }
            }
        }
        for place in (1..units.len()).rev() {
            units.swap(place, self.random_below(place + 1));
        }
        units
    }

    /// By xorshift64.
    fn random_below(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % bound as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_is_that_of_one_source() {
        let alone = Group::new(20, 3).in_networks_of_their_own();
        let many = Group::new(100, 100_000);
        let sources = Sources::new(vec![Group::new(2, 50), Group::new(8, 500), alone, many]);
        let of_many = [0, 38_999, 39_000, 99_999].map(|source| (3, source));
        let of_others = [
            (0, 0),
            (0, 49),
            (1, 0),
            (1, 249),
            (1, 250),
            (1, 499),
            (2, 0),
            (2, 2),
        ];
        for (group, source) in of_others.into_iter().chain(of_many) {
            let from = SocketAddr::from((sources.groups[group].address(source), 5000));
            let bin = 7;
            let unit = sources.unit(&7_u32.to_be_bytes(), from);
            assert_eq!(unit, Some(Unit { group, source, bin }));
        }
        assert_eq!(sources.groups[3].address(99_999), [10, 78, 243, 250]);
        for stranger in [[10, 77, 2, 51], [10, 77, 20, 2], [10, 78, 244, 1]] {
            let from = SocketAddr::from((stranger, 5000));
            assert_eq!(sources.unit(&[0; 4], from), None);
        }
        assert_eq!(
            sources.unit(&[0; 5], SocketAddr::from(([10, 77, 2, 1], 5000))),
            None
        );
    }

    #[test]
    fn a_share_is_of_what_was_sent_in_its_bins() {
        let group = Group::new(2, 1);
        for (bin, is_served) in [(3, true), (4, true), (4, false), (5, false)] {
            group.sent.add(bin);
            if is_served {
                group.served.add(bin);
            }
        }
        assert_eq!(group.share(4..5), Some(0.5));
        assert_eq!(group.share(3..6), Some(0.5));
        assert_eq!(group.share(6..9), None);
        group.sent.add(BINS + 5);
        assert_eq!(group.sent.sum(0..usize::MAX), 5);
    }

    #[test]
    fn units_become_due_by_rate_and_come_at_once() {
        let sources = Sources::new(vec![Group::new(1, 5), Group::new(3, 2).at_once(30)]);
        let mut pace = Pace::new(&sources);
        sources.groups[0].set_rate(1e6);
        sources.groups[1].set_rate(6e3);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(50) {
            pace.due(0);
        }
        // Also after a pause before the first.
        pace.due(0);
        // A pause of this thread may keep units from being made up for; their number never exceeds the rate.
        let most = start.elapsed().as_secs_f64() * 1e6 + 2e4;
        let sent = [0, 1].map(|group: usize| sources.groups[group].sent.sum(0..1));
        assert!(sent[0] > 0 && sent[0] as f64 <= most, "{sent:?}");
        assert_eq!(sent[1] % 30, 0);
    }
}
