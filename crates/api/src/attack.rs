//! Attacks on limits.

use serde::{Deserialize, Serialize};

/// An attack: a limit refuses many packets, and a large share of what it evaluates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Attack {
    pub limit: String,
    /// Seconds since 1970.
    pub started: f64,
    /// Seconds since 1970; `null` while it lasts.
    pub ended: Option<f64>,
    /// Refused packets per second, at the last measurement.
    pub refused_per_second: u64,
    /// The most refused packets per second.
    pub peak_per_second: u64,
    /// The share of the limit's packets that it refused so far, from 0 to 1.
    pub refused_share: f64,
    /// Refused packets so far.
    pub refused_packets: u64,
    /// The sources with the most refused packets.
    pub sources: Vec<AttackSource>,
}

/// A source of an attack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttackSource {
    pub source: String,
    /// Its refused packets during the attack, as far as its events report them.
    pub refused_packets: u64,
}
