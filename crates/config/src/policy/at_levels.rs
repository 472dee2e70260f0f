//! Limits at their levels.

use super::{Fair, Key, Level, LevelKey, Limit, RateSpec, Tier};

impl Level {
    /// The limit at this level, as a limit without levels.
    fn of(&self, limit: &Limit) -> Limit {
        let (key, ipv4_prefix, ipv6_prefix) = match self.key {
            LevelKey::Prefix { ipv4, ipv6 } => (limit.key, ipv4, ipv6),
            LevelKey::Asn { ipv4, ipv6 } => (Key::Asn, ipv4, ipv6),
            LevelKey::All => (Key::All, 0, 0),
        };
        Limit {
            name: limit.level_name(self),
            key,
            ipv4_prefix,
            ipv6_prefix,
            rates: if limit.is_fair() {
                limit.rates.clone()
            } else {
                self.rates(&limit.rates)
            },
            levels: Vec::new(),
            // A rate for sources alone.
            shares: limit.shares.clone().map(|shares| Fair {
                at_most: None,
                ..shares
            }),
            escalate: limit
                .escalate
                .filter(|_| key.has_address())
                .map(|escalate| escalate.times(self.factor)),
            ..limit.clone()
        }
    }

    fn rates(&self, rates: &RateSpec) -> RateSpec {
        let text = |text: &str| format!("{} × {text}", self.factor.factor());
        let tier = |tier: &Tier| Tier {
            rate: self.factor.rate_of(rates.algorithm, tier.rate),
            burst: self.factor.units(tier.burst),
            text: text(&tier.text),
        };
        RateSpec {
            algorithm: rates.algorithm,
            rate: self.factor.rate_of(rates.algorithm, rates.rate),
            rate_text: text(&rates.rate_text),
            burst: self.factor.units(rates.burst),
            tiers: rates.tiers.iter().map(tier).collect(),
        }
    }
}

impl Limit {
    /// The limit at each of its keys, narrowest first: as it is, then each level as a limit of its own.
    #[must_use]
    pub fn at_levels(&self) -> Vec<Self> {
        std::iter::once(self.clone())
            .chain(self.levels.iter().map(|level| level.of(self)))
            .collect()
    }

    /// Whether a key of the limit or of a level is the network of an address.
    #[must_use]
    pub fn uses_networks(&self) -> bool {
        self.key == Key::Asn
            || self
                .levels
                .iter()
                .any(|level| matches!(level.key, LevelKey::Asn { .. }))
    }

    /// The name of a level among limits.
    #[must_use]
    pub fn level_name(&self, level: &Level) -> String {
        format!("{} at {}", self.name, level.key)
    }

    /// The text of the nth key, which events and counters report: `None` for the limit's own, the first one.
    #[must_use]
    pub fn level_text(&self, nth: usize) -> Option<String> {
        Some(self.levels.get(nth.checked_sub(1)?)?.key.to_string())
    }
}
