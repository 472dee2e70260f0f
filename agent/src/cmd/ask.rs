//! The verbs that ask the running agent.

use std::net::IpAddr;
use std::process::ExitCode;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Print;
use super::table::{self, number};
use crate::cli::Options;
use crate::cluster::ClusterStatus;
use crate::control::{Request, Reset};
use crate::human;
use crate::stats::{BanStatus, InterfaceStatus, LimitStatus, SourceStatus, Status, TopRow};

/// A ban in words.
fn banned(ban: &BanStatus) -> String {
    match ban.expires_in_seconds {
        Some(seconds) => format!("as {}, for another {}", ban.cidr, table::seconds(seconds)),
        None => format!("as {}, until it is lifted", ban.cidr),
    }
}

/// Asks, and prints the answer one way or the other.
pub(super) fn ask<T: DeserializeOwned + Serialize>(
    options: &Options,
    request: &Request,
    table: impl FnOnce(&T) -> String,
) -> anyhow::Result<ExitCode> {
    let answer: T = options.client().ask(request)?;
    match Print::from(options.json) {
        Print::Json => println!("{}", serde_json::to_string_pretty(&answer)?),
        Print::Table => println!("{}", table(&answer)),
    }
    Ok(ExitCode::SUCCESS)
}

pub fn status(options: &Options) -> anyhow::Result<ExitCode> {
    ask(options, &Request::Status, |status: &Status| {
        let interfaces: Vec<String> = status.interfaces.iter().map(interface).collect();
        let uptime = human::time(std::time::Duration::from_secs(status.uptime_seconds));
        let traffic = |packets, bytes| format!("{} packets, {} bytes", number(packets), number(bytes));
        let totals = &status.totals;
        let sources = &status.sources;
        let mut text = table::pairs([
            ("version", status.version.clone()),
            ("mode", status.mode.clone()),
            ("uptime", uptime),
            ("config", status.config.clone().unwrap_or_else(|| "none: built-in limits, observed only".to_owned())),
            ("interfaces", interfaces.join(", ")),
            ("groups", if status.groups.is_empty() { "none".to_owned() } else { status.groups.join(", ") }),
            ("passed", traffic(totals.passed_packets, totals.passed_bytes)),
            ("throttled", traffic(totals.throttled_packets, totals.throttled_bytes)),
            (
                "sources",
                format!(
                    "{} of {} tracked, {} evicted",
                    number(sources.tracked),
                    number(sources.capacity),
                    number(sources.evicted)
                ),
            ),
            ("bans", number(status.bans)),
        ]);
        if let Some(has_room) = status.has_room {
            text.push_str(if has_room {
                "\nelastic limits give more than their rate: the host has room"
            } else {
                "\nelastic limits hold at their rate: the host has no room"
            });
        }
        for line in changes(status) {
            text.push('\n');
            text.push_str(&line);
        }
        for note in &status.notes {
            text.push_str("\nnote: ");
            text.push_str(note);
        }
        if let Some(cluster) = &status.cluster {
            text.push_str("\n\n");
            text.push_str(&cluster_text(cluster));
        }
        text
    })
}

/// An interface: how it is attached, or which others charge its packets and why.
fn interface(interface: &InterfaceStatus) -> String {
    match &interface.reason {
        Some(reason) => format!("{} (enforced by {}: {reason})", interface.name, interface.enforced_by.join(", ")),
        None => interface.to_string(),
    }
}

/// The last reload, the trial in progress, and who is protected, in words.
fn changes(status: &Status) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(trial) = &status.trial {
        let left = table::seconds(trial.ends_in_seconds);
        lines.push(match &trial.rollback {
            Some(rollback) => format!(
                "on trial: {}, and rolling back fails since {} ({} attempts): {}; to keep it: agent confirm",
                trial.file,
                table::seconds(rollback.failing_for_seconds),
                rollback.attempts,
                rollback.error
            ),
            None => format!("on trial: {}, for another {left}; to keep it: agent confirm", trial.file),
        });
    }
    if let Some(last) = &status.last_reload {
        let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs_f64(last.at.max(0.0));
        let result = if last.ok { "ok" } else { "failed, nothing was changed" };
        let file = last.file.as_deref().unwrap_or("the built-in limits");
        let at = humantime::format_rfc3339_seconds(at);
        lines.push(format!("last reload ({}) of {file} at {at}: {result}", last.cause));
        lines.extend(last.errors.iter().map(|error| format!("  {error}")));
        lines.extend(last.notes.iter().map(|note| format!("  note: {note}")));
    }
    if !status.protected.is_empty() {
        let named = status.protected.iter().map(|one| format!("{} ({})", one.address, one.why));
        lines.push(format!("never throttled: {}", named.collect::<Vec<_>>().join(", ")));
    }
    lines
}

