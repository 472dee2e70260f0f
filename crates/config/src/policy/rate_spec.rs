//! The rates of a limit.

use super::{Algorithm, Rate};

/// The rates of a limit on packets or on requests, and the algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateSpec {
    /// The algorithm of all rates.
    pub algorithm: Algorithm,
    /// The main rate; `tiers` has the others.
    pub rate: Rate,
    /// The main rate as written in the config.
    pub rate_text: String,
    /// The units that pass at once after a pause; for windows and logs the rate's count.
    pub burst: u64,
    /// Further rates on the same key.
    pub tiers: Vec<Tier>,
}

impl RateSpec {
    /// Each rate with its burst and its text, the main rate first.
    pub fn all(&self) -> impl Iterator<Item = (Rate, u64, &str)> {
        let tiers = self
            .tiers
            .iter()
            .map(|tier| (tier.rate, tier.burst, tier.text.as_str()));
        std::iter::once((self.rate, self.burst, self.rate_text.as_str())).chain(tiers)
    }

    /// All rates as written in the config.
    #[must_use]
    pub fn text(&self) -> String {
        self.all()
            .map(|(_, _, text)| text)
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// A further rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    pub rate: Rate,
    /// The burst in units.
    pub burst: u64,
    /// The rate as written in the config.
    pub text: String,
}
