//! From the kernel's records to events that name who and why.

use common::event::Event as Record;
use common::rule::KeyKind;

use super::{Reader, monotonic_nanoseconds};
use crate::config::policy::{Limit, ProtocolFilter};
use crate::datapath::Datapath;
use crate::events::{Event, What, seconds_since_1970};

impl Reader<'_> {
    /// Takes out what the programs in force have told: events, and how many were lost.
    #[must_use]
    pub fn drain_events(&self) -> (Vec<Event>, u64) {
        let (mut events, mut lost) = (Vec::new(), 0);
        for datapath in self.datapaths() {
            events.extend(datapath.events().drain().iter().filter_map(|record| self.event(datapath, record)));
            // What cannot be counted now is the next time.
            lost += datapath.events().newly_lost().unwrap_or(0);
        }
        events.sort_by(|a: &Event, b: &Event| a.time.total_cmp(&b.time));
        (events, lost)
    }

    /// `None` if it is not of a rule of this policy.
    fn event(&self, datapath: &Datapath, record: &Record) -> Option<Event> {
        let row = record.counter.checked_sub(common::counters::BYPASS_ROWS)?;
        let limit = self.config.limits.get(datapath.image().catalogue.get(row as usize)?.limit)?;
        let group = self.groups().get(record.key.group as usize)?;
        let age = monotonic_nanoseconds().saturating_sub(record.at) as f64 / 1e9;
        let has_port = group.key.key == KeyKind::AddressPort as u8;
        Some(Event {
            time: seconds_since_1970() - age,
            source: Some(self.describe(&record.key, &group.key)),
            limit: Some(limit.name.clone()),
            group: None,
            verdict: if record.verdict == Record::WOULD_THROTTLE { What::WouldThrottle } else { What::Throttled },
            count: record.count,
            reason: reason(limit),
            protocol: (limit.protocol != ProtocolFilter::Any).then(|| limit.protocol.to_string()),
            port: has_port.then_some(record.key.extra as u16),
            direction: Some(limit.direction_name().to_owned()),
        })
    }
}

fn reason(limit: &Limit) -> String {
    let burst = if limit.algorithm.has_burst() { format!(", burst {}", limit.burst) } else { String::new() };
    format!("more than {} {}{burst}", limit.rate_text(), limit.unit)
}
