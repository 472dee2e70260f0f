//! This host's bans and removals that the store does not have yet. Making a ban waits for nothing.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Place;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use config::PrefixKey;
use tokio::sync::Notify;

/// The most orders that wait for the store: a few for each ban that it may have.
const MOST_WAITING: usize = 4 * super::entry::MOST;

/// A ban by an operator or a limit of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnBan {
    /// Its end, in nanoseconds of the monotonic clock; [`u64::MAX`] if it does not end.
    pub until: u64,
    /// Whether a limit made it.
    pub is_by_limit: bool,
    /// The limit's name, if a limit made it and the name is known.
    pub limit: Option<Arc<str>>,
    /// The user or program that ordered it, if that is known.
    pub owner: Option<Arc<str>>,
    pub reason: Option<Arc<str>>,
}

/// A change of this host's bans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// When it was given, in nanoseconds of the monotonic clock; negative before the host's boot.
    pub at: i64,
    /// The ban; `None` for a removal.
    pub ban: Option<OwnBan>,
    /// The bans that a removal lifts.
    pub scope: Scope,
}

/// The bans of a prefix that a removal lifts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Those of all owners, on all hosts.
    #[default]
    All,
    /// Those of an owner on this host, or of all.
    Own { owner: Option<String> },
    /// Those of an owner on another host, or of all.
    Of { host: String, owner: Option<String> },
}

/// The orders that wait for the store, the last one of each prefix.
#[derive(Debug, Default)]
pub struct BanOutbox {
    waiting: Mutex<Waiting>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    orders: BTreeMap<PrefixKey, Order>,
    /// Orders that did not fit. A ban among them is published by the next comparison of all bans.
    dropped: u64,
}

impl BanOutbox {
    /// Publishes an order soon.
    pub fn push(&self, prefix: PrefixKey, order: Order) {
        if prefix.is_wide() {
            return;
        }
        let mut waiting = self.waiting();
        if waiting.orders.len() >= MOST_WAITING && !waiting.orders.contains_key(&prefix) {
            waiting.dropped += 1;
        } else {
            waiting.orders.insert(prefix, order);
        }
        drop(waiting);
        self.wake.notify_one();
    }

    /// Puts orders back that have not reached the store, unless later ones wait.
    pub(super) fn put_back(&self, orders: impl IntoIterator<Item = (PrefixKey, Order)>) {
        let mut waiting = self.waiting();
        for (prefix, order) in orders {
            if let Place::Vacant(place) = waiting.orders.entry(prefix) {
                place.insert(order);
            }
        }
    }

    /// Takes some orders.
    pub(super) fn take(&self, most: usize) -> Vec<(PrefixKey, Order)> {
        let mut waiting = self.waiting();
        std::iter::from_fn(|| waiting.orders.pop_first())
            .take(most)
            .collect()
    }

    /// Whether an order for this prefix waits, which is later than all that the store has.
    #[must_use]
    pub fn is_waiting(&self, prefix: &PrefixKey) -> bool {
        self.waiting().orders.contains_key(prefix)
    }

    /// The number of orders that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting().orders.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of orders that did not fit.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.waiting().dropped
    }

    /// Completes when an order waits.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Every change is one insertion or removal.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_order_of_a_prefix_counts_and_what_is_put_back_is_older() {
        let outbox = BanOutbox::default();
        let prefix = |last| PrefixKey {
            address: [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last],
            length: 128,
        };
        let removal = |at| Order {
            at,
            ban: None,
            scope: Scope::All,
        };
        outbox.push(prefix(1), removal(1));
        outbox.push(prefix(1), removal(2));
        outbox.push(prefix(2), removal(3));
        outbox.push(
            PrefixKey {
                address: [0; 16],
                length: 0,
            },
            removal(4),
        );
        assert_eq!((outbox.len(), outbox.is_waiting(&prefix(1))), (2, true));
        let taken = outbox.take(10);
        assert_eq!(taken, [(prefix(1), removal(2)), (prefix(2), removal(3))]);
        outbox.push(prefix(2), removal(5));
        outbox.put_back(taken);
        assert_eq!(outbox.take(1), [(prefix(1), removal(2))]);
        assert_eq!(outbox.take(1), [(prefix(2), removal(5))]);
        assert!(outbox.is_empty() && outbox.dropped() == 0);
    }
}
