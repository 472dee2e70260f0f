//! Packets that a capture of all interfaces (`tcpdump -i any`) has several times.
//!
//! A packet through a bridge or to a container crosses several interfaces. The agent charges it once a direction, and so
//! does a replay: of equal frames within [`WINDOW`] on different interfaces, in one direction, the first one counts.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};

use common::packet::Direction;

use super::capture::CapturedPacket;

/// The most time between the first and the last interface of one packet.
const WINDOW: u64 = 10_000_000;
/// The most frames that are remembered.
const MOST: usize = 1 << 16;

/// The frames of the last moment.
#[derive(Debug, Default)]
pub struct Copies {
    hasher: RandomState,
    /// For each frame and direction, the interface and the time of the first one.
    first: HashMap<u64, (u32, u64)>,
    /// The same in the order of time.
    order: VecDeque<(u64, u64)>,
    /// The packets that were copies.
    pub count: u64,
    /// The interfaces on which they were.
    pub interfaces: Vec<u32>,
}

impl Copies {
    /// Whether a packet is a copy of one on another interface. Packets without a time are none.
    pub fn is_copy(&mut self, packet: &CapturedPacket<'_>) -> bool {
        let Some(now) = packet.nanoseconds else {
            return false;
        };
        while let Some((hash, at)) = self.order.front().copied() {
            if now.saturating_sub(at) <= WINDOW && self.order.len() < MOST {
                break;
            }
            self.order.pop_front();
            if self.first.get(&hash).is_some_and(|(_, of)| *of == at) {
                self.first.remove(&hash);
            }
        }
        let direction = packet
            .direction
            .map(|direction| direction == Direction::Egress);
        let hash = self
            .hasher
            .hash_one((packet.frame, packet.length, direction));
        match self.first.get(&hash) {
            Some((interface, at))
                if *interface != packet.interface && now.abs_diff(*at) <= WINDOW =>
            {
                self.count += 1;
                if !self.interfaces.contains(&packet.interface) {
                    self.interfaces.push(packet.interface);
                }
                true
            }
            _ => {
                self.first.insert(hash, (packet.interface, now));
                self.order.push_back((hash, now));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use common::packet::Link;

    use super::*;

    fn packet(frame: &[u8], interface: u32, microseconds: u64) -> CapturedPacket<'_> {
        CapturedPacket {
            nanoseconds: Some(1_000_000_000 + microseconds * 1_000),
            link: Link::Ethernet,
            frame,
            length: frame.len() as u32,
            interface,
            is_of_all_interfaces: true,
            direction: Some(Direction::Ingress),
        }
    }

    #[test]
    fn equal_frames_on_other_interfaces_are_copies_and_on_the_same_one_are_packets() {
        let mut copies = Copies::default();
        let mut counted = 0;
        // Ten equal frames, each on three interfaces.
        for nth in 0..10 {
            for interface in 1..=3 {
                let at = nth * 100 + u64::from(interface);
                counted += u64::from(!copies.is_copy(&packet(b"frame", interface, at)));
            }
        }
        assert_eq!((counted, copies.count), (10, 20));
        assert_eq!(copies.interfaces, [2, 3]);
        // Another direction, another frame, and much later.
        let egress = CapturedPacket {
            direction: Some(Direction::Egress),
            ..packet(b"frame", 2, 1_000)
        };
        assert!(!copies.is_copy(&egress));
        assert!(!copies.is_copy(&packet(b"other", 2, 1_000)));
        assert!(!copies.is_copy(&packet(b"frame", 2, 30_000)));
    }
}
