//! `weir status`.

mod cluster;
mod crowdsec;
mod rules;

use std::process::ExitCode;
use std::time::Duration;

use api::attack::Attack;
use api::notification::NotificationStatus;
use api::request::Request;
use config::human;
use host::PROGRAM;

use super::ask::ask;
use super::table::{self, instant, number};
use super::{fair, limits};
use crate::allowances;
use crate::cli::arguments::Options;
use crate::stats::{InterfaceStatus, ProofStatus, Status};
use crate::tui::Glyphs;

/// The most exemptions for a while that are printed.
const MOST_ALLOWED: usize = 10;
/// The most of this host's addresses.
const MOST_NEVER_BANNED: usize = 10;

pub fn status(options: &Options) -> anyhow::Result<ExitCode> {
    ask(options, &Request::Status, text)
}

fn text(status: &Status) -> String {
    let mut text = overview(status);
    if let Some(proofs) = &status.proofs {
        text.push('\n');
        text.push_str(&proofs_text(proofs));
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
        let limits = limits::definitions(&status.limits);
        text.push_str(&format!("\n\n{limits}\n"));
    }
    let mut lines = exemptions(status);
    lines.extend(changes(status));
    lines.extend(status.attacks.iter().map(attack_text));
    let glyphs = Glyphs::of_environment();
    let fair = status.fair.iter();
    lines.extend(fair.flat_map(|fair| fair::lines(fair, glyphs)));
    lines.extend(status.notifications.iter().map(notify_text));
    lines.extend(status.notes.iter().map(|note| format!("note: {note}")));
    for line in lines {
        text.push('\n');
        text.push_str(&line);
    }
    if let Some(crowdsec) = &status.crowdsec {
        text.push_str("\n\n");
        text.push_str(&crowdsec::text(crowdsec));
    }
    for rules in &status.rules {
        text.push_str("\n\n");
        text.push_str(&rules::text(rules));
    }
    if let Some(cluster) = &status.cluster {
        text.push_str("\n\n");
        text.push_str(&cluster::text(cluster));
    }
    text
}

/// The agent and its counters.
fn overview(status: &Status) -> String {
    let interfaces: Vec<String> = status.interfaces.iter().map(interface).collect();
    let uptime = human::time(Duration::from_secs(status.uptime_seconds));
    let traffic = |packets, bytes| format!("{} packets, {}", number(packets), human::size(bytes));
    let totals = &status.totals;
    let sources = &status.sources;
    table::pairs([
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
    ])
}

fn proofs_text(proofs: &ProofStatus) -> String {
    let mut text = format!(
        "proofs: {} SYNs answered, {} refused, {} passed; {} ACKs accepted, {} refused",
        number(proofs.syns_answered),
        number(proofs.syns_refused),
        number(proofs.syns_passed),
        number(proofs.acks_accepted),
        number(proofs.acks_refused)
    );
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
    text
}

/// Exemptions by the config, and exemptions and raised limits for a while.
fn exemptions(status: &Status) -> Vec<String> {
    let mut lines = Vec::new();
    if !status.never_limit.is_empty() {
        lines.push(format!(
            "exempt by never_limit: {}",
            status.never_limit.join(", ")
        ));
    }
    let allowed = status.allowed.iter().take(MOST_ALLOWED).map(|allowance| {
        format!(
            "{} for a while: {} ({})",
            allowances::effect(allowance.times),
            allowance.cidr,
            allowances::terms(allowance)
        )
    });
    lines.extend(allowed);
    if status.allowed.len() > MOST_ALLOWED {
        lines.push(format!(
            "allowed for a while: {} others ({PROGRAM} allow --list)",
            number((status.allowed.len() - MOST_ALLOWED) as u64)
        ));
    }
    lines
}

fn notify_text(notify: &NotificationStatus) -> String {
    format!(
        "notify {} ({}): {} delivered, {} dropped, events waiting: {}",
        notify.name,
        notify.to,
        number(notify.delivered),
        number(notify.dropped),
        number(notify.events_waiting)
    )
}

fn attack_text(attack: &Attack) -> String {
    let since = instant(attack.started);
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
            None if trial.stream.is_some() => format!(
                "on trial: {}, confirmed by this host's health; to end it: {PROGRAM} revert",
                trial.file
            ),
            None => format!("on trial: {}, for another {left}; to keep it: {PROGRAM} confirm", trial.file),
        });
    }
    if let Some(last) = &status.last_reload {
        let result = if last.ok {
            "ok"
        } else {
            "failed, nothing was changed"
        };
        let file = last.file.as_deref().unwrap_or("the built-in limits");
        let at = instant(last.at);
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
        let named = status.never_banned.iter();
        let named = named.map(|one| format!("{} ({})", one.address, one.why));
        lines.push(format!(
            "never banned: {}",
            human::listed(named, MOST_NEVER_BANNED)
        ));
    }
    lines
}
