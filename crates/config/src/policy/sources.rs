//! The sources of a limit.

use std::fmt;
use std::net::IpAddr;

use super::Prefix;

/// The sources of a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitSources {
    /// Distinct prefixes, at least one. The longest one that contains an address decides.
    pub prefixes: Vec<SourcePrefix>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourcePrefix {
    pub prefix: Prefix,
    /// Whether it is an exclusion (`!`).
    pub is_excluded: bool,
}

impl LimitSources {
    /// Whether addresses outside of all prefixes are included: true if all prefixes are exclusions.
    #[must_use]
    pub fn includes_others(&self) -> bool {
        self.prefixes.iter().all(|it| it.is_excluded)
    }

    /// Whether the limit applies to an address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let around = self.prefixes.iter().filter(|it| it.prefix.contains(address));
        let longest = around.max_by_key(|it| it.prefix.mapped_length());
        longest.map_or_else(|| self.includes_others(), |it| !it.is_excluded)
    }

    /// The prefixes as written in limits.toml.
    #[must_use]
    pub fn texts(&self) -> Vec<String> {
        self.prefixes.iter().map(ToString::to_string).collect()
    }
}

impl fmt::Display for SourcePrefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}{}", if self.is_excluded { "!" } else { "" }, self.prefix.short())
    }
}
