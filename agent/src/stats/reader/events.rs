//! Converts the kernel's event records to events with names.

use common::counters::SampleKey;
use common::event::Event as Record;
use common::key::Key;
use common::rule::{KeyKind, Rule};
use config::policy::ProtocolFilter;
use datapath::Datapath;
use host::monotonic_nanoseconds;

use super::Reader;
use crate::stats::source_count;
use api::event::{Event, EventKind, exceeded_at, seconds_since_1970};

impl Reader<'_> {
    /// Takes the events of the programs in effect, and the number of lost ones.
    #[must_use]
    pub fn drain_events(&self) -> (Vec<Event>, u64) {
        let (mut events, mut lost) = (Vec::new(), 0);
        for datapath in self.datapaths() {
            events.extend(
                datapath
                    .events()
                    .drain()
                    .iter()
                    .filter_map(|record| self.event(datapath, record)),
            );
            // If this fails, the next call counts them.
            lost += datapath.events().newly_lost().unwrap_or(0);
        }
        events.sort_by(|a: &Event, b: &Event| a.time.total_cmp(&b.time));
        (events, lost)
    }

    /// `None` if the record is not of a rule of this policy.
    fn event(&self, datapath: &Datapath, record: &Record) -> Option<Event> {
        let row = record.counter.checked_sub(common::counters::BYPASS_ROWS)?;
        let counted = datapath.image().catalogue.get(row as usize)?;
        let limit = self.config.limits.get(counted.at.limit)?;
        let group = self.groups().get(record.key.group as usize)?;
        let age = monotonic_nanoseconds().saturating_sub(record.at) as f64 / 1e9;
        let has_port = group.key.key == KeyKind::AddressPort as u8;
        Some(Event {
            time: seconds_since_1970() - age,
            source: Some(self.describe(&record.key, &group.key)),
            limit: Some(limit.name.clone()),
            level: limit.level_text(counted.at.level),
            sources: (counted.at.level > 0)
                .then(|| self.refused_sources(record, rule_of(datapath, row)))
                .flatten(),
            group: None,
            verdict: if record.verdict == Record::WOULD_THROTTLE {
                EventKind::WouldThrottle
            } else {
                EventKind::Throttled
            },
            count: record.count,
            reason: exceeded_at(limit, counted.at.level),
            protocol: (limit.protocol != ProtocolFilter::Any).then(|| limit.protocol.to_string()),
            port: has_port.then_some(record.key.extra as u16),
            direction: Some(limit.direction_name().to_owned()),
            owner: None,
            attack: None,
        })
    }

    /// The estimated sources of a level's key.
    fn refused_sources(&self, record: &Record, rule: Option<&Rule>) -> Option<u64> {
        let entry = SampleKey::refused(record.key.group, rule?.position);
        let sample = self
            .ingress
            .sample(
                self.egress,
                &Key {
                    group: entry.0,
                    ..record.key
                },
            )
            .ok()??;
        source_count::estimate(&sample.sources)
    }
}

/// The rule of a row of counters, without [`common::counters::BYPASS_ROWS`], for the default class.
fn rule_of(datapath: &Datapath, row: u32) -> Option<&Rule> {
    datapath.image().rules.get(row as usize)
}
