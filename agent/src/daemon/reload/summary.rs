//! A one-line summary of the config in effect, for the log and the service's status.

use api::status::LeftOut;
use config::policy::Mode;
use host::PROGRAM;

use super::source::Source;
use crate::daemon::events::{Event, EventKind, EventLog};
use crate::daemon::packets::PacketEngine;

/// Logs the limits that a start left out, and makes events of them.
pub fn report_left_out(events: &EventLog, left_out: &[LeftOut]) {
    for one in left_out {
        tracing::error!("{one}; the other limits are in effect, and {PROGRAM} reload tries again");
        events.push(Event {
            limit: Some(one.limit.clone()),
            ..Event::now(EventKind::LeftOut, 1, one.reason.clone())
        });
    }
}

/// The interfaces to which programs are attached, and those that the agent waits for.
fn interfaces(on: &[String], waits_for: &[String]) -> String {
    let (on, waits_for) = (on.join(", "), waits_for.join(", "));
    match (on.is_empty(), waits_for.is_empty()) {
        (false, true) => on,
        (false, false) => format!("{on}, waiting for {waits_for}"),
        (true, false) => format!("no interface yet, waiting for {waits_for}"),
        (true, true) => "no interface".to_owned(),
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
            let on = interfaces(&on, &packets.waits_for());
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
        let zone = cluster.zone.as_ref();
        let zone = zone.map_or(String::new(), |zone| format!(" in zone {}", zone.name));
        parts.push(format!(
            "sharing limits with other hosts as {}{zone} through {}",
            cluster.node,
            stores.join(", ")
        ));
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_names_the_interfaces_that_it_waits_for() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let said = |on: &[&str], waits_for: &[&str]| interfaces(&names(on), &names(waits_for));
        assert_eq!(
            said(&["eth0 (native)", "eth1 (tc)"], &[]),
            "eth0 (native), eth1 (tc)"
        );
        assert_eq!(
            said(&["eth0 (native)"], &["srv9"]),
            "eth0 (native), waiting for srv9"
        );
        assert_eq!(
            said(&[], &["srv9", "tap*"]),
            "no interface yet, waiting for srv9, tap*"
        );
        assert_eq!(said(&[], &[]), "no interface");
    }
}
