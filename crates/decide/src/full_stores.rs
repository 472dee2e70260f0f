//! Events about stores of keys that are full.

use std::collections::HashMap;

use api::event::{Event, EventKind};
use api::limit::REQUEST_DIRECTION;

use super::engine::Engine;

/// A limit whose store had room for so long has an event when it is full again.
const QUIET_NANOSECONDS: u64 = 60_000_000_000;

/// What was seen of the stores, by their limits' names.
#[derive(Debug, Default)]
pub struct FullStores(HashMap<String, Seen>);

#[derive(Clone, Copy, Debug)]
struct Seen {
    without_room: u64,
    /// When the last new key had no room.
    at: u64,
}

impl FullStores {
    /// The events since the last call: one for a limit when its store becomes full.
    pub fn events(&mut self, engine: &Engine, now: u64) -> Vec<Event> {
        let mut events = Vec::new();
        let mut seen = HashMap::new();
        for limit in &engine.limits {
            let (name, without_room) = (&limit.policy.name, limit.without_room());
            let before = self.0.get(name).copied();
            let known = before.map_or(0, |before| before.without_room);
            // Fewer than before: the counters were reset.
            let new = without_room.checked_sub(known).unwrap_or(without_room);
            if new == 0 {
                seen.extend(before.map(|before| {
                    (
                        name.clone(),
                        Seen {
                            without_room,
                            ..before
                        },
                    )
                }));
                continue;
            }
            seen.insert(
                name.clone(),
                Seen {
                    without_room,
                    at: now,
                },
            );
            let is_known =
                before.is_some_and(|before| now.saturating_sub(before.at) < QUIET_NANOSECONDS);
            if let (false, Some(reason)) = (is_known, limit.full_note()) {
                events.push(Event {
                    limit: Some(name.clone()),
                    direction: Some(REQUEST_DIRECTION.to_owned()),
                    ..Event::now(EventKind::KeysFull, new, reason)
                });
            }
        }
        self.0 = seen;
        events
    }
}
