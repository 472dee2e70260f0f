//! `[[limit]]` with `scope = "request"`: a limit that applications query.

use std::time::Duration;

use common::rate_limiter::{Policy, PolicyError};

use super::calendar::{self, Calendar, CalendarUnit, Zone};
use super::escalate::{Counts, Escalate, OF_REQUESTS};
use super::limit::Limit;
use super::limit_action::Throttle;
use super::limit_rules::check_cluster;
use super::over::{self, Over};
use super::policy::{
    Algorithm, ClusterMode, Multiplier, OnFull, Rate, RequestEnforcement, RequestUnit, Unit,
};
use super::rates::{RateKeys, RateSpec, RateText, ReadRate, ReadRates, require_bucket};
use super::report::{Problems, Wrong};
use super::request_key::{KeyEntry, RequestKey};
use super::schema::{Key, Kind, Located, Place, Table, Variant};
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
    /// a year to 1,099,511,627,776. `N/calendar-day` and `N/calendar-month` begin at midnight, and on the first of the month, in
    /// `time_zone`. Such a limit is a `fixed-window`, conflicts with `cluster`, and its `tiers` begin anew with the period.
    #[key(examples = ["600/min", "1000/s", "10/5s", "1000/calendar-day"])]
    rate: RateText,
    /// Name of the IANA database for the days and months of `N/calendar-day` and `N/calendar-month`. All but `UTC` require the
    /// time zones of the host (`tzdata`), which the agent reads when it starts or reloads.
    #[key(default = Zone::utc(), examples = ["Europe/Berlin"])]
    time_zone: Zone,
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
    /// Requests that pass above the limit, and are counted as `over`. `hard`: none. Conflicts with `cluster`. Their replies name the limit
    /// with nothing left. Of a window or a log, the share is rounded down to whole units.
    #[key(default = Throttle::Hard)]
    pub throttle: Throttle,
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
    /// The periods with which a key's use begins anew.
    #[key(skip, default = None)]
    pub calendar: Option<Calendar>,
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
    let periods = periods(place);
    if let Some((unit, text)) = &periods {
        check_calendar(place, *unit, text, problems);
        limit.algorithm = Algorithm::FixedWindow;
    }
    let algorithm = limit.algorithm;
    if periods.is_none() {
        check_no_calendar(place, &limit.time_zone, problems);
        let key = &RequestLimit::CLUSTER;
        check_cluster(place, key, limit.cluster, algorithm, problems);
    }
    if limit.throttle != Throttle::Hard && limit.cluster.is_some() {
        let message = "throttle is not supported with cluster: each host would pass the share above the limit";
        let help = "leave out throttle, or leave out cluster: each host counts alone";
        problems.conflict(place.span_of(&RequestLimit::THROTTLE), message, help);
    }
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
    if let Some((unit, _)) = periods {
        check_tiers(&rates.tiers, unit, problems);
        limit.calendar = Some(Calendar {
            unit,
            zone: limit.time_zone.clone(),
        });
    }
    if let Some(spec) = rates.spec() {
        limit.rates = spec;
        check_share(limit, place, problems);
    }
    if !place.has(&RequestLimit::INITIAL) {
        limit.initial = limit.rates.burst;
    }
}

/// The calendar's period of `rate`, and its text.
fn periods(place: Place<'_>) -> Option<(CalendarUnit, String)> {
    let (RateText(text), _) = place.elements::<RateText>(&RequestLimit::RATE).pop()?;
    let (_, unit) = calendar::split(&text).ok()??;
    Some((unit, text))
}

/// Reports keys that conflict with a rate by the calendar.
fn check_calendar(place: Place<'_>, unit: CalendarUnit, text: &str, problems: &mut Problems) {
    let mut conflict = |key: &Key, what: &str, help: String| {
        let message = format!("{what} is not supported with rate {text:?}");
        problems.conflict(place.span_of(key), message, help);
    };
    let rolling = format!("a rate per {}", unit.rolling());
    let algorithms = place.elements::<Algorithm>(&RequestLimit::ALGORITHM);
    if let Some((algorithm, _)) = algorithms.first()
        && *algorithm != Algorithm::FixedWindow
    {
        let what = format!("algorithm = \"{algorithm}\"");
        let help = format!("leave out algorithm, or write {rolling}");
        conflict(&RequestLimit::ALGORITHM, &what, help);
    }
    for key in [
        RequestLimit::BURST,
        RequestLimit::INITIAL,
        RequestLimit::REFILL_EVERY,
    ] {
        if place.has(&key) {
            let help = format!("leave out {}, or write {rolling}", key.name);
            conflict(&key, key.name, help);
        }
    }
    if place.has(&RequestLimit::CLUSTER) {
        let help = match unit {
            CalendarUnit::Day => {
                "leave out cluster: each host counts alone; or write algorithm = \"fixed-window\" and a rate per day, which begins at midnight in UTC on all hosts"
            }
            CalendarUnit::Month => "leave out cluster: each host counts alone",
        };
        conflict(&RequestLimit::CLUSTER, "cluster", help.to_owned());
    }
}

