//! `[[limit]]` with `scope = "request"`: a limit that applications query.

use super::escalate::{self, Counts};
use super::limit;
use super::policy::{
    Algorithm, KeyEntry, OnFull, RequestEnforcement, RequestLimit, RequestUnit, Unit,
};
use super::rates::{ReadRates, require_bucket};
use super::read_limit::ReadLimit;
use super::report::Span;
use super::request_key;
use super::table::Table;
use super::units;

/// A limit of either scope.
pub enum AnyLimit {
    Packet(ReadLimit),
    Request(ReadRequestLimit),
}

/// A limit on requests and its name's span.
pub struct ReadRequestLimit {
    pub limit: RequestLimit,
    pub name_span: Span,
    pub spans: Spans,
}

/// The spans that checks against other tables use.
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
    let is_request = table
        .value("scope")
        .and_then(|value| value.get_ref().as_str())
        == Some("request");
    if is_request {
        read(table).map(AnyLimit::Request)
    } else {
        limit::read(table).map(AnyLimit::Packet)
    }
}

fn read(mut table: Table<'_, '_>) -> Option<ReadRequestLimit> {
    let name = table.name("limit", "\"credits-per-user\"");
    for key in [
        "direction",
        "protocol",
        "ports",
        "throttle",
        "sources",
        "interfaces",
    ] {
        if table.value(key).is_some() {
            let span = table.span_of(key);
            let message =
                format!("{key} conflicts with scope = \"request\": only limits on packets have it");
            table.problems.error(
                span,
                message,
                format!("leave out {key}, or scope = \"request\""),
            );
        }
    }
    let cluster = limit::cluster(&mut table);
    let units = &[
        ("credits", RequestUnit::Credits),
        ("requests", RequestUnit::Requests),
    ];
    let unit = table.word("unit", units).unwrap_or(RequestUnit::Requests);
    let algorithm = table
        .word("algorithm", Algorithm::WORDS)
        .unwrap_or(Algorithm::TokenBucket);
    limit::check_cluster(&mut table, cluster, algorithm);
    let key = request_key::read(&mut table);
    let has_source = key.iter().any(KeyEntry::is_source);
    let ipv4_prefix = prefix(&mut table, "ipv4_prefix", 32, 32, has_source);
    let ipv6_prefix = prefix(&mut table, "ipv6_prefix", 64, 128, has_source);
    let domain = table.string("domain", "\"envoy\"");
    if let Some(("", span)) = &domain {
        let help =
            "leave out domain for any, or write the one in Envoy's config: domain = \"envoy\"";
        table.problems.error(
            span.clone(),
            "empty domain: no request of Envoy has one",
            help,
        );
    }
    let domain = domain.map(|(text, _)| text.to_owned());
    let replaces = table
        .string("replaces", "\"logins\"")
        .map(|(text, _)| text.to_owned());
    let on_full = table.word("on_full", OnFull::WORDS).unwrap_or(OnFull::Pass);
    let actions = &[
        ("drop", RequestEnforcement::Enforce),
        ("observe", RequestEnforcement::Observe),
    ];
    let enforcement = table
        .word("action", actions)
        .unwrap_or(RequestEnforcement::Enforce);

    let rates = ReadRates::read(
        &mut table,
        Counts::Requests,
        Unit::Requests,
        algorithm,
        "\"600/min\"",
    );
    let initial = table.number("initial", 0, units::LARGEST_COUNT);
    require_bucket(&mut table, "initial", algorithm);
    let refill_every = table.time("refill_every", "\"1s\"");
    require_bucket(&mut table, "refill_every", algorithm);
    let escalate = escalate::read(&mut table, Counts::Requests);
    let most = rates
        .main
        .as_ref()
        .map(|main| rates.burst_of(main.rate))
        .or(rates.burst)
        .unwrap_or(u64::MAX);
    if initial.is_some_and(|initial| initial > most) {
        let span = table.span_of("initial");
        table.problems.error(
            span,
            format!("initial is above the burst of {most}"),
            format!("write at most {most}"),
        );
    }
    rates.check(&mut table);
    let spans = Spans {
        key: table.span_of("key"),
        domain: table.span_of("domain"),
        escalate: table.span_of("escalate"),
        refill_every: table.span_of("refill_every"),
        replaces: table.span_of("replaces"),
        rates: rates.all().map(|rate| rate.span.clone()).collect(),
    };
    table.finish();

    let ((name, name_span), rates) = (name?, rates.spec()?);
    let initial = initial.unwrap_or(rates.burst);
    let limit = RequestLimit {
        name: name.to_owned(),
        key,
        replaces,
        domain,
        ipv4_prefix,
        ipv6_prefix,
        unit,
        rates,
        initial,
        refill_every: refill_every.unwrap_or(0),
        enforcement,
        on_full,
        escalate,
        cluster,
    };
    Some(ReadRequestLimit {
        limit,
        name_span,
        spans,
    })
}

fn prefix(
    table: &mut Table<'_, '_>,
    key: &'static str,
    default: u8,
    longest: u64,
    has_source: bool,
) -> u8 {
    let length = table.number(key, 0, longest);
    if length.is_some() && !has_source {
        let span = table.span_of(key);
        let help = format!("leave out {key}, or add \"source\" to the key");
        table
            .problems
            .error(span, format!("{key} requires \"source\" in the key"), help);
    }
    length
        .and_then(|length| u8::try_from(length).ok())
        .unwrap_or(default)
}
