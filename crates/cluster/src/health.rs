//! The store's health over all limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use api::cluster::ClusterStatus;
use api::event::{Event, EventKind};
use config::policy::Cluster;

use super::error::StoreError;

/// How many parts of an agent are without the store, so that its events come once: when the first part loses it, and when
/// the last has it again. A store that refuses one part does not hide that it is away from another.
#[derive(Clone, Debug, Default)]
pub struct StoreUsers(Arc<[AtomicUsize; 2]>);

/// How a part is without the store.
#[derive(Clone, Copy, Debug)]
enum Lost {
    Away,
    Refused,
}

impl StoreUsers {
    /// Returns whether this part is the first.
    fn lose(&self, how: Lost) -> bool {
        self.0[how as usize].fetch_add(1, Ordering::Relaxed) == 0
    }

    /// Returns whether this part was the last.
    fn regain(&self, how: Lost) -> bool {
        self.0[how as usize].fetch_sub(1, Ordering::Relaxed) == 1
    }
}

/// The store's health. Instants are nanoseconds of the host's boot clock.
#[derive(Debug)]
pub(super) struct Health {
    /// The longest time without a grant before the store is down.
    patience: u64,
    /// The last grant, or the agent's start.
    granted_at: u64,
    /// The last reply, also an error.
    replied_at: u64,
    has_granted: bool,
    granted_in: Duration,
    failures: u64,
    /// Failures since the last grant.
    failing: u64,
    down: Option<Lost>,
    last_error: Option<String>,
    users: StoreUsers,
}

/// A change of the store's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Down {
        /// No other part of the agent was without the store.
        is_first: bool,
    },
    /// The store grants again.
    Up {
        failures: u64,
        /// No other part of the agent is without the store.
        is_last: bool,
    },
}

impl Health {
    pub(super) fn new(patience: Duration, now: u64, users: &StoreUsers) -> Self {
        Self {
            patience: patience.as_nanos() as u64,
            granted_at: now,
            replied_at: now,
            has_granted: false,
            granted_in: Duration::ZERO,
            failures: 0,
            failing: 0,
            down: None,
            last_error: None,
            users: users.clone(),
        }
    }

    /// That of another store.
    pub(super) fn renewed(&self, patience: Duration, now: u64) -> Self {
        Self::new(patience, now, &self.users)
    }

    /// Sets the longest time without a grant before the store is down.
    pub(super) fn set_patience(&mut self, patience: Duration) {
        self.patience = patience.as_nanos() as u64;
    }

    /// Records the grant of a request of `requested_at`.
    pub(super) fn granted(&mut self, requested_at: u64, now: u64) -> Option<Turn> {
        let turn = self.down.take().map(|how| Turn::Up {
            failures: self.failing,
            is_last: self.users.regain(how),
        });
        (self.granted_at, self.replied_at) = (now, now);
        self.granted_in = Duration::from_nanos(now.saturating_sub(requested_at));
        (self.has_granted, self.failing) = (true, 0);
        turn
    }

    /// Records a failed request. A refusal may concern one limit only, so the store is down only after a time without any
    /// grant.
    pub(super) fn failed(&mut self, error: &StoreError, now: u64) -> Option<Turn> {
        self.failures += 1;
        self.failing += 1;
        self.last_error = Some(error.to_string());
        if error.is_reply() {
            self.replied_at = now;
        }
        let is_down = now.saturating_sub(self.granted_at) >= self.patience;
        if !is_down || self.down.is_some() {
            return None;
        }
        let how = if error.is_reply() {
            Lost::Refused
        } else {
            Lost::Away
        };
        self.down = Some(how);
        Some(Turn::Down {
            is_first: self.users.lose(how),
        })
    }

    /// Whether the store has been silent for so long that another server may use its address.
    pub(super) const fn is_silent(&self, now: u64) -> bool {
        now.saturating_sub(self.replied_at) >= self.patience
    }

    /// The time since the last grant.
    pub(super) const fn silent_for(&self, now: u64) -> u64 {
        now.saturating_sub(self.granted_at)
    }

    pub(super) const fn is_failing(&self) -> bool {
        self.failing > 0
    }

