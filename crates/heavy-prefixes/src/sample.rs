//! Sampled packets.

use std::net::Ipv6Addr;
use std::time::Duration;

/// A sampled packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Its source; an IPv4 address is IPv4-mapped.
    pub source: Ipv6Addr,
    /// The packets that it stands for on the wire.
    pub packets: u32,
    /// Their bytes.
    pub bytes: u32,
    pub is_refused: bool,
}

/// The samples of a time in which one in so many packets was sampled, at random.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    pub samples: Vec<Sample>,
    /// One in this many packets is sampled; 1: all are.
    pub one_in: u32,
    pub length: Duration,
}
