//! A one-line summary of the config in effect, for the log and the service's status.

use api::status::LeftOut;
use config::policy::Mode;

use super::source::Source;
use crate::daemon::events::{Event, EventKind, EventLog};
use crate::daemon::packets::PacketEngine;

/// Logs the limits that a start left out, and makes events of them.
pub fn report_left_out(events: &EventLog, left_out: &[LeftOut]) {
    for one in left_out {
        tracing::error!("{one}; the other limits are in effect, and agent reload tries again");
        events.push(Event {
            limit: Some(one.limit.clone()),
            ..Event::now(EventKind::LeftOut, 1, one.reason.clone())
        });
    }
}

/// Mode, limits, interfaces, groups and cluster of a config in effect.
#[must_use]
pub fn in_effect(source: &Source, packets: Option<&PacketEngine>) -> String {
    let config = &source.config;
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let does = match config.agent.mode {
        Mode::Enforce => "enforcing",
        Mode::Observe => "observing",
    };
    let mut parts = Vec::new();
    match packets {
        Some(packets) => {
            let on: Vec<String> = packets
                .modes()
                .into_iter()
                .map(|(name, mode)| format!("{name} ({mode})"))
                .collect();
            let on = if on.is_empty() {
                "no interface, until one of the config appears".to_owned()
            } else {
                on.join(", ")
            };
            let count = config.limits.len();
            parts.push(format!("{does} {count} limit{} on {on}", plural(count)));
        }
        None => parts.push("no limit on packets".to_owned()),
    }
    if let count @ 1.. = source.left_out.len() {
        parts.push(format!(
            "DEGRADED: {count} limit{} not in effect",
            plural(count)
        ));
    }
    if let count @ 1.. = config.decide.limits.len() {
        parts.push(format!("{does} {count} limit{} on requests", plural(count)));
    }
    if let count @ 1.. = config.groups.len() {
        parts.push(format!("limiting {count} process group{}", plural(count)));
    }
    if let Some(cluster) = &config.cluster {
        let stores: Vec<String> = cluster.store.iter().map(ToString::to_string).collect();
        parts.push(format!(
            "sharing limits with other hosts as {} through {}",
            cluster.node,
            stores.join(", ")
        ));
    }
    parts.join("; ")
}
