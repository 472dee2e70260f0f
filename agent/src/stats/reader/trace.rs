//! Converts the kernel's log of verdicts to lines with names.

use api::trace::{TraceLine, TraceVerdict};
use common::counters::{BYPASS_ROWS, Bypass};
use common::packet::Direction;
use common::throttle::{Outcome, TableEvent};
use config::policy::{Action, Limit};
use datapath::{Datapath, TraceRecord};

use super::Reader;
use crate::stats::monotonic_nanoseconds;
use api::event::{exceeded_at, seconds_since_1970};

const PROTOCOLS: [&str; 5] = ["tcp", "udp", "icmp", "other", "hidden"];

impl Reader<'_> {
    /// Takes the logged verdicts, oldest first, and the number of lost ones.
    #[must_use]
    pub fn drain_trace(&self) -> (Vec<TraceLine>, u64) {
        let (mut lines, mut lost) = (Vec::new(), 0);
        for datapath in self.datapaths() {
            let Some(ring) = datapath.trace() else {
                continue;
            };
            let (records, gaps) = ring.drain();
            lines.extend(
                records
                    .iter()
                    .map(|record| self.trace_line(datapath, record)),
            );
            lost += gaps;
        }
        lines.sort_by(|a: &TraceLine, b: &TraceLine| a.time.total_cmp(&b.time));
        (lines, lost)
    }

    fn trace_line(&self, datapath: &Datapath, record: &TraceRecord) -> TraceLine {
        let row = record.counter.checked_sub(BYPASS_ROWS);
        let rule = row.and_then(|row| datapath.image().catalogue.get(row as usize));
        let limit = rule.and_then(|rule| self.config.limits.get(rule.at.limit));
        let has_passed_all = matches!(record.outcome, None | Some(Outcome::Passed));
        let age = monotonic_nanoseconds().saturating_sub(record.at) as f64 / 1e9;
        let name = nix::net::if_::if_indextoname(record.interface).ok();
        TraceLine {
            time: seconds_since_1970() - age,
            source: Some(record.source.to_string()),
            verdict: match record.outcome {
                _ if record.is_refused => TraceVerdict::Throttled,
                Some(Outcome::WouldThrottle) => TraceVerdict::WouldThrottle,
                _ => TraceVerdict::Passed,
            },
            limit: limit
                .filter(|_| !has_passed_all)
                .map(|limit| limit.name.clone()),
            reason: match (limit, rule) {
                (Some(limit), Some(rule)) => reason(limit, rule.at.level, record),
                _ => bypass(record.counter).to_owned(),
            },
            direction: Some(match datapath.direction() {
                Direction::Ingress => "ingress".to_owned(),
                Direction::Egress => "egress".to_owned(),
            }),
            interface: name.map(|name| name.to_string_lossy().into_owned()),
            protocol: PROTOCOLS
                .get(record.protocol as usize)
                .map(|&name| name.to_owned()),
            port: Some(record.port).filter(|port| *port != 0),
            packets: record.packets.into(),
            bytes: record.bytes.into(),
        }
    }
}

/// The reason of a verdict by rules.
fn reason(limit: &Limit, level: usize, record: &TraceRecord) -> String {
    let exceeded = exceeded_at(limit, level);
    match (record.outcome, record.event) {
        (Some(Outcome::Contended), _) => "other CPUs kept changing the state of its key".to_owned(),
        (Some(Outcome::Throttled | Outcome::WouldThrottle), Some(TableEvent::FullThrottled)) => {
            "the table of sources is full (on_full = \"throttle\")".to_owned()
        }
        (Some(Outcome::Throttled | Outcome::WouldThrottle), Some(TableEvent::FullShared)) => {
            format!(
                "{exceeded}, for all new sources together: the table of sources is full (on_full = \"share\")"
            )
        }
        (Some(Outcome::Throttled | Outcome::WouldThrottle), _) => exceeded,
        (Some(Outcome::Over), _) if matches!(limit.action, Action::Mark(_)) => {
            format!("{exceeded}: marked")
        }
        (Some(Outcome::Over), _) => format!("{exceeded}: passed as throttle allows"),
        (_, Some(TableEvent::FullPassed)) => {
            "the table of sources is full (on_full = \"pass\")".to_owned()
        }
        (_, _) => "within its limits".to_owned(),
    }
}

/// The reason why no rule applied, by row of counters.
fn bypass(counter: u32) -> &'static str {
    const REASONS: [(Bypass, &str); BYPASS_ROWS as usize] = [
        (Bypass::Unlimited, "no limit applies to it"),
        (
            Bypass::NotIp,
            "not an IP packet, within the limit of its kind",
        ),
        (
            Bypass::Essential,
            "neighbour discovery or DHCP, within the limit of its kind",
        ),
        (Bypass::NeverLimit, "exempt (never_limit)"),
        (Bypass::Malformed, "its protocol is hidden"),
        (Bypass::Banned, "banned"),
        (
            Bypass::EssentialThrottled,
            "neighbour discovery or DHCP above the limit of its kind",
        ),
        (
            Bypass::NotIpThrottled,
            "not an IP packet, above the limit of its kind",
        ),
        (Bypass::Unproven, "an ACK without a valid SYN cookie"),
        (Bypass::Answered, "a SYN that was answered by a SYN cookie"),
        (Bypass::Challenged, "a SYN that was answered by a challenge"),
        (
            Bypass::Unanswered,
            "a SYN that was to be answered: above the limit on answers, or in a fragment",
        ),
        (Bypass::Proven, "an ACK with a valid SYN cookie"),
        (
            Bypass::ProvenRefused,
            "an ACK with a valid SYN cookie, whose connection a limit refuses",
        ),
        (
            Bypass::WithoutCookie,
            "a SYN, while the kernel has no SYN cookies in use",
        ),
        (Bypass::ProvenByReset, "a reset that proves an address"),
        (Bypass::Closed, "a SYN to a port without a listener"),
    ];
    REASONS
        .iter()
        .find(|(bypass, _)| *bypass as u32 == counter)
        .map_or("unknown", |(_, reason)| reason)
}
