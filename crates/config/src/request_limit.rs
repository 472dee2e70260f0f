//! `[[limit]]` with `scope = "request"`: a limit that applications query.

use std::time::Duration;

use common::rate_limiter::{Policy, PolicyError};

use super::escalate::{Counts, Escalate, OF_REQUESTS};
use super::limit::Limit;
use super::limit_rules::check_cluster;
use super::over::{self, Over};
use super::policy::{
    Algorithm, ClusterMode, Multiplier, OnFull, Rate, RequestEnforcement, RequestUnit, Unit,
};
use super::rates::{RateKeys, RateSpec, RateText, ReadRates, require_bucket};
use super::report::{Problems, Wrong};
use super::request_key::{KeyEntry, RequestKey};
use super::schema::{Key, Kind, Located, Table, Variant};
use super::units::LARGEST_COUNT;
use super::words::Scope;

/// A limit on requests of applications.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(heading = "[[limit]]", page = "request-limit", variant = VARIANT)]
#[table(since = "0.1.0", check = check)]
#[table(
    example = "[[limit]]\nname = \"credits-per-user\"\nscope = \"request\"\nkey = [\"user\"]\n\
                   unit = \"credits\"\nrate = \"600/min\"\nburst = 100\n"
)]
pub struct RequestLimit {
    #[key(like = Limit::NAME)]
    pub name: String,
    #[key(like = Limit::SCOPE, absent = "`\"packet\"`", default = Scope::Packet)]
    scope: Scope,
    /// Entries of the descriptor, as Envoy names them: each combination of their values has its own allowance. `path=/login`
    /// matches that value only. In `path=/api/*`, `*` stands for any text, `/` included; a literal `*` cannot be written.
    /// `source` (or `remote_address`) is the client's address and gives the request its class.
    #[key(examples = ["user", "path=/login", "path=/api/*", "source"])]
    pub key: RequestKey,
    /// Entries of `key` whose values share one allowance, instead of one for each value. A request still needs the entry, with a
    /// value that matches. If `over` names all entries, all matching requests of clients
    /// with one multiplier share one allowance.
    #[key(absent = "none", examples = ["path"])]
    pub over: Over,
    /// Count per time: `N/s`, `N/min`, `N/h`, `N/day`, `N/week`, `N/month` (30 days), or per any time as `10/5s`. From one
    /// a year to 1,099,511,627,776.
    #[key(examples = ["600/min", "1000/s", "10/5s"])]
    rate: RateText,
    /// What passes at once after a pause. Only for `token-bucket` and `leaky-bucket`.
    #[key(absent = "the rate's count", range = (1.0, LARGEST_COUNT as f64))]
    burst: Option<u64>,
    /// What a new key has, at most the burst. Only for `token-bucket` and `leaky-bucket`.
    #[key(absent = "the burst", range = (0.0, LARGEST_COUNT as f64))]
    pub initial: u64,
    /// Refills a bucket in steps of this time.
    // 0: continuously.
    #[key(absent = "continuously", examples = ["1s"])]
    pub refill_every: Duration,
    /// `requests` counts each request as one unless the caller gives a cost. `credits` counts what `[[request]]` says
    /// that it costs.
    #[key(default = RequestUnit::Requests)]
    pub unit: RequestUnit,
    #[key(like = Limit::ALGORITHM, default = Algorithm::TokenBucket)]
    algorithm: Algorithm,
    /// Envoy's domain that the limit is for.
    #[key(absent = "any", examples = ["envoy"], check = check_domain)]
    pub domain: Option<String>,
    /// Name of a wider limit that is not charged where this one matches.
    #[key(absent = "none", examples = ["requests-per-user"])]
    pub replaces: Option<String>,
    /// Bans a client's address in the kernel after repeated refusals.
    #[key(absent = "off", kind = Kind::Table(&OF_REQUESTS))]
    pub escalate: Option<Escalate>,
    #[key(like = Limit::IPV4_PREFIX, absent = "32", default = 32)]
    pub ipv4_prefix: u8,
    #[key(like = Limit::IPV6_PREFIX, absent = "64", default = 64)]
    pub ipv6_prefix: u8,
    /// `drop` refuses requests above the limit, `observe` counts them.
    #[key(name = "action", default = RequestEnforcement::Enforce)]
    pub enforcement: RequestEnforcement,
    /// What happens to a new key while `max_keys` keys are in use. `share` charges it to one allowance that all such keys share;
    /// `pass` exempts it: whoever makes up keys then turns the limit off; `throttle` refuses it.
    #[key(default = OnFull::Share)]
    pub on_full: OnFull,
    #[key(like = Limit::TIERS, default = Vec::new())]
    tiers: Vec<RateText>,
    #[key(like = Limit::CLUSTER, default = None)]
    pub cluster: Option<ClusterMode>,
    /// `algorithm`, `rate`, `burst` and `tiers`.
    #[key(skip, default = RateSpec::per_second(1, 1))]
    pub rates: RateSpec,
}

const VARIANT: Variant = Variant {
    condition: "scope = \"request\"",
    others: Limit::REFERENCE.keys,
    noun: "limits on packets",
};

const RATES: RateKeys = RateKeys {
    rate: &RequestLimit::RATE,
    burst: &RequestLimit::BURST,
    tiers: &RequestLimit::TIERS,
};

/// Times are at most 366 days.
const fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// Sets what depends on several keys, and checks the rules between them.
fn check(read: &mut Located<'_, RequestLimit>, problems: &mut Problems) {
    let (limit, place) = (&mut read.table, read.place);
    let algorithm = limit.algorithm;
    let key = &RequestLimit::CLUSTER;
    check_cluster(place, key, limit.cluster, algorithm, problems);
    over::check(&place.elements(&RequestLimit::OVER), &limit.key, problems);
    for key in [RequestLimit::IPV4_PREFIX, RequestLimit::IPV6_PREFIX] {
        if place.has(&key) && !limit.has_source() {
            let name = key.name;
            let message = format!("{name} requires \"source\" in the key");
            let help = format!("leave out {name}, or add \"source\" to the key");
            problems.conflict(place.span_of(&key), message, help);
        }
    }
    let (measure, burst) = ((Unit::Requests, algorithm), limit.burst);
    let rates = ReadRates::read(place, RATES, Counts::Requests, measure, burst, problems);
    require_bucket(place, &RequestLimit::INITIAL, algorithm, problems);
    require_bucket(place, &RequestLimit::REFILL_EVERY, algorithm, problems);
    let main = rates.main.as_ref();
    let most = main.map(|main| rates.burst_of(main.rate)).or(rates.burst);
    if let Some(most) = most.filter(|most| limit.initial > *most) {
        let message = format!("initial is above the burst of {most}");
        let help = format!("write at most {most}");
        problems.error(place.span_of(&RequestLimit::INITIAL), message, help);
    }
    rates.check(problems);
    if let Some(spec) = rates.spec() {
        limit.rates = spec;
    }
    if !place.has(&RequestLimit::INITIAL) {
        limit.initial = limit.rates.burst;
    }
}

fn check_domain(text: &str, key: &Key) -> Result<(), Wrong> {
    if text.is_empty() {
        let help = format!(
            "leave out domain for any, or write the one in Envoy's config: {}",
            key.example()
        );
        let message = "empty domain: no request of Envoy has one";
        return Err(Wrong::new(message, help));
    }
    Ok(())
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
                .refilled_every(nanoseconds(self.refill_every));
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
