//! One limit of an engine, its state and its counters.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use config::policy::{ClusterMode, OnFull, RequestEnforcement, RequestLimit};
use hyper::header::HeaderValue;
use ipnet::IpNet;

use super::escalation::Escalation;
use super::line::LineCounters;
use super::periods::Periods;
use super::refusals::Refused;
use super::state_store::StateStore;

/// A limit's counters, in decisions.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) passed: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) would_refuse: AtomicU64,
    /// Of those that passed: above a soft or elastic limit.
    pub(super) over: AtomicU64,
}

/// The use of a shared limit, in units.
#[derive(Debug, Default)]
pub(super) struct Together {
    pub(super) wanted: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) is_open: AtomicBool,
}

/// A limit and its state.
#[derive(Debug)]
pub(super) struct Limit {
    pub(super) policy: RequestLimit,
    /// One for each multiplier of the classes.
    pub(super) stores: Vec<Arc<StateStore>>,
    pub(super) counters: Arc<Counters>,
    /// See [`Refusals::number`].
    pub(super) number: u32,
    /// See [`name_hash`](super::resets::name_hash).
    pub(super) name_hash: u64,
    pub(super) together: Option<Arc<Together>>,
    pub(super) line: Arc<LineCounters>,
    pub(super) escalation: Option<Arc<Escalation>>,
    pub(super) observes: bool,
    /// One for each multiplier of the classes.
    pub(super) policy_headers: Vec<HeaderValue>,
    /// Of a rate by the calendar.
    pub(super) periods: Option<Arc<Periods>>,
    /// The limit that this one replaces.
    pub(super) replaces: Option<usize>,
}

impl Limit {
    /// Whether hosts exchange its keys.
    pub(super) fn is_exchanged(&self) -> bool {
        self.policy.cluster == Some(ClusterMode::Keys)
    }

    /// Whether its refused requests pass now.
    pub(super) fn observes_now(&self) -> bool {
        self.observes || self.is_open()
    }

    /// Whether the limit refuses nothing because the store is unavailable.
    fn is_open(&self) -> bool {
        self.together
            .as_ref()
            .is_some_and(|together| together.is_open.load(Ordering::Relaxed))
    }

    /// Whether it refuses requests now, or would if the agent were not on `observe`.
    pub(super) fn refuses_when_enforced(&self) -> bool {
        self.policy.enforcement == RequestEnforcement::Enforce && !self.is_open()
    }

    /// Decisions about new keys while `max_keys` keys were in use.
    pub(super) fn without_room(&self) -> u64 {
        let of = |store: &Arc<StateStore>| store.without_room.load(Ordering::Relaxed);
        self.stores.iter().map(of).sum()
    }

    /// What happens to new keys then.
    const fn consequence(&self) -> &'static str {
        match self.policy.on_full {
            OnFull::Pass => "pass without a limit (on_full = \"pass\")",
            OnFull::Throttle => "are refused (on_full = \"throttle\")",
            OnFull::Share => "share one allowance (on_full = \"share\")",
        }
    }

    /// The same as a note for the operator; `None` if every key had room.
    pub(super) fn full_note(&self) -> Option<String> {
        let without_room = self.without_room();
        (without_room > 0).then(|| {
            format!(
                "limit {:?} had no room for new keys, which {}: {without_room} requests so far; raise [decide] max_keys",
                self.policy.name,
                self.consequence()
            )
        })
    }

    /// The address under which refusals of this limit are recorded.
    pub(super) fn refused_source(&self, source: Option<IpAddr>) -> Refused {
        let prefix = |source: IpAddr| {
            let length = if source.is_ipv4() {
                self.policy.ipv4_prefix
            } else {
                self.policy.ipv6_prefix
            };
            IpNet::new(source, length).ok().map(|prefix| prefix.trunc())
        };
        Refused {
            limit: self.number,
            source: source.and_then(prefix),
        }
    }
}