/// Reports a time zone without a calendar.
fn check_no_calendar(place: Place<'_>, zone: &Zone, problems: &mut Problems) {
    let key = &RequestLimit::TIME_ZONE;
    let rates = place.elements::<RateText>(&RequestLimit::RATE);
    let is_rolling = |(RateText(text), _): &(RateText, _)| calendar::split(text) == Ok(None);
    if *zone != Zone::utc() && rates.iter().any(is_rolling) {
        let message = "time_zone requires a rate by the calendar";
        let help = "write a rate as \"1000/calendar-day\", or leave out time_zone";
        problems.conflict(place.span_of(key), message, help);
    }
}

/// Reports tiers that do not begin and end within a calendar's period.
fn check_tiers(tiers: &[ReadRate], unit: CalendarUnit, problems: &mut Problems) {
    for ReadRate {
        rate,
        text,
        span,
        calendar,
    } in tiers
    {
        if calendar.is_none() && rate.per_nanoseconds < unit.shortest_nanoseconds() {
            continue;
        }
        let message = format!(
            "tier {text:?} is not shorter than the {} of the rate, with which all tiers begin anew",
            unit.word()
        );
        let help = "write a second [[limit]] with this rate";
        problems.error(span.clone(), message, help);
    }
}

/// Reports a share above a window or log that is less than one unit.
fn check_share(limit: &RequestLimit, place: Place<'_>, problems: &mut Problems) {
    let Some(share) = limit.throttle.multiplier() else {
        return;
    };
    // Buckets count fractions of units.
    if limit.rates.algorithm.has_burst() {
        return;
    }
    let mut counts = limit.rates.all().map(|(rate, _, _)| rate.count);
    if let Some(count) = counts.find(|count| share.units(*count) == *count) {
        let message = format!("throttle has no effect: its share of {count} is less than one unit");
        let help = "write a larger share, or leave out throttle";
        problems.error(place.span_of(&RequestLimit::THROTTLE), message, help);
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
    /// count stays whole. A calendar's day has 24 hours and its month 30 days.
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
        let mut quotas: Vec<Rate> = self.rates.all().map(|(rate, _, _)| quota(rate)).collect();
        if let (Some(calendar), Some(main)) = (&self.calendar, quotas.first_mut()) {
            main.per_nanoseconds = calendar.unit.usual_nanoseconds();
        }
        quotas
    }

    /// The policies for a class with this multiplier: the rate first, then the tiers.
    ///
    /// # Errors
    ///
    /// When a window is too short for its count, or a log is too long.
    pub fn policies(&self, multiplier: Multiplier) -> Result<Vec<Policy>, PolicyError> {
        self.policies_of(multiplier, Multiplier::ONE)
    }

    /// The policies of what passes above the limit, in the same order; none if nothing does.
    ///
    /// # Errors
    ///
    /// As [`Self::policies`].
    pub fn policies_above(&self, multiplier: Multiplier) -> Result<Vec<Policy>, PolicyError> {
        match self.throttle.multiplier() {
            Some(share) => self.policies_of(multiplier, share),
            None => Ok(Vec::new()),
        }
    }

    /// The policies of a class's limit times `share`.
    fn policies_of(
        &self,
        multiplier: Multiplier,
        share: Multiplier,
    ) -> Result<Vec<Policy>, PolicyError> {
        let algorithm = self.rates.algorithm;
        let times = |units| share.units(multiplier.units(units));
        let policies = self.rates.all().map(|(rate, burst, _)| {
            let rate = share.rate_of(algorithm, multiplier.rate_of(algorithm, rate));
            Policy::new(algorithm, rate, times(burst).max(1))
        });
        let mut policies: Vec<Policy> = policies.collect::<Result<_, _>>()?;
        if let Some(main) = policies.first_mut() {
            *main = main
                .with_initial(times(self.initial))
                .refilled_every(nanoseconds(self.refill_every));
        }
        Ok(policies)
    }
}