    /// The fields of the status that do not depend on limits.
    pub(super) fn status(&self, cluster: &Cluster) -> ClusterStatus {
        ClusterStatus {
            node: cluster.node.clone(),
            store: cluster.store.iter().map(ToString::to_string).collect(),
            health: self.word(cluster.sync).to_owned(),
            answered_in_seconds: self.has_granted.then_some(self.granted_in.as_secs_f64()),
            failures: self.failures,
            last_error: self.last_error.clone(),
            when_store_is_down: cluster.when_store_is_down.to_string(),
            sync_seconds: cluster.sync.as_secs_f64(),
            ..ClusterStatus::default()
        }
    }

    fn word(&self, sync: Duration) -> &'static str {
        match self.has_granted {
            _ if self.down.is_some() => "down",
            false => "connecting",
            true if self.granted_in >= sync => "slow",
            true => "up",
        }
    }

    pub(super) fn granted_at(&self) -> Option<u64> {
        self.has_granted.then_some(self.granted_at)
    }

    pub(super) const fn failures(&self) -> u64 {
        self.failures
    }
}

impl Drop for Health {
    fn drop(&mut self) {
        if let Some(how) = self.down {
            self.users.regain(how);
        }
    }
}

/// An event about the store.
pub(super) fn store_event(cluster: &Cluster, what: EventKind, count: u64, reason: String) -> Event {
    let store: Vec<String> = cluster.store.iter().map(ToString::to_string).collect();
    Event {
        source: Some(format!("store {}", store.join(", "))),
        ..Event::now(what, count, reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_store_that_refuses_one_limit_and_grants_others_is_up() {
        let mut health = Health::new(Duration::from_millis(300), 0, &StoreUsers::default());
        let refusal = StoreError::Refused {
            error: "WRONGTYPE".to_owned(),
            help: "",
        };
        for step in 1..20 {
            assert_eq!(health.granted(step * 100 * MS, step * 100 * MS + MS), None);
            assert_eq!(health.failed(&refusal, step * 100 * MS + 2 * MS), None);
        }
        assert_eq!(
            (health.word(Duration::from_millis(100)), health.failures()),
            ("up", 19)
        );
        // The store replies, but grants nothing.
        assert_eq!(health.failed(&refusal, 2_100 * MS), None);
        assert_eq!(
            health.failed(&refusal, 2_300 * MS),
            Some(Turn::Down { is_first: true })
        );
        assert_eq!(health.failed(&refusal, 2_400 * MS), None);
        assert!(!health.is_silent(2_500 * MS));
        assert_eq!(
            health.failed(&StoreError::Slow(Duration::ZERO), 2_750 * MS),
            None
        );
        assert!(health.is_silent(2_750 * MS));
        assert_eq!(
            health.granted(2_800 * MS, 2_801 * MS),
            Some(Turn::Up {
                failures: 5,
                is_last: true
            })
        );
        assert_eq!(health.word(Duration::from_millis(100)), "up");
    }

    #[test]
    fn parts_of_an_agent_lose_and_regain_the_store_once() {
        let users = StoreUsers::default();
        let health = || Health::new(Duration::from_millis(300), 0, &users);
        let gone = StoreError::Gone(String::new());
        let lost = |health: &mut Health| match health.failed(&gone, 900 * MS) {
            Some(Turn::Down { is_first }) => is_first,
            turn => panic!("{turn:?}"),
        };
        let regained = |health: &mut Health| match health.granted(500 * MS, 501 * MS) {
            Some(Turn::Up { is_last, .. }) => is_last,
            turn => panic!("{turn:?}"),
        };
        let [mut leases, mut keys, mut bans] = [health(), health(), health()];
        assert_eq!(
            [&mut leases, &mut keys, &mut bans].map(lost),
            [true, false, false]
        );
        assert!(!regained(&mut keys));
        // A reload ends one, and another gets a new store.
        drop(bans);
        let mut refused = health();
        let refusal = StoreError::Refused {
            error: "NOPERM".to_owned(),
            help: "",
        };
        let turn = refused.failed(&refusal, 400 * MS);
        assert_eq!(turn, Some(Turn::Down { is_first: true }));
        leases = leases.renewed(Duration::from_millis(300), 0);
        assert!(lost(&mut keys));
        assert!(!lost(&mut leases));
        assert!(!regained(&mut leases));
        assert!(regained(&mut keys));
    }
}
