//! `weir show`: everything about a source.

use std::net::IpAddr;
use std::process::ExitCode;

use api::request::Request;
use api::source::{ClassOrigin, at_level};
use config::human;

use super::ask::ask;
use super::fair;
use super::table::{self, ago, instant, number, passed};
use crate::allowances;
use crate::cli::arguments::Options;
use crate::stats::{BanStatus, OpenConnection, SourceRequests, SourceStatus};

pub fn show(source: IpAddr, options: &Options) -> anyhow::Result<ExitCode> {
    ask(options, &Request::Show { source }, text)
}

fn text(status: &SourceStatus) -> String {
    let head = table::pairs([
        ("source", status.source.clone()),
        ("class", class(status)),
        (
            "banned",
            status.ban.as_ref().map_or_else(|| "no".to_owned(), banned),
        ),
        (
            "exempt",
            status
                .exempt
                .clone()
                .unwrap_or_else(|| if status.never_limit { "yes" } else { "no" }.to_owned()),
        ),
        ("last refused", last_refused(status)),
    ]);
    let raised = status.allowed.as_ref().filter(|_| status.exempt.is_none());
    let raised = raised.map_or_else(String::new, |of| {
        let what = allowances::effect(of.times);
        format!("\n{what}: {} ({})", of.cidr, allowances::terms(of))
    });
    let mut limits = limits(status);
    if let Some(connections) = connections(&status.connections) {
        limits = format!("{limits}\n\n{connections}");
    }
    let tables = match requests(&status.requests) {
        Some(requests) if status.limits.is_empty() => requests,
        Some(requests) => format!("{limits}\n\n{requests}"),
        None => limits,
    };
    format!("{head}{raised}\n\n{tables}")
}

/// The last refusal by a limit on packets or on requests.
fn last_refused(status: &SourceStatus) -> String {
    let by_packets = status.last_refused.iter().map(|last| {
        let limit = at_level(&last.limit, last.level.as_deref());
        (last.seconds_ago, limit)
    });
    let by_requests = status.requests.iter().filter_map(|limit| {
        let is_refused = limit.throttled_requests > 0;
        let seconds = limit.last_throttled_seconds_ago.filter(|_| is_refused)?;
        Some((seconds, limit.name.clone()))
    });
    let last = by_packets
        .chain(by_requests)
        .min_by(|(one, _), (other, _)| one.total_cmp(other));
    last.map_or_else(
        || "not in the recorded statistics".to_owned(),
        |(seconds, limit)| format!("{} by limit {limit}", human::ago(seconds)),
    )
}

/// Limits on packets.
fn limits(status: &SourceStatus) -> String {
    let none = if status.by_port.is_empty() {
        "No limits apply."
    } else {
        "No limits by source alone apply."
    };
    let limits = table::render_or(
        none,
        [
            "LIMIT",
            "REMAINING",
            "RETRY AFTER",
            "PASSED",
            "THROTTLED",
            "WOULD THR",
            "LAST",
        ],
        1,
        status.limits.iter().map(|limit| {
            [
                fair::name_of(limit),
                limit.remaining.map_or_else(|| "-".to_owned(), number),
                human::seconds(limit.retry_after_seconds),
                passed(limit.passed_packets, limit.passed_precision),
                number(limit.throttled_packets),
                number(limit.would_throttle_packets),
                ago(limit.last_throttled_seconds_ago),
            ]
        }),
    );
    if status.by_port.is_empty() {
        return limits;
    }
    let names = status.by_port.join(", ");
    format!("{limits}\n\nalso by source and port: {names}")
}

/// A ban as text.
fn banned(ban: &BanStatus) -> String {
    let BanStatus { cidr, holder, also } = ban;
    let reason = holder
        .reason
        .as_ref()
        .map(|reason| format!(": {reason}"))
        .unwrap_or_default();
    if let (Some(list), Some(since)) = (holder.origin.strip_prefix("list:"), holder.since) {
        let since = instant(since as f64);
        return format!("as {cidr}, by list {list} since {since}");
    }
    let owners: Vec<&str> = also.iter().map(|also| also.owner.as_str()).collect();
    let others = if owners.is_empty() {
        String::new()
    } else {
        format!("; also by {}", owners.join(", "))
    };
    let owner = &holder.owner;
    match holder.expires_in_seconds {
        Some(seconds) => format!(
            "as {cidr}, by {owner}, for another {}{reason}{others}",
            human::seconds(seconds)
        ),
        None => format!("as {cidr}, by {owner}, until it is lifted{reason}{others}"),
    }
}

/// The class, and the list from which it comes.
fn class(status: &SourceStatus) -> String {
    let list = |from: &ClassOrigin| {
        from.origin
            .strip_prefix("list:")
            .unwrap_or(&from.origin)
            .to_owned()
    };
    match &status.class_from {
        Some(from) => format!("{}, by {} in list {}", status.class, from.cidr, list(from)),
        None => status.class.clone(),
    }
}

/// The connections that a person can look through, and the number of the others.
fn connections(open: &[OpenConnection]) -> Option<String> {
    const SHOWN: usize = 20;
    let row = |open: &OpenConnection| {
        [
            open.port.to_string(),
            open.local_port.to_string(),
            human::seconds(open.open_seconds),
        ]
    };
    let rendered = table::render(
        ["FROM PORT", "TO PORT", "OPEN FOR"],
        0,
        open.iter().take(SHOWN).map(row),
    );
    let more = open.len().saturating_sub(SHOWN);
    match open.len() {
        0 => None,
        _ if more > 0 => Some(format!(
            "{rendered}\nand {} more connections",
            number(more as u64)
        )),
        _ => Some(rendered),
    }
}

/// Limits on requests with something to report about a source.
fn requests(rows: &[SourceRequests]) -> Option<String> {
    let row = |limit: &SourceRequests| {
        [
            limit.name.clone(),
            limit.remaining.map_or_else(|| "-".to_owned(), number),
            limit
                .retry_after_seconds
                .map_or_else(|| "-".to_owned(), human::seconds),
            number(limit.throttled_requests),
            number(limit.would_throttle_requests),
            ago(limit.last_throttled_seconds_ago),
        ]
    };
    let heading = [
        "REQUEST LIMIT",
        "REMAINING",
        "RETRY AFTER",
        "REFUSED",
        "WOULD REF",
        "LAST",
    ];
    (!rows.is_empty()).then(|| table::render(heading, 1, rows.iter().map(row)))
}
