//! Reports limits of groups that other programs have lifted.

use cgroup::Lifted;
use host::PROGRAM;

use super::{Event, EventKind, EventLog};

/// The most reports at once; a reload of systemd may lift the limits of all units.
const MOST: usize = 20;

/// Logs limits that other programs have lifted, and pushes their events.
pub fn report(log: &EventLog, mut all: Vec<Lifted>) {
    let rest = all.split_off(all.len().min(MOST));
    for one in all {
        let Lifted {
            group,
            member,
            file,
            count,
            reason,
        } = one;
        tracing::warn!(group, member, limit = file, "{file} of {member}: {reason}");
        log.push(Event {
            source: Some(member),
            limit: Some(file),
            group: Some(group),
            ..Event::now(EventKind::LimitLifted, count, reason)
        });
    }
    if !rest.is_empty() {
        let count = rest.len();
        let reason = format!(
            "{count} further limits were lifted; `{PROGRAM} groups` lists those that are not in effect"
        );
        tracing::warn!(count, "{reason}");
        log.push(Event::now(EventKind::LimitLifted, count as u64, reason));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_lifted_limits_at_once_are_few_events() {
        let log = EventLog::default();
        let lifted = |number: usize| Lifted {
            group: "g".to_owned(),
            member: format!("unit {number}.service"),
            file: "memory.max".to_owned(),
            count: 1,
            reason: "it is set again".to_owned(),
        };
        report(&log, (0..500).map(lifted).collect());
        let events = log.recent();
        assert_eq!(events.len(), MOST + 1);
        assert_eq!(events[0].source.as_deref(), Some("unit 0.service"));
        assert_eq!(events[MOST].count, 480);
    }
}
