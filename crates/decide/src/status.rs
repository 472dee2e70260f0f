//! Limits on requests in the commands' documents.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use api::event::{Event, EventKind, exceeded, seconds_since_1970};
use api::limit::{Count, LimitDefinition, LimitStatus, REQUEST_DIRECTION};
use api::source::SourceRequests;
use api::status::ReservationsStatus;
use config::policy::{KeyEntry, RequestLimit};

use super::charge::Charge;
use super::engine::Engine;
use super::limit::Limit;
use super::periods::within;
use super::refusals::{MOST_AT_ONCE, Record, Taken};

impl Engine {
    /// The status of each limit; its counters count decisions instead of packets.
    #[must_use]
    pub fn statuses(&self) -> Vec<LimitStatus> {
        let of = |counter: &AtomicU64| Count {
            packets: counter.load(Ordering::Relaxed),
            bytes: 0,
        };
        let status = |limit: &Limit| LimitStatus {
            definition: LimitDefinition::from(&limit.policy),
            passed: of(&limit.counters.passed),
            throttled: of(&limit.counters.refused),
            would_throttle: of(&limit.counters.would_refuse),
            over: of(&limit.counters.over),
            contended: Count::default(),
            waiting: Some(limit.line.status()),
            levels: Vec::new(),
            level: None,
            without_room: Some(limit.without_room()),
            keys: limit.stores.iter().map(|store| store.keys()).sum::<usize>() as u64,
        };
        self.limits.iter().map(status).collect()
    }

    /// The open reservations; `None` without limits.
    #[must_use]
    pub fn reservations_status(&self) -> Option<ReservationsStatus> {
        (!self.limits.is_empty()).then(|| self.reservations.status())
    }

    /// Notes for the operator: limits whose stores were full, and what clients sent in vain.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        let full = self.limits.iter().filter_map(Limit::full_note);
        full.chain(self.reservations.full_note())
            .chain(self.unsupported.notes())
            .chain(self.quota_buckets.full_notes())
    }

    /// Sets the counters of all limits to 0 and removes the records of refusals; returns the number of limits.
    pub fn reset_counters(&self) -> u64 {
        for limit in &self.limits {
            let counters = &limit.counters;
            for counter in [
                &counters.passed,
                &counters.refused,
                &counters.would_refuse,
                &counters.over,
            ] {
                counter.store(0, Ordering::Relaxed);
            }
            for store in &limit.stores {
                store.without_room.store(0, Ordering::Relaxed);
            }
            limit.line.reset();
        }
        self.reservations.without_room.store(0, Ordering::Relaxed);
        self.refusals.clear();
        self.limits.len() as u64
    }

    /// The events of all refusals since the last call: at most one for each source, limit and verdict.
    #[must_use]
    pub fn refusal_events(&self, now: u64) -> Vec<Event> {
        let Taken { named, unnamed } = self.refusals.take();
        let mut events = Vec::new();
        for (refused, record) in named {
            // The limit is of an earlier config.
            let Some(limit) = self
                .limits
                .iter()
                .find(|limit| limit.number == refused.limit)
            else {
                continue;
            };
            let source =
                refused.source.map(
                    |prefix| match prefix.prefix_len() == prefix.max_prefix_len() {
                        true => prefix.addr().to_string(),
                        false => prefix.to_string(),
                    },
                );
            let kinds = [
                (EventKind::Throttled, record.new_refused(), record.refused),
                (
                    EventKind::WouldThrottle,
                    record.new_would_refuse(),
                    record.would_refuse,
                ),
            ];
            events.extend(kinds.into_iter().filter(|(_, new, _)| *new > 0).map(
                |(what, _, count)| Event {
                    time: seconds_since_1970() - now.saturating_sub(record.at) as f64 / 1e9,
                    source: source.clone(),
                    limit: Some(limit.policy.name.clone()),
                    direction: Some(REQUEST_DIRECTION.to_owned()),
                    ..Event::now(what, count, exceeded_by(&limit.policy))
                },
            ));
        }
        if unnamed > 0 {
            let reason = format!(
                "refused requests of further sources: only {MOST_AT_ONCE} sources a second get events of their own"
            );
            events.push(Event::lost(unnamed, &reason));
        }
        events
    }

    /// The state of each limit for an address, and its refusals.
    #[must_use]
    pub fn requests_of(&self, address: IpAddr, now: u64) -> Vec<SourceRequests> {
        let address = address.to_canonical();
        let row = |(nth, limit): (usize, &Limit)| {
            let record = self.refusals.of(&limit.refused_source(Some(address)));
            let outcome = self
                .charge_of_source(nth, limit, address)
                .and_then(|charge| {
                    let store = self.store_of(&charge)?;
                    Some(within(
                        store.peek(charge.key, now, charge.cost),
                        charge.left,
                    ))
                });
            if record.is_none() && outcome.is_none() {
                return None;
            }
            let Record {
                refused,
                would_refuse,
                ..
            } = record.unwrap_or_default();
            Some(SourceRequests {
                name: limit.policy.name.clone(),
                remaining: outcome.as_ref().map(|outcome| outcome.remaining),
                retry_after_seconds: outcome
                    .and_then(|outcome| outcome.retry_after)
                    .map(|retry_after| retry_after.as_secs_f64()),
                throttled_requests: refused,
                would_throttle_requests: would_refuse,
                last_throttled_seconds_ago: record
                    .map(|record| now.saturating_sub(record.at) as f64 / 1e9),
            })
        };
        self.limits.iter().enumerate().filter_map(row).collect()
    }

    /// A request of an address to a limit whose key is the address alone.
    pub(super) fn charge_of_source(
        &self,
        nth: usize,
        limit: &Limit,
        address: IpAddr,
    ) -> Option<Charge> {
        let charge = || self.charge_of(nth, std::iter::empty(), Some(address), 1);
        is_by_address(limit).then(charge)?.ok()
    }
}

/// Whether its key is the client's address alone.
pub(super) fn is_by_address(limit: &Limit) -> bool {
    let over = &limit.policy.over;
    matches!(&limit.policy.key[..], [entry] if is_any_source(entry) && !over.has(entry))
}

/// Whether it counts by the client's address, without a fixed value.
fn is_any_source(entry: &KeyEntry) -> bool {
    entry.is_source() && entry.value.is_none()
}

fn exceeded_by(limit: &RequestLimit) -> String {
    exceeded(&limit.rates, &limit.unit)
}
