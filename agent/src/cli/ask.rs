//! The verbs that query the running agent.

use std::net::IpAddr;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use api::attack::Attack;
use api::cluster::SharedBansStatus;
use api::crowdsec::{AlertsStatus, CrowdSecStatus};
use api::request::{CountersReset, Request, Reset};
use api::source::{ClassOrigin, at_level};
use cluster::ClusterStatus;
use config::human;
use config::policy::Prefix;
use host::PROGRAM;
use ipnet::IpNet;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::exit::usage;
use super::fair;
use super::print::Print;
use super::table::{self, number};
use crate::allowances;
use crate::cli::arguments::{Options, TopOrder};
use crate::stats::{
    BanStatus, InterfaceStatus, LimitDefinition, LimitStatus, OpenConnection, Precision,
    SourceRequests, SourceStatus, Status, TopRow,
};

/// The most exemptions for a while that `agent status` names.
const MOST_ALLOWED: usize = 10;

/// A ban as text.
fn banned(ban: &BanStatus) -> String {
    let BanStatus { cidr, holder, also } = ban;
    let reason = holder
        .reason
        .as_ref()
        .map(|reason| format!(": {reason}"))
        .unwrap_or_default();
    if let (Some(list), Some(since)) = (holder.origin.strip_prefix("list:"), holder.since) {
        let since = std::time::UNIX_EPOCH + std::time::Duration::from_secs(since);
        return format!(
            "as {cidr}, by list {list} since {}",
            humantime::format_rfc3339_seconds(since)
        );
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

/// The error for a name that the running agent does not have.
pub(super) fn unknown<'n>(
    what: &str,
    name: &str,
    known: impl Iterator<Item = &'n str>,
) -> Option<String> {
    let known: Vec<&str> = known.collect();
    let has = || {
        if known.is_empty() {
            "none".to_owned()
        } else {
            known.join(", ")
        }
    };
    (!known.contains(&name))
        .then(|| format!("unknown {what} {name:?}; the running agent has: {}", has()))
}

/// Queries the agent, and prints the reply.
pub(super) fn ask<T: DeserializeOwned + Serialize>(
    options: &Options,
    request: &Request,
    table: impl FnOnce(&T) -> String,
) -> anyhow::Result<ExitCode> {
    let answer: T = options.client().ask(request)?;
    print(options, &answer, table)
}

fn print<T: Serialize>(
    options: &Options,
    document: &T,
    table: impl FnOnce(&T) -> String,
) -> anyhow::Result<ExitCode> {
    Print::from(options.json).document(document, |document| println!("{}", table(document)))?;
    Ok(ExitCode::SUCCESS)
}

pub fn status(options: &Options) -> anyhow::Result<ExitCode> {
    ask(options, &Request::Status, |status: &Status| {
        let interfaces: Vec<String> = status.interfaces.iter().map(interface).collect();
        let uptime = human::time(std::time::Duration::from_secs(status.uptime_seconds));
        let traffic =
            |packets, bytes| format!("{} packets, {}", number(packets), human::size(bytes));
        let totals = &status.totals;
        let sources = &status.sources;
        let mut text = table::pairs([
            ("version", status.version.clone()),
            ("mode", status.mode.clone()),
            ("uptime", uptime),
            (
                "config",
                status
                    .config
                    .clone()
                    .unwrap_or_else(|| "none: built-in limits, observed only".to_owned()),
            ),
            ("interfaces", interfaces.join(", ")),
            (
                "groups",
                if status.groups.is_empty() {
                    "none".to_owned()
                } else {
                    status.groups.join(", ")
                },
            ),
            (
                "passed",
                traffic(totals.passed_packets, totals.passed_bytes),
            ),
            (
                "throttled",
                traffic(totals.throttled_packets, totals.throttled_bytes),
            ),
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
        if let Some(proofs) = &status.proofs {
            text.push_str(&format!(
                "\nproofs: {} SYNs answered, {} refused, {} passed; {} ACKs accepted, {} refused",
                number(proofs.syns_answered),
                number(proofs.syns_refused),
                number(proofs.syns_passed),
                number(proofs.acks_accepted),
                number(proofs.acks_refused)
            ));
            if proofs.syns_challenged > 0 {
                text.push_str(&format!(
                    "; {} SYNs challenged, {} resets accepted",
                    number(proofs.syns_challenged),
                    number(proofs.resets_accepted)
                ));
            }
            if proofs.syns_to_closed_ports > 0 {
                text.push_str(&format!(
                    "; {} SYNs to ports without a listener",
                    number(proofs.syns_to_closed_ports)
                ));
            }
        }
        if !status.left_out.is_empty() {
            let names: Vec<&str> = status
                .left_out
                .iter()
                .map(|one| one.limit.as_str())
                .collect();
            text.push_str(&format!(
                "\nDEGRADED: not in effect, since the kernel cannot enforce it: {}",
                names.join(", ")
            ));
        }
        if let Some(has_room) = status.has_room {
            text.push_str(if has_room {
                "\nelastic limits allow more than their rate: the host has spare resources"
            } else {
                "\nelastic limits enforce their rate: the host has no spare resources"
            });
        }
        if !status.limits.is_empty() {
            text.push_str(&format!("\n\n{}\n", definitions(&status.limits)));
        }
        if !status.never_limit.is_empty() {
            text.push_str(&format!(
                "\nexempt by never_limit: {}",
                status.never_limit.join(", ")
            ));
        }
        for allowance in status.allowed.iter().take(MOST_ALLOWED) {
            text.push_str(&format!(
                "\n{} for a while: {} ({})",
                allowances::effect(allowance.times),
                allowance.cidr,
                allowances::terms(allowance)
            ));
        }
        if status.allowed.len() > MOST_ALLOWED {
            text.push_str(&format!(
                "\nallowed for a while: {} others ({PROGRAM} allow --list)",
                number((status.allowed.len() - MOST_ALLOWED) as u64)
            ));
        }
        for line in changes(status) {
            text.push('\n');
            text.push_str(&line);
        }
        for attack in &status.attacks {
            text.push('\n');
            text.push_str(&attack_text(attack));
        }
        for fair in &status.fair {
            text.push('\n');
            text.push_str(&fair::line(fair));
        }
        for notify in &status.notifications {
            text.push_str(&format!(
                "\nnotify {} ({}): {} delivered, {} dropped, events waiting: {}",
                notify.name,
                notify.to,
                number(notify.delivered),
                number(notify.dropped),
                number(notify.events_waiting)
            ));
        }
        for note in &status.notes {
            text.push_str("\nnote: ");
            text.push_str(note);
        }
        if let Some(crowdsec) = &status.crowdsec {
            text.push_str("\n\n");
            text.push_str(&crowdsec_text(crowdsec));
        }
        if let Some(cluster) = &status.cluster {
            text.push_str("\n\n");
            text.push_str(&cluster_text(cluster));
        }
        text
    })
}

/// An attack as text.
fn attack_text(attack: &Attack) -> String {
    let since = humantime::format_rfc3339_seconds(
        UNIX_EPOCH + Duration::from_secs_f64(attack.started.max(0.0)),
    );
    let sources: Vec<&str> = attack
        .sources
        .iter()
        .take(3)
        .map(|source| source.source.as_str())
        .collect();
    let sources = if sources.is_empty() {
        String::new()
    } else {
        format!("; most from {}", sources.join(", "))
    };
    human::printable(&format!(
        "attack on {} since {since}: {} packets/s refused, {:.0} % of its traffic, at most {}/s{sources}",
        attack.limit,
        number(attack.refused_per_second),
        100.0 * attack.refused_share,
        number(attack.peak_per_second)
    ))
}

/// An interface as text: how it is attached, or which others charge its packets and why.
fn interface(interface: &InterfaceStatus) -> String {
    match &interface.reason {
        Some(reason) => format!(
            "{} (enforced by {}: {reason})",
            interface.name,
            interface.enforced_by.join(", ")
        ),
        None => interface.to_string(),
    }
}

/// The last reload, the trial in progress, and the exempt addresses, as text.
fn changes(status: &Status) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(trial) = &status.trial {
        let left = human::seconds(trial.ends_in_seconds);
        lines.push(match &trial.rollback {
            Some(rollback) => format!(
                "on trial: {}, and rolling back fails since {} ({} attempts): {}; to keep it: {PROGRAM} confirm",
                trial.file,
                human::seconds(rollback.failing_for_seconds),
                rollback.attempts,
                rollback.error
            ),
            None => format!("on trial: {}, for another {left}; to keep it: {PROGRAM} confirm", trial.file),
        });
    }
    if let Some(last) = &status.last_reload {
        let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs_f64(last.at.max(0.0));
        let result = if last.ok {
            "ok"
        } else {
            "failed, nothing was changed"
        };
        let file = last.file.as_deref().unwrap_or("the built-in limits");
        let at = humantime::format_rfc3339_seconds(at);
        lines.push(if last.cause == "start" && last.ok {
            format!("started at {at} after a trial that was not confirmed")
        } else {
            format!("last reload ({}) of {file} at {at}: {result}", last.cause)
        });
        lines.extend(last.errors.iter().map(|error| format!("  {error}")));
        lines.extend(last.notes.iter().map(|note| format!("  note: {note}")));
    }
    if !status.protected.is_empty() {
        let named = status
            .protected
            .iter()
            .map(|one| format!("{} ({})", one.address, one.why));
        lines.push(format!("exempt: {}", named.collect::<Vec<_>>().join(", ")));
    }
    if !status.never_banned.is_empty() {
        let named = status.never_banned.iter().take(MOST_NEVER_BANNED);
        let named: Vec<String> = named
            .map(|one| format!("{} ({})", one.address, one.why))
            .collect();
        let others = match status.never_banned.len() - named.len() {
            0 => String::new(),
            count => format!(" and {count} others"),
        };
        lines.push(format!("never banned: {}{others}", named.join(", ")));
    }
    lines
}

/// The bouncer as text.
fn crowdsec_text(crowdsec: &CrowdSecStatus) -> String {
    let ago = |ago: Option<f64>| ago.map_or_else(|| "never".to_owned(), human::ago);
    let (decisions, prefixes) = (number(crowdsec.decisions), number(crowdsec.banned_prefixes));
    let decisions = format!(
        "{decisions}, {prefixes} prefixes banned, {} ignored",
        number(crowdsec.ignored.total())
    );
    let full = ago(crowdsec.last_full_pull_seconds_ago);
    let others = match crowdsec.exceptions.len().saturating_sub(MOST_EXCEPTIONS) {
        0 => String::new(),
        count => format!(" and {count} others"),
    };
    let named: Vec<&str> = crowdsec
        .exceptions
        .iter()
        .take(MOST_EXCEPTIONS)
        .map(String::as_str)
        .collect();
    let exceptions = if named.is_empty() {
        "none".to_owned()
    } else {
        format!("{}{others}", named.join(", "))
    };
    let alerts = crowdsec.alerts.as_ref().map_or_else(
        || "not sent: machine_id is not set".to_owned(),
        |alerts| {
            let AlertsStatus {
                sent,
                waiting,
                dropped,
                ..
            } = alerts;
            format!(
                "{} sent, {} waiting, {} dropped",
                number(*sent),
                number(*waiting),
                number(*dropped)
            )
        },
    );
    table::pairs([
        (
            "crowdsec",
            format!("{} at {}", crowdsec.state, crowdsec.url),
        ),
        ("decisions", decisions),
        (
            "last pull",
            format!(
                "{}, of all decisions {full}",
                ago(crowdsec.last_pull_seconds_ago)
            ),
        ),
        ("exceptions", exceptions),
        ("alerts", alerts),
    ])
}

/// The most exceptions that are printed.
const MOST_EXCEPTIONS: usize = 10;
/// The most of this host's addresses.
const MOST_NEVER_BANNED: usize = 10;

/// The cluster as text: its store, then each host's share of each limit.
fn cluster_text(cluster: &ClusterStatus) -> String {
    let mut store = format!("{} at {}", cluster.health, cluster.store.join(", "));
    if let (Some(answered_in), Some(ago)) =
        (cluster.answered_in_seconds, cluster.last_answer_seconds_ago)
    {
        store.push_str(&format!(
            ", replied {} within {}",
            human::ago(ago),
            human::seconds(answered_in)
        ));
    }
    if let Some(error) = cluster.last_error.as_ref().filter(|_| cluster.failures > 0) {
        store.push_str(&format!(
            "; {} failed requests, the last: {error}",
            number(cluster.failures)
        ));
    }
    let mut pairs = vec![("cluster node", cluster.node.clone()), ("store", store)];
    if !cluster.limits.is_empty() {
        pairs.push(("when store is down", cluster.when_store_is_down.clone()));
        pairs.push(("hosts seen", number(cluster.hosts)));
    }
    if let Some(bans) = &cluster.bans {
        let SharedBansStatus {
            others,
            published,
            waiting,
            left_out,
            ..
        } = bans;
        let numbers = [
            ("of other hosts", others),
            ("of this host", published),
            ("wait", waiting),
            ("left out", left_out),
        ];
        let text = |(what, count): &(&str, &u64)| format!("{} {what}", number(**count));
        pairs.push((
            "shared bans",
            numbers.iter().map(text).collect::<Vec<_>>().join(", "),
        ));
    }
    let head = table::pairs(pairs);
    if cluster.limits.is_empty() {
        return head;
    }
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let rows = cluster.limits.iter().flat_map(|limit| {
        let from = if limit.is_settling {
            format!("{}, settling", limit.share_from)
        } else {
            limit.share_from.clone()
        };
        let demand = |demand: f64| format!("{demand:.1}/s");
        let own = [
            limit.name.clone(),
            "this one".to_owned(),
            percent(limit.share),
            from,
            demand(limit.demand_per_second),
        ];
        let others = limit.shares.iter().map(move |host| {
            let share = percent(host.share);
            [
                limit.name.clone(),
                host.host.clone(),
                share,
                "store".to_owned(),
                demand(host.demand_per_second),
            ]
        });
        std::iter::once(own).chain(others)
    });
    format!(
        "{head}\n\n{}",
        table::render(["LIMIT", "HOST", "SHARE", "FROM", "DEMAND"], 2, rows)
    )
}

pub fn limits(options: &Options) -> anyhow::Result<ExitCode> {
    ask(options, &Request::Limits, |limits: &Vec<LimitStatus>| {
        if limits.is_empty() {
            return "No limits.".to_owned();
        }
        let counts = table::render(
            ["LIMIT", "PASSED", "THROTTLED", "WOULD THROTTLE", "KEYS"],
            1,
            limits.iter().flat_map(|limit| {
                let own = [
                    limit.definition.name.clone(),
                    number(limit.passed.packets),
                    number(limit.throttled.packets),
                    number(limit.would_throttle.packets),
                    number(limit.keys),
                ];
                let levels = limit.levels.iter().map(|level| {
                    [
                        format!("  at {}", level.level),
                        "-".to_owned(),
                        number(level.throttled.packets),
                        number(level.would_throttle.packets),
                        number(level.keys),
                    ]
                });
                std::iter::once(own).chain(levels)
            }),
        );
        format!(
            "{}\n\n{counts}",
            definitions(limits.iter().map(|limit| &limit.definition))
        )
    })
}

pub fn reset_counters(options: &Options) -> anyhow::Result<ExitCode> {
    ask(options, &Request::ResetCounters, |reset: &CountersReset| {
        let limits = if reset.limits == 1 { "limit" } else { "limits" };
        format!(
            "counters of {} {limits} are 0 now, in top, show and metrics too",
            number(reset.limits)
        )
    })
}

/// Each limit in one line.
pub(super) fn definitions<'d>(limits: impl IntoIterator<Item = &'d LimitDefinition>) -> String {
    table::definitions(
        limits
            .into_iter()
            .map(|limit| (limit.name.as_str(), limit.summary.as_str())),
    )
}

/// Passed packets: with `~` where scaled up from a sample, with `<=` for an upper bound.
fn passed(packets: u64, precision: Precision) -> String {
    format!("{}{}", precision.mark(), number(packets))
}

/// The time since the last refusal, as text.
fn ago(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "-".to_owned(), human::ago)
}

