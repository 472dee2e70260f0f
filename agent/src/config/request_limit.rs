//! `[[limit]]` with `scope = "request"`: a limit that applications ask about.

use common::limiter::Rate;
use common::limiter::sliding_log::LARGEST_LOG;
use common::rate_limiter::{Policy, PolicyError};

use super::limit::{self, ReadLimit};
use super::policy::{Algorithm, Multiplier, OnFull, Tier, Unit};
use super::report::Span;
use super::request_key::{self, KeyEntry};
use super::table::Table;
use super::units;

/// The most rates of one limit.
const MOST_RATES: usize = 7;

/// A limit on requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestLimit {
    /// Unique among all limits.
    pub name: String,
    /// Entries of a descriptor that together are the key, in the file's order.
    pub key: Vec<KeyEntry>,
    /// The limit that is not charged where this one is.
    pub replaces: Option<String>,
    /// Envoy's domain that it is for; `None`: any.
    pub domain: Option<String>,
    /// If the key has the source: addresses in one IPv4 prefix of this length share it.
    pub ipv4_prefix: u8,
    /// Likewise for IPv6.
    pub ipv6_prefix: u8,
    /// What is counted.
    pub unit: RequestUnit,
    /// How.
    pub algorithm: Algorithm,
    /// How many in what time.
    pub rate: Rate,
    /// As the operator wrote it.
    pub rate_text: String,
    /// At once, in units; for windows and logs the rate's count.
    pub burst: u64,
    /// What a new key has, in units; at most the burst.
    pub initial: u64,
    /// Buckets: refilled in steps of so many nanoseconds; 0: continuously.
    pub refill_every: u64,
    /// Whether it only counts.
    pub enforcement: RequestEnforcement,
    /// When there are more keys than are remembered.
    pub on_full: OnFull,
    /// Further rates on the same key.
    pub tiers: Vec<Tier>,
    /// When to stop an address at the kernel edge.
    pub escalate: Option<Escalate>,
    /// Whether all hosts of the cluster keep it together.
    pub cluster: bool,
}

/// What a limit on requests counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestUnit {
    /// What requests cost.
    Credits,
    /// Requests, each as one unless the caller says more.
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

/// What becomes of a request that does not conform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestEnforcement {
    /// It is refused.
    Enforce,
    /// It is counted as one that would be, and passes.
    Observe,
}

/// So many refusals within that time, and the client's address is banned for so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Escalate {
    /// Refusals, 1 to [`LARGEST_LOG`].
    pub after: u64,
    /// Nanoseconds in which they have to be.
    pub within: u64,
    /// Nanoseconds of the ban.
    pub ban: u64,
}

impl RequestLimit {
    /// All rates as the operator wrote them.
    #[must_use]
    pub fn rate_text(&self) -> String {
        let tiers = self.tiers.iter().map(|tier| tier.text.as_str());
        std::iter::once(self.rate_text.as_str()).chain(tiers).collect::<Vec<_>>().join(", ")
    }

    /// Whether the client's address is part of the key.
    #[must_use]
    pub fn has_source(&self) -> bool {
        self.key.iter().any(KeyEntry::is_source)
    }

