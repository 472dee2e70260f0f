//! Networks and countries by the databases of `[geo]`.

use std::fmt;
use std::sync::Arc;

use super::Prefix;

/// All prefixes of a database of networks, each with the number of its network ([`common::network`]). Copies share them.
pub type Networks = Arc<Vec<(Prefix, u32)>>;

/// A database of `[geo]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GeoKind {
    Asn,
    Country,
}

/// An entry of `asn` or `country` in a class or a ban list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GeoKey {
    /// The number of an autonomous system, from 1.
    Asn(u32),
    Country(Country),
}

/// A country's code by ISO 3166-1, in capitals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Country([u8; 2]);

impl GeoKind {
    pub const ALL: [Self; 2] = [Self::Asn, Self::Country];

    /// The key in limits.toml.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Asn => "asn",
            Self::Country => "country",
        }
    }
}

impl GeoKey {
    /// Those of the keys `asn` and `country`.
    pub(crate) fn all(asn: &[u32], country: &[Country]) -> Vec<Self> {
        let asn = asn.iter().map(|number| Self::Asn(*number));
        asn.chain(country.iter().map(|code| Self::Country(*code)))
            .collect()
    }

    /// The database that has its prefixes.
    #[must_use]
    pub const fn kind(self) -> GeoKind {
        match self {
            Self::Asn(_) => GeoKind::Asn,
            Self::Country(_) => GeoKind::Country,
        }
    }
}

impl Country {
    /// A code of two letters, in either case; `None` for another text.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let code: [u8; 2] = text.as_bytes().try_into().ok()?;
        code.iter()
            .all(u8::is_ascii_alphabetic)
            .then(|| Self(code.map(|letter| letter.to_ascii_uppercase())))
    }
}

impl fmt::Display for Country {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second] = self.0.map(char::from);
        write!(formatter, "{first}{second}")
    }
}

impl fmt::Display for GeoKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asn(number) => write!(formatter, "AS{number}"),
            Self::Country(code) => write!(formatter, "country {code}"),
        }
    }
}
