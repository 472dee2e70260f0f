//! `[[limit]]` with `scope = "request"`.

use common::rate_limiter::{Policy, PolicyError};

use super::{ClusterMode, Escalate, KeyEntry, Multiplier, OnFull, Rate, RateSpec};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestLimit {
    /// The name, unique among all limits.
    pub name: String,
    /// The entries of a descriptor that form the key, in the file's order.
    pub key: Vec<KeyEntry>,
    /// The limit that this one replaces: it is not charged where this one is.
    pub replaces: Option<String>,
    /// The domain of Envoy's requests to which it applies; `None`: any.
    pub domain: Option<String>,
    /// If the source is part of the key: addresses in one IPv4 prefix of this length share a key.
    pub ipv4_prefix: u8,
    /// The IPv6 prefix length, likewise.
    pub ipv6_prefix: u8,
    pub unit: RequestUnit,
    pub rates: RateSpec,
    /// The units that a new key starts with; at most the burst.
    pub initial: u64,
    /// For buckets: the interval of refills in nanoseconds; 0: continuous.
    pub refill_every: u64,
    /// Whether it only counts.
    pub enforcement: RequestEnforcement,
    /// The verdict on a new key while the table of keys is full.
    pub on_full: OnFull,
    /// When the kernel bans a client's address.
    pub escalate: Option<Escalate>,
    /// The mode in which the cluster's hosts share the limit; `None` without `cluster`.
    pub cluster: Option<ClusterMode>,
}

/// The unit of a limit on requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestUnit {
    /// The costs of requests.
    Credits,
    /// Requests, each as one unless the caller states a cost.
    Requests,
}

impl std::fmt::Display for RequestUnit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Credits => "credits",
            Self::Requests => "requests",
        })
    }
}

/// The action on a request above the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestEnforcement {
    /// It is refused.
    Enforce,
    /// It is counted and passes.
    Observe,
}

impl RequestLimit {
    /// All rates as written in the config.
    #[must_use]
    pub fn rate_text(&self) -> String {
        self.rates.text()
    }

    /// Whether the client's address is part of the key.
    #[must_use]
    pub fn has_source(&self) -> bool {
        self.key.iter().any(KeyEntry::is_source)
    }

    /// The key as written in the config.
    #[must_use]
    pub fn key_text(&self) -> String {
        self.key
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Whether every descriptor that matches this limit also matches the other, but not the reverse.
    #[must_use]
    pub fn is_narrower_than(&self, other: &Self) -> bool {
        self.is_within(other) && !other.is_within(self)
    }

    fn is_within(&self, other: &Self) -> bool {
        let in_domain = other.domain.is_none() || other.domain == self.domain;
        let has = |entry: &KeyEntry| self.key.iter().any(|own| entry.covers(own));
        in_domain && self.key.len() == other.key.len() && other.key.iter().all(has)
    }

    /// All rates for a class with this multiplier, the main rate first; the configured time unit is kept where the
    /// count stays whole.
    #[must_use]
    pub fn quotas(&self, multiplier: Multiplier) -> Vec<Rate> {
        let quota = |rate: Rate| {
            let count = multiplier.units(rate.count).max(1);
            let scaled = Rate {
                count,
                per_nanoseconds: rate.per_nanoseconds,
            };
            let exact = multiplier.rate(rate);
            let is_exact = u128::from(exact.count) * u128::from(scaled.per_nanoseconds)
                == u128::from(scaled.count) * u128::from(exact.per_nanoseconds);
            // A window keeps its length whatever its count.
            if is_exact || !self.rates.algorithm.has_burst() {
                scaled
            } else {
                exact
            }
        };
        self.rates.all().map(|(rate, _, _)| quota(rate)).collect()
    }

    /// The policies for a class with this multiplier: the rate first, then the tiers.
    ///
    /// # Errors
    ///
    /// When a window is too short for its count, or a log is too long.
    pub fn policies(&self, multiplier: Multiplier) -> Result<Vec<Policy>, PolicyError> {
        let policies = self
            .rates
            .all()
            .map(|(rate, burst, _)| self.policy(rate, burst, multiplier));
        let mut policies: Vec<Policy> = policies.collect::<Result<_, _>>()?;
        if let Some(main) = policies.first_mut() {
            *main = main
                .with_initial(multiplier.units(self.initial))
                .refilled_every(self.refill_every);
        }
        Ok(policies)
    }

    fn policy(
        &self,
        rate: Rate,
        burst: u64,
        multiplier: Multiplier,
    ) -> Result<Policy, PolicyError> {
        let algorithm = self.rates.algorithm;
        Policy::new(
            algorithm,
            multiplier.rate_of(algorithm, rate),
            multiplier.units(burst).max(1),
        )
    }
}
