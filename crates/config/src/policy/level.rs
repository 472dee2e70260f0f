//! `levels` of `[[limit]]`: the same limit at wider keys.

use std::fmt;

use super::Multiplier;

/// The same limit at a wider key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    pub key: LevelKey,
    /// The factor on each rate and burst.
    pub factor: Multiplier,
}

/// The key of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelKey {
    /// The limit's key, with shorter prefixes of the address.
    Prefix { ipv4: u8, ipv6: u8 },
    /// The network (autonomous system) of the address; for an address in none, a prefix.
    Asn { ipv4: u8, ipv6: u8 },
    /// Everything that the limit applies to.
    All,
}

impl fmt::Display for LevelKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix { ipv4, ipv6 } => write!(formatter, "{ipv4}/{ipv6}"),
            Self::Asn { .. } => formatter.write_str("asn"),
            Self::All => formatter.write_str("all"),
        }
    }
}
