//! The sources of a limit.

use std::fmt;
use std::net::IpAddr;

use super::{GeoKey, Prefix};

/// The sources of a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitSources {
    /// Distinct prefixes. The longest one that contains an address decides.
    pub prefixes: Vec<SourcePrefix>,
    /// Networks and countries.
    pub geo: Vec<GeoKey>,
    /// Their prefixes, by the databases: none within `prefixes`. Empty in a config that was only read.
    pub of_geo: Vec<Prefix>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourcePrefix {
    pub prefix: Prefix,
    /// Whether it is an exclusion (`!`).
    pub is_excluded: bool,
}

impl LimitSources {
    /// Whether addresses outside of all prefixes are included: true if all prefixes are exclusions, and there are no
    /// networks and countries.
    #[must_use]
    pub fn includes_others(&self) -> bool {
        self.geo.is_empty() && self.prefixes.iter().all(|it| it.is_excluded)
    }

    /// Whether the limit applies to an address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let longest = self
            .all()
            .filter(|it| it.prefix.contains(address))
            .max_by_key(|it| it.prefix.mapped_length());
        longest.map_or_else(|| self.includes_others(), |it| !it.is_excluded)
    }

    /// The prefixes as written in limits.toml, then networks and countries.
    #[must_use]
    pub fn texts(&self) -> Vec<String> {
        let prefixes = self.prefixes.iter().map(ToString::to_string);
        prefixes
            .chain(self.geo.iter().map(ToString::to_string))
            .collect()
    }

    /// With the prefixes of its networks and countries. A written prefix decides for all within it.
    #[must_use]
    pub fn with_prefixes(&self, of_geo: impl Iterator<Item = Prefix>) -> Self {
        let is_free = |prefix: &Prefix| {
            !self
                .prefixes
                .iter()
                .any(|written| written.prefix.covers(prefix))
        };
        let mut of_geo: Vec<Prefix> = of_geo.filter(is_free).collect();
        of_geo.sort_unstable();
        of_geo.dedup();
        Self {
            of_geo,
            ..self.clone()
        }
    }

    /// All prefixes, also those of networks and countries.
    pub fn all(&self) -> impl Iterator<Item = SourcePrefix> + '_ {
        let of_geo = self.of_geo.iter().map(|prefix| SourcePrefix {
            prefix: *prefix,
            is_excluded: false,
        });
        self.prefixes.iter().copied().chain(of_geo)
    }
}

impl fmt::Display for SourcePrefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{}{}",
            if self.is_excluded { "!" } else { "" },
            self.prefix.short()
        )
    }
}