/// One table of sources.
pub fn top_once(
    count: Option<usize>,
    sort: Option<TopOrder>,
    options: &Options,
) -> anyhow::Result<ExitCode> {
    let mut rows: Vec<TopRow> = options.client().ask(&Request::Top)?;
    if sort == Some(TopOrder::Passed) {
        rows.sort_by_key(|row| std::cmp::Reverse(row.passed_packets));
    }
    rows.truncate(count.unwrap_or(usize::MAX));
    print(options, &rows, |rows: &Vec<TopRow>| {
        table::render_or(
            "No sources.",
            [
                "SOURCE",
                "LIMIT",
                "PASSED",
                "THROTTLED",
                "WOULD THR",
                "LAST",
            ],
            2,
            rows.iter().map(|row| {
                [
                    row.source_text(),
                    row.limit_text(),
                    passed(row.passed_packets, row.passed_precision),
                    number(row.throttled_packets),
                    number(row.would_throttle_packets),
                    ago(row.last_throttled_seconds_ago),
                ]
            }),
        )
    })
}

pub fn show(source: IpAddr, options: &Options) -> anyhow::Result<ExitCode> {
    ask(
        options,
        &Request::Show { source },
        |status: &SourceStatus| {
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
            let last = last.map_or_else(
                || "not in the recorded statistics".to_owned(),
                |(seconds, limit)| format!("{} by limit {limit}", human::ago(seconds)),
            );
            let head = table::pairs([
                ("source", status.source.clone()),
                ("class", class(status)),
                (
                    "banned",
                    status.ban.as_ref().map_or_else(|| "no".to_owned(), banned),
                ),
                (
                    "exempt",
                    status.exempt.clone().unwrap_or_else(|| {
                        if status.never_limit { "yes" } else { "no" }.to_owned()
                    }),
                ),
                ("last refused", last),
            ]);
            let raised = status.allowed.as_ref().filter(|_| status.exempt.is_none());
            let raised = raised.map_or_else(String::new, |of| {
                let what = allowances::effect(of.times);
                format!("\n{what}: {} ({})", of.cidr, allowances::terms(of))
            });
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
            let limits = if status.by_port.is_empty() {
                limits
            } else {
                let names = status.by_port.join(", ");
                format!("{limits}\n\nalso by source and port: {names}")
            };
            let limits = match connections(&status.connections) {
                Some(connections) => format!("{limits}\n\n{connections}"),
                None => limits,
            };
            let tables = match requests(&status.requests) {
                Some(requests) if status.limits.is_empty() => requests,
                Some(requests) => format!("{limits}\n\n{requests}"),
                None => limits,
            };
            format!("{head}{raised}\n\n{tables}")
        },
    )
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

pub fn reset(
    sources: Option<IpNet>,
    limit: Option<String>,
    options: &Options,
) -> anyhow::Result<ExitCode> {
    if let Some(limit) = &limit {
        let limits: Vec<LimitStatus> = options.client().ask(&Request::Limits)?;
        let names = limits.iter().map(|limit| limit.definition.name.as_str());
        if let Some(unknown) = unknown("limit", limit, names) {
            return Ok(usage(&unknown));
        }
    }
    let under = |limit: &String| format!(" under limit {limit}");
    let (request, whose) = match (sources, limit) {
        (Some(sources), limit) => {
            let sources = Prefix::from(sources);
            let under = limit.as_ref().map_or_else(String::new, under);
            let whose = format!("{}{under}", sources.short());
            let request = if sources.short() == sources.to_string() {
                let prefix = sources.to_string();
                Request::ResetPrefix { prefix, limit }
            } else {
                let source = sources.address();
                Request::Reset { source, limit }
            };
            (request, whose)
        }
        (None, limit) => {
            let limit = limit.unwrap_or_default();
            let whose = format!("limit {limit}");
            (Request::ResetLimit { limit }, whose)
        }
    };
    let is_of_all_limits = matches!(
        request,
        Request::Reset { limit: None, .. } | Request::ResetPrefix { limit: None, .. }
    );
    ask(options, &request, |reset: &Reset| {
        let states = if reset.forgotten == 1 {
            "state"
        } else {
            "states"
        };
        let done = format!("{} {states} of {whose} forgotten", number(reset.forgotten));
        if !is_of_all_limits {
            return done;
        }
        let kept = match &reset.kept[..] {
            [] => "limits that sources share keep theirs".to_owned(),
            kept => format!(
                "limits that sources share keep theirs, and so do limits by more than the address ({})",
                kept.join(", ")
            ),
        };
        format!("{done}; {kept}: {PROGRAM} reset --limit NAME")
    })
}