    /// The key as the operator wrote it.
    #[must_use]
    pub fn key_text(&self) -> String {
        self.key.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    /// Whether every descriptor that this limit is for is one of the other's, and not the reverse.
    #[must_use]
    pub fn is_narrower_than(&self, other: &Self) -> bool {
        self.is_within(other) && !other.is_within(self)
    }

    fn is_within(&self, other: &Self) -> bool {
        let in_domain = other.domain.is_none() || other.domain == self.domain;
        let has = |entry: &KeyEntry| self.key.iter().any(|own| entry.covers(own));
        in_domain && self.key.len() == other.key.len() && other.key.iter().all(has)
    }

    /// All rates of a class with this multiplier, the main one first: the operator's own where the multiplier makes a
    /// whole count of it.
    #[must_use]
    pub fn quotas(&self, multiplier: Multiplier) -> Vec<Rate> {
        let quota = |rate: Rate| {
            let count = multiplier.units(rate.count).max(1);
            let scaled = Rate { count, per_nanoseconds: rate.per_nanoseconds };
            let exact = multiplier.rate(rate);
            let is_exact = u128::from(exact.count) * u128::from(scaled.per_nanoseconds)
                == u128::from(scaled.count) * u128::from(exact.per_nanoseconds);
            // A window keeps its length, whatever is left of its count.
            if is_exact || !self.algorithm.has_burst() { scaled } else { exact }
        };
        std::iter::once(self.rate).chain(self.tiers.iter().map(|tier| tier.rate)).map(quota).collect()
    }

    /// The limit as it is for a class with this multiplier: its rate first, then its tiers.
    ///
    /// # Errors
    ///
    /// When a window is too short for its count, or a log too long.
    pub fn policies(&self, multiplier: Multiplier) -> Result<Vec<Policy>, PolicyError> {
        let main = self.policy(self.rate, self.burst, multiplier)?;
        let main = main.with_initial(multiplier.units(self.initial));
        let mut policies = vec![main.refilled_every(self.refill_every)];
        for tier in &self.tiers {
            policies.push(self.policy(tier.rate, tier.burst, multiplier)?);
        }
        Ok(policies)
    }

    fn policy(&self, rate: Rate, burst: u64, multiplier: Multiplier) -> Result<Policy, PolicyError> {
        // A window keeps its length and multiplies its count.
        let window = Rate { count: multiplier.units(rate.count).max(1), per_nanoseconds: rate.per_nanoseconds };
        let burst = multiplier.units(burst).max(1);
        match self.algorithm {
            Algorithm::TokenBucket => Ok(Policy::token_bucket(multiplier.rate(rate), burst)),
            Algorithm::LeakyBucket => Ok(Policy::leaky_bucket(multiplier.rate(rate), burst)),
            Algorithm::FixedWindow => Policy::fixed_window(window),
            Algorithm::SlidingWindow => Policy::sliding_window(window),
            Algorithm::SlidingLog => Policy::sliding_log(window),
        }
    }
}

/// A limit of either scope.
pub enum AnyLimit {
    /// On packets.
    Packet(ReadLimit),
    /// On requests.
    Request(ReadRequestLimit),
}

/// A limit on requests, and where its name stands.
pub struct ReadRequestLimit {
    pub limit: RequestLimit,
    pub name_span: Span,
    pub spans: Spans,
}

/// Where parts of a limit stand that are looked at together with others.
pub struct Spans {
    pub key: Span,
    pub domain: Span,
    pub escalate: Span,
    pub refill_every: Span,
    pub replaces: Span,
    /// The main rate, then the tiers.
    pub rates: Vec<Span>,
}

/// Reads a limit by its scope.
pub fn read_any(mut table: Table<'_, '_>) -> Option<AnyLimit> {
    let is_request = table.value("scope").and_then(|value| value.get_ref().as_str()) == Some("request");
    if is_request { read(table).map(AnyLimit::Request) } else { limit::read(table).map(AnyLimit::Packet) }
}

fn read(mut table: Table<'_, '_>) -> Option<ReadRequestLimit> {
    table.required("name", "\"credits-per-user\"");
    let name = table.string("name", "\"credits-per-user\"");
    if let Some(("", span)) = &name {
        table.problems.error(span.clone(), "a limit needs a name", "write name = \"credits-per-user\"");
    }
    for key in ["direction", "protocol", "ports", "throttle"] {
        if table.value(key).is_some() {
            let span = table.span_of(key);
            let message = format!("{key} is of packets, and this limit is on requests");
            table.problems.error(span, message, format!("leave out {key}, or scope = \"request\""));
        }
    }
    let cluster = limit::cluster(&mut table);
    let units = &[("credits", RequestUnit::Credits), ("requests", RequestUnit::Requests)];
    let unit = table.word("unit", units).unwrap_or(RequestUnit::Requests);
    let algorithm = table.word("algorithm", Algorithm::WORDS).unwrap_or(Algorithm::TokenBucket);
    let key = request_key::read(&mut table);
    let has_source = key.iter().any(KeyEntry::is_source);
    let ipv4_prefix = prefix(&mut table, "ipv4_prefix", 32, 32, has_source);
    let ipv6_prefix = prefix(&mut table, "ipv6_prefix", 64, 128, has_source);
    let domain = table.string("domain", "\"envoy\"");
    if let Some(("", span)) = &domain {
        let help = "leave out domain for any, or write the one in Envoy's config: domain = \"envoy\"";
        table.problems.error(span.clone(), "no request of Envoy's has an empty domain", help);
    }
    let domain = domain.map(|(text, _)| text.to_owned());
    let replaces = table.string("replaces", "\"logins\"").map(|(text, _)| text.to_owned());
    let on_full = table.word("on_full", OnFull::WORDS).unwrap_or(OnFull::Pass);
    let actions = &[("drop", RequestEnforcement::Enforce), ("observe", RequestEnforcement::Observe)];
    let enforcement = table.word("action", actions).unwrap_or(RequestEnforcement::Enforce);

    table.required("rate", "\"600/min\"");
    let rate = table.string("rate", "\"600/min\"").and_then(|(text, span)| rate(&mut table, text, span));
    let burst = of_bucket(&mut table, "burst", algorithm, "its rate says all");
    let initial = of_bucket(&mut table, "initial", algorithm, "a new key has all of it");
    let refill_every = time(&mut table, "refill_every", "\"1s\"");
    if refill_every.is_some() && !algorithm.has_burst() {
        let span = table.span_of("refill_every");
        let help = "leave refill_every out, or set algorithm = \"token-bucket\"";
        table.problems.error(span, format!("a {algorithm} is not refilled: its window ends"), help);
    }
    let mut tiers = Vec::new();
    for (text, span) in table.strings("tiers", "[\"60/h\", \"10/5s\"]") {
        tiers.extend(self::rate(&mut table, text, span));
    }
    let escalate = escalate(&mut table);
    let most = burst.or(rate.as_ref().map(|(rate, _, _)| rate.count)).unwrap_or(u64::MAX);
    if initial.is_some_and(|initial| initial > most) {
        let span = table.span_of("initial");
        table.problems.error(
            span,
            format!("more at first than the {most} there can ever be"),
            "write at most the burst",
        );
    }
    if let Some(rate) = &rate {
        check_rates(&mut table, algorithm, rate, &tiers);
    }
    let spans = Spans {
        key: table.span_of("key"),
        domain: table.span_of("domain"),
        escalate: table.span_of("escalate"),
        refill_every: table.span_of("refill_every"),
        replaces: table.span_of("replaces"),
        rates: rate.iter().chain(&tiers).map(|(_, _, span)| span.clone()).collect(),
    };
    table.finish();

    let ((name, name_span), (rate, rate_text, _)) = (name?, rate?);
    let burst = burst.unwrap_or(rate.count);
    let limit = RequestLimit {
        name: name.to_owned(),
        key,
        replaces,
        domain,
        ipv4_prefix,
        ipv6_prefix,
        unit,
        algorithm,
        rate,
        rate_text,
        burst,
        initial: initial.unwrap_or(burst),
        refill_every: refill_every.unwrap_or(0),
        enforcement,
        on_full,
        tiers: tiers.into_iter().map(|(rate, text, _)| Tier { rate, burst: rate.count, text }).collect(),
        escalate,
        cluster,
    };
    Some(ReadRequestLimit { limit, name_span, spans })
}

fn prefix(table: &mut Table<'_, '_>, key: &'static str, default: u8, longest: u64, has_source: bool) -> u8 {
    let length = table.number(key, 0, longest);
    if length.is_some() && !has_source {
        let span = table.span_of(key);
        let help = format!("leave out {key}, or add \"source\" to the key");
        table.problems.error(span, format!("the key holds no address that {key} could shorten"), help);
    }
    length.and_then(|length| u8::try_from(length).ok()).unwrap_or(default)
}

fn rate(table: &mut Table<'_, '_>, text: &str, span: Span) -> Option<(Rate, String, Span)> {
    match units::rate(text, Unit::Requests) {
        Ok(rate) => Some((rate, text.to_owned(), span)),
        Err(wrong) => {
            table.problems.error(span, wrong.message, wrong.help);
            None
        }
    }
}

fn of_bucket(table: &mut Table<'_, '_>, key: &'static str, algorithm: Algorithm, why: &str) -> Option<u64> {
    let least = u64::from(key == "burst");
    let number = table.number(key, least, units::LARGEST_COUNT)?;
    if !algorithm.has_burst() {
        let span = table.span_of(key);
        let help = format!("leave {key} out, or set algorithm = \"token-bucket\"");
        table.problems.error(span, format!("a {algorithm} has no {key}: {why}"), help);
    }
    Some(number)
}

fn time(table: &mut Table<'_, '_>, key: &'static str, example: &str) -> Option<u64> {
    let (text, span) = table.string(key, example)?;
    match units::time(text) {
        Ok(nanoseconds) => Some(nanoseconds),
        Err(wrong) => {
            table.problems.error(span, wrong.message, format!("write {key} = {example}"));
            None
        }
    }
}

fn escalate(table: &mut Table<'_, '_>) -> Option<Escalate> {
    let example = "{ after = 20, within = \"1m\", ban = \"5m\" }";
    let value = table.value("escalate")?;
    let Some(content) = value.get_ref().as_table() else {
        table.wrong_type("escalate", value, &format!("a table: escalate = {example}"));
        return None;
    };
    let mut inner = Table::new(content, value.span(), "escalate", table.problems);
    inner.required("after", "20");
    let after = inner.number("after", 1, LARGEST_LOG);
    inner.required("within", "\"1m\"");
    let within = time(&mut inner, "within", "\"1m\"");
    inner.required("ban", "\"5m\"");
    let ban = time(&mut inner, "ban", "\"5m\"");
    inner.finish();
    Some(Escalate { after: after?, within: within?, ban: ban? })
}

fn check_rates(
    table: &mut Table<'_, '_>,
    algorithm: Algorithm,
    main: &(Rate, String, Span),
    tiers: &[(Rate, String, Span)],
) {
    let rates: Vec<&(Rate, String, Span)> = std::iter::once(main).chain(tiers).collect();
    if rates.len() > MOST_RATES {
        let span = table.span_of("tiers");
        let help = format!("write at most {MOST_RATES}, the main one included");
        table.problems.error(span, format!("{} rates on one limit", rates.len()), help);
    }
    for (nth, (rate, text, span)) in rates.iter().enumerate() {
        if rates[..nth].iter().any(|(other, _, _)| other == rate) {
            table.problems.error(span.clone(), format!("{text} is said twice"), "leave one of them out");
        }
        if algorithm == Algorithm::SlidingLog && rate.count > LARGEST_LOG {
            let help = format!("write at most {LARGEST_LOG}, or algorithm = \"sliding-window\"");
            table.problems.error(span.clone(), format!("{text} is more than a sliding log holds"), help);
        }
    }
}
