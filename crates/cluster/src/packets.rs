//! The interface to the engine of limits on packets.

use std::error::Error;

use decide::EffectiveShare;

use super::member::Usage;

/// Why the engine's tables cannot be read or written.
pub type PacketsError = Box<dyn Error + Send + Sync>;

/// The packet engine of the config in effect. Without one, calls have no effect.
pub trait Packets: Send + Sync {
    /// Whether limits on packets are in effect.
    fn is_running(&self) -> bool;

    /// The demand for a limit, in its unit; `None` if there is no such limit, or it cannot be read now.
    fn demand(&self, limit: &str) -> Option<Usage>;

    /// Enforces this host's share of a limit from the next packet on.
    fn enforce(&self, limit: &str, in_effect: EffectiveShare);

    /// The limits with `cluster = "keys"`: name, burst, and packets a second.
    fn exchanged(&self) -> Vec<(String, u64, f64)>;

    /// The sources of a limit that the kernel samples.
    ///
    /// # Errors
    ///
    /// When the kernel's maps cannot be read.
    fn busy_sources(&self, limit: &str) -> Result<Vec<BusySource>, PacketsError>;

    /// Charges sources of a limit with what they passed on other hosts.
    ///
    /// # Errors
    ///
    /// When the kernel's table cannot be mapped.
    fn charge_beyond(&self, limit: &str, charges: &[Elsewhere]) -> Result<(), PacketsError>;
}

/// A source with its own state under a limit.
#[derive(Clone, Copy, Debug)]
pub struct BusySource {
    /// A number of its prefix, the same on every host.
    pub number: u64,
    /// Packets that passed.
    pub passed: u64,
    /// Packets that were refused.
    pub refused: u64,
    /// Used units of the limit.
    pub used: u64,
}

/// Units to charge to a source; negative units are returned.
#[derive(Clone, Copy, Debug)]
pub struct Elsewhere {
    pub source: u64,
    /// Units that other hosts passed.
    pub units: i64,
    /// The age of the first of them, in nanoseconds: the refill since then covers some.
    pub ago: u64,
}