/// The cluster in words: its store, then each host's share of each limit.
fn cluster_text(cluster: &ClusterStatus) -> String {
    let mut store = format!("{} at {}", cluster.health, cluster.store.join(", "));
    if let (Some(answered_in), Some(ago)) = (cluster.answered_in_seconds, cluster.last_answer_seconds_ago) {
        store.push_str(&format!(", answered {} ago within {}", table::seconds(ago), table::seconds(answered_in)));
    }
    if let Some(error) = cluster.last_error.as_ref().filter(|_| cluster.failures > 0) {
        store.push_str(&format!("; {} failed requests, the last: {error}", number(cluster.failures)));
    }
    let head = table::pairs([
        ("cluster node", cluster.node.clone()),
        ("store", store),
        ("when it is down", cluster.when_store_is_down.clone()),
        ("hosts seen", number(cluster.hosts)),
    ]);
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let rows = cluster.limits.iter().flat_map(|limit| {
        let from = if limit.is_settling { format!("{}, settling", limit.share_from) } else { limit.share_from.clone() };
        let demand = |demand: f64| format!("{demand:.1}/s");
        let own =
            [limit.name.clone(), "this one".to_owned(), percent(limit.share), from, demand(limit.demand_per_second)];
        let others = limit.shares.iter().map(move |host| {
            let share = percent(host.share);
            [limit.name.clone(), host.host.clone(), share, "store".to_owned(), demand(host.demand_per_second)]
        });
        std::iter::once(own).chain(others)
    });
    format!("{head}\n\n{}", table::render(["LIMIT", "HOST", "SHARE", "FROM", "DEMAND"], 2, rows))
}

pub fn limits(options: &Options) -> anyhow::Result<ExitCode> {
    ask(options, &Request::Limits, |limits: &Vec<LimitStatus>| {
        table::render(
            [
                "LIMIT",
                "DIRECTION",
                "KEY",
                "RATE",
                "ALGORITHM",
                "BURST",
                "PASSED",
                "THROTTLED",
                "WOULD THROTTLE",
                "KEYS",
            ],
            5,
            limits.iter().map(|limit| {
                [
                    limit.definition.name.clone(),
                    limit.definition.direction.clone(),
                    limit.definition.key.clone(),
                    format!("{} {}", limit.definition.rate, limit.definition.unit),
                    limit.definition.algorithm.clone(),
                    number(limit.definition.burst),
                    number(limit.passed.packets),
                    number(limit.throttled.packets),
                    number(limit.would_throttle.packets),
                    number(limit.keys),
                ]
            }),
        )
    })
}

/// One table of sources.
pub fn top_once(options: &Options) -> anyhow::Result<ExitCode> {
    ask(options, &Request::Top, |rows: &Vec<TopRow>| {
        table::render(
            ["SOURCE", "LIMIT", "PASSED", "THROTTLED"],
            2,
            rows.iter().map(|row| {
                [row.source.clone(), row.limit.clone(), number(row.passed_packets), number(row.throttled_packets)]
            }),
        )
    })
}

pub fn show(source: IpAddr, options: &Options) -> anyhow::Result<ExitCode> {
    ask(options, &Request::Show { source }, |status: &SourceStatus| {
        let last = status.last_refused.as_ref().map_or_else(
            || "never, as far as is remembered".to_owned(),
            |last| format!("{} ago by limit {}", table::seconds(last.seconds_ago), last.limit),
        );
        let head = table::pairs([
            ("source", status.source.clone()),
            ("class", status.class.clone()),
            ("banned", status.ban.as_ref().map_or_else(|| "no".to_owned(), banned)),
            ("never limited", if status.never_limit { "yes" } else { "no" }.to_owned()),
            ("last refused", last),
        ]);
        let limits = table::render(
            ["LIMIT", "REMAINING", "RETRY AFTER", "PASSED", "THROTTLED"],
            1,
            status.limits.iter().map(|limit| {
                [
                    limit.name.clone(),
                    number(limit.remaining),
                    table::seconds(limit.retry_after_seconds),
                    number(limit.passed_packets),
                    number(limit.throttled_packets),
                ]
            }),
        );
        format!("{head}\n\n{limits}")
    })
}

pub fn reset(source: Option<IpAddr>, limit: Option<String>, options: &Options) -> anyhow::Result<ExitCode> {
    let (request, whose) = match (source, limit) {
        (Some(source), _) => (Request::Reset { source }, source.to_string()),
        (None, limit) => {
            let limit = limit.unwrap_or_default();
            (Request::ResetLimit { limit: limit.clone() }, format!("limit {limit}"))
        }
    };
    ask(options, &request, |reset: &Reset| format!("{} states of {whose} forgotten", reset.forgotten))
}
