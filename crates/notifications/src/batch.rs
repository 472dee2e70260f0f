//! Events that wait for the next notification: a few of each kind, and the number of the others.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{Event, EventKind};

/// The most events of a kind that one notification names, so that a storm of one kind hides no other.
pub const NAMED: usize = 20;

/// Events of one notification. Its size is bounded by the number of kinds.
#[derive(Debug, Default)]
pub struct Batch {
    pub events: Vec<Arc<Event>>,
    /// By kind, what is not among `events`.
    pub left_out: BTreeMap<&'static str, u64>,
    named: BTreeMap<&'static str, usize>,
    /// The events that were added.
    pub count: u64,
}

impl Batch {
    /// Adds an event, or counts it.
    pub fn add(&mut self, event: &Arc<Event>) {
        self.count += 1;
        let kind = event.verdict.name();
        let is_ban = matches!(event.verdict, EventKind::Banned | EventKind::WouldBan);
        // The log itself counts most bans of a storm in one event without a source.
        let is_sum = is_ban && event.source.is_none();
        let named = self.named.entry(kind).or_default();
        if *named < NAMED && !is_sum {
            *named += 1;
            self.events.push(Arc::clone(event));
        } else {
            *self.left_out.entry(kind).or_default() += if is_ban { event.count } else { 1 };
        }
    }

    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: EventKind, source: Option<&str>, count: u64) -> Arc<Event> {
        Arc::new(Event {
            source: source.map(str::to_owned),
            ..Event::now(kind, count, String::new())
        })
    }

    #[test]
    fn a_storm_of_one_kind_is_counted_and_hides_no_other() {
        let mut batch = Batch::default();
        assert!(batch.is_empty());
        for _ in 0..100_000 {
            batch.add(&event(EventKind::Banned, Some("192.0.2.1"), 1));
        }
        batch.add(&event(EventKind::Attack, None, 5_000));
        assert_eq!(batch.events.len(), NAMED + 1);
        assert_eq!(batch.events[NAMED].verdict, EventKind::Attack);
        assert_eq!(
            batch.left_out,
            BTreeMap::from([("banned", 100_000 - NAMED as u64)])
        );
        assert_eq!(batch.count, 100_001);
    }

    #[test]
    fn bans_that_the_log_counted_are_left_out_with_their_number() {
        let mut batch = Batch::default();
        batch.add(&event(EventKind::Banned, Some("192.0.2.1"), 1));
        batch.add(&event(EventKind::Banned, None, 99_999));
        assert_eq!((batch.events.len(), batch.left_out["banned"]), (1, 99_999));
    }
}
