//! The hosts on which a release is tried first.
//!
//! Each host has a position by a hash of its name, the stream and the version, so that every release has other canaries. The
//! publisher reads which hosts have reported to the store, and signs the position up to which hosts are canaries. So hosts
//! agree without a leader and without a list of hosts, and a store cannot add canaries to a signed release. Reports are not
//! signed: those of many invented hosts, written before the release, raise the position that the publisher signs, up to all
//! hosts. The number of hosts, which the publisher prints, shows it.
//!
//! Of the hosts that have reported, exactly `max(1, ⌊share · hosts⌋)` are canaries. A host that the publisher did not know
//! is one with the same probability as the others. If all canaries fail before they begin, nobody begins; the stall is an
//! event, and another version has other canaries.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

/// A share of hosts or units, in millionths; written as `1%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Share(u32);

const WHOLE: u32 = 1_000_000;

impl Share {
    /// All hosts.
    pub const ALL: Self = Self(WHOLE);

    /// The share as a fraction: 0.01 for `1%`.
    #[must_use]
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / f64::from(WHOLE)
    }

    /// The smallest share that `part` of `all` is not above. No share is 0.
    #[must_use]
    pub fn covering(part: u64, all: u64) -> Self {
        let millionths = (u128::from(part) * u128::from(WHOLE)).div_ceil(u128::from(all.max(1)));
        // At most `WHOLE` then.
        Self(u32::try_from(millionths).unwrap_or(WHOLE).clamp(1, WHOLE))
    }

    /// The number of canaries among so many hosts.
    #[must_use]
    pub fn of(self, hosts: u64) -> u64 {
        let share = u128::from(hosts) * u128::from(self.0) / u128::from(WHOLE);
        // Not more than `hosts`, which fits.
        u64::try_from(share).unwrap_or(hosts).max(1)
    }
}

/// A text is no share.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invalid share {0:?}; write a percentage above 0% and up to 100%, such as \"1%\"")]
pub struct NotAShare(String);

impl FromStr for Share {
    type Err = NotAShare;

    fn from_str(text: &str) -> Result<Self, NotAShare> {
        let percent = text.trim().strip_suffix('%');
        let percent = percent.and_then(|number| number.trim().parse::<f64>().ok());
        let millionths = percent.map(|percent| (percent * f64::from(WHOLE) / 100.0).round());
        match millionths {
            // In the range of u32.
            Some(share) if (1.0..=f64::from(WHOLE)).contains(&share) => Ok(Self(share as u32)),
            _ => Err(NotAShare(text.to_owned())),
        }
    }
}

impl TryFrom<String> for Share {
    type Error = NotAShare;

    fn try_from(text: String) -> Result<Self, NotAShare> {
        text.parse()
    }
}

impl From<Share> for String {
    fn from(share: Share) -> Self {
        share.to_string()
    }
}

impl fmt::Display for Share {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}%", f64::from(self.0) * 100.0 / f64::from(WHOLE))
    }
}

/// A host's position among all hosts for a version, uniform over `u64`.
#[must_use]
pub fn position(host: &str, stream: &str, version: u64) -> u64 {
    let hash = Sha256::new()
        .chain_update(b"weir canary\0")
        .chain_update(stream.as_bytes())
        .chain_update([0])
        .chain_update(version.to_be_bytes())
        .chain_update(host.as_bytes())
        .finalize();
    hash.iter()
        .take(8)
        .fold(0, |position, byte| position << 8 | u64::from(*byte))
}

/// No host can be a canary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "no host that the release is for has reported; correct --select, or start the agents first, with [fleet] rules of the store"
)]
pub struct NoHosts;

/// Which hosts are canaries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Canary {
    pub share: Share,
    /// The hosts that the publisher knew.
    pub hosts: u64,
    /// The last position of a canary.
    #[serde(with = "hexadecimal")]
    up_to: u64,
}

impl Canary {
    /// All hosts are canaries.
    #[must_use]
    pub const fn everywhere() -> Self {
        Self {
            share: Share::ALL,
            hosts: 0,
            up_to: u64::MAX,
        }
    }

    /// The canaries of a version among the hosts that have reported and that it is for.
    ///
    /// # Errors
    ///
    /// When there are no hosts.
    pub fn among<'h>(
        hosts: impl IntoIterator<Item = &'h str>,
        share: Share,
        stream: &str,
        version: u64,
    ) -> Result<Self, NoHosts> {
        let mut positions: Vec<u64> = hosts
            .into_iter()
            .map(|host| position(host, stream, version))
            .collect();
        positions.sort_unstable();
        positions.dedup();
        let hosts = positions.len() as u64;
        let last = positions.get(share.of(hosts).saturating_sub(1) as usize);
        let up_to = match last {
            // Also hosts that appear later.
            Some(_) if share == Share::ALL => u64::MAX,
            Some(last) => *last,
            None => return Err(NoHosts),
        };
        Ok(Self {
            share,
            hosts,
            up_to,
        })
    }

    /// Whether the host is a canary.
    #[must_use]
    pub fn includes(&self, host: &str, stream: &str, version: u64) -> bool {
        position(host, stream, version) <= self.up_to
    }
}

/// Positions in documents: TOML has no unsigned numbers of 64 bits.
mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(position: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{position:016x}"))
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        u64::from_str_radix(&text, 16)
            .map_err(|error| de::Error::custom(format!("invalid position {text:?}: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(hosts: usize) -> Vec<String> {
        (0..hosts).map(|host| format!("host-{host}")).collect()
    }

    fn canaries(names: &[String], share: &str, version: u64) -> Vec<String> {
        let share = share.parse().unwrap();
        let hosts = names.iter().map(String::as_str);
        let canary = Canary::among(hosts, share, "web", version).unwrap();
        let is_canary = |host: &&String| canary.includes(host, "web", version);
        names.iter().filter(is_canary).cloned().collect()
    }

    #[test]
    fn the_number_of_canaries_is_exact_and_at_least_one() {
        for (hosts, share, expected) in [
            (1, "1%", 1),
            (3, "1%", 1),
            (99, "1%", 1),
            (1_000, "1%", 10),
            (1_999, "1%", 19),
            (1_000, "0.1%", 1),
            (8, "100%", 8),
            (7, "50%", 3),
        ] {
            for version in 1..20 {
                let found = canaries(&names(hosts), share, version).len();
                assert_eq!(found, expected, "{share} of {hosts}, version {version}");
            }
        }
    }

    #[test]
    fn a_share_that_covers_a_part_is_rounded_up() {
        for (part, all, expected) in [
            (0, 100, "0.0001%"),
            (1, 4, "25%"),
            (7, 17, "41.1765%"),
            (1, u64::MAX, "0.0001%"),
            (u64::MAX, u64::MAX, "100%"),
            (3, 0, "100%"),
        ] {
            assert_eq!(Share::covering(part, all).to_string(), expected);
        }
    }

    #[test]
    fn each_version_has_other_canaries() {
        let names = names(1_000);
        let (first, second) = (canaries(&names, "1%", 1), canaries(&names, "1%", 2));
        assert!(first.iter().filter(|host| second.contains(host)).count() < 5);
    }

    #[test]
    fn a_release_for_nobody_is_refused() {
        assert_eq!(Canary::among([], Share::ALL, "web", 1), Err(NoHosts));
    }

    #[test]
    fn shares_are_percentages() {
        for text in ["1%", "0.5%", "100%"] {
            assert_eq!(text.parse::<Share>().unwrap().to_string(), text);
        }
        for text in ["", "1", "0%", "-1%", "101%", "NaN%", "x%"] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
    }
}
