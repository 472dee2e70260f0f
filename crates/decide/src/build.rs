//! Builds an engine for a config, new or as a successor of another.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use arc_swap::ArcSwap;
use common::rate_limiter::PolicyError;
use config::calendar::CalendarUnit;
use config::policy::{ClusterMode, Config, Mode, Multiplier, RequestEnforcement, RequestLimit};
use host::descriptors::places;
use thiserror::Error;

use super::engine::Engine;
use super::escalation::{Edge, Escalation};
use super::fingerprint::Fingerprints;
use super::headers;
use super::limit::Limit;
use super::line::Bounds;
use super::memory::{LimitMemory, memory};
use super::periods::{Periods, Wall};
use super::reservations::ReservationBounds;
use super::resets::name_hash;
use super::sources::Sources;
use super::state_store::StateStore;
use super::tiers::Tiers;

/// A policy on requests that this host cannot enforce.
#[derive(Debug, Error)]
pub enum EngineError {
    /// A limit's window or log is too large.
    #[error("limit {limit:?} cannot be enforced: {error}")]
    Policy { limit: String, error: PolicyError },
    /// The system has no randomness.
    #[error("reading random numbers from the kernel failed: {0}")]
    Secret(getrandom::Error),
}

/// Keys that must be moved before an engine replaces another.
#[derive(Debug, Default)]
#[must_use]
pub struct Moves(Vec<(Arc<StateStore>, Arc<StateStore>)>);

impl Moves {
    /// Moves the keys. Decisions of the previous engine then charge the moved keys in the new one.
    pub(super) fn carry_out(self, now: u64) {
        self.0.iter().for_each(|(old, new)| old.move_to(new, now));
    }
}

impl Engine {
    /// Builds an engine for a config; bans are sent to `edge`.
    ///
    /// # Errors
    ///
    /// When a limit cannot be enforced, or the system has no randomness.
    pub fn new(config: &Config, edge: Arc<dyn Edge>) -> Result<Self, EngineError> {
        Self::build(config, edge, None)
    }

    /// Builds an engine for another config. Unchanged limits keep their stores. The keys of the others are moved once
    /// nothing can fail any more.
    ///
    /// # Errors
    ///
    /// As [`Engine::new`]; this engine is unchanged then.
    pub fn after(&self, config: &Config) -> Result<(Self, Moves), EngineError> {
        let mut moves = Moves::default();
        let engine = Self::build(config, Arc::clone(&self.edge), Some((self, &mut moves)))?;
        Ok((engine, moves))
    }

    /// The store for these tiers: the previous engine's if it is unchanged, else a new one with the keys to move.
    fn store(
        &self,
        policy: &RequestLimit,
        multiplier: Multiplier,
        tiers: Tiers,
        capacity: usize,
        sync: Duration,
        moves: &mut Moves,
    ) -> Arc<StateStore> {
        let is_same = |limit: &&Limit| {
            let (one, other) = (&limit.policy, policy);
            (
                &one.name,
                &one.key,
                &one.over,
                one.ipv4_prefix,
                one.ipv6_prefix,
                one.unit,
                calendar_unit(one),
            ) == (
                &other.name,
                &other.key,
                &other.over,
                other.ipv4_prefix,
                other.ipv6_prefix,
                other.unit,
                calendar_unit(other),
            )
        };
        let new = Arc::new(new_store(policy, tiers, capacity, sync, &self.has_room));
        // A new multiplier's keys have their whole allowance.
        let multiplier = self
            .sources
            .multipliers()
            .iter()
            .position(|known| *known == multiplier);
        let limit = self.limits.iter().find(is_same);
        let Some(known) = limit
            .zip(multiplier)
            .and_then(|(limit, multiplier)| limit.stores.get(multiplier))
        else {
            return new;
        };
        if known.has_same_settings(&new) {
            return Arc::clone(known);
        }
        moves.0.push((Arc::clone(known), Arc::clone(&new)));
        new
    }

    fn build(
        config: &Config,
        edge: Arc<dyn Edge>,
        before: Option<(&Self, &mut Moves)>,
    ) -> Result<Self, EngineError> {
        let (before, mut moves) = before.unzip();
        let sources = Sources::of(config);
        let place = |name: &String| {
            config
                .decide
                .limits
                .iter()
                .position(|limit| limit.name == *name)
        };
        let sync = config
            .cluster
            .as_ref()
            .map_or(Duration::ZERO, |cluster| cluster.sync);
        let wall = before.map_or_else(Wall::default, |before| before.wall.clone());
        let mut limits = Vec::new();
        let memory =
            memory(config).map_err(|(limit, error)| EngineError::Policy { limit, error })?;
        let refusals = before.map_or_else(Arc::default, |before| Arc::clone(&before.refusals));
        let has_room = before.map_or_else(Arc::default, |before| Arc::clone(&before.has_room));
        for (policy, LimitMemory { keys: capacity, .. }) in config.decide.limits.iter().zip(memory)
        {
            let fail = |error| EngineError::Policy {
                limit: policy.name.clone(),
                error,
            };
            let mut stores = Vec::new();
            for multiplier in sources.multipliers() {
                let tiers = Tiers::of(policy, *multiplier).map_err(fail)?;
                stores.push(match (before, &mut moves) {
                    (Some(before), Some(moves)) => {
                        before.store(policy, *multiplier, tiers, capacity, sync, moves)
                    }
                    _ => Arc::new(new_store(policy, tiers, capacity, sync, &has_room)),
                });
            }
            let known =
                before.and_then(|before| before.limits.get(*before.by_name.get(&policy.name)?));
            if let Some((known, share)) =
                known.and_then(|known| Some((known, known.stores.first()?.share()?)))
            {
                // The previous policy's share applies until the next grant.
                let is_known = |store: &&Arc<StateStore>| {
                    known.stores.iter().any(|known| Arc::ptr_eq(known, store))
                };
                stores
                    .iter()
                    .filter(|store| !is_known(store))
                    .for_each(|store| store.set_share(share));
            }
            let escalates = known.filter(|known| known.policy.escalate == policy.escalate);
            let escalation = match escalates.and_then(|known| known.escalation.clone()) {
                Some(escalation) => Some(escalation),
                None => policy
                    .escalate
                    .map(Escalation::new)
                    .transpose()
                    .map_err(fail)?
                    .map(Arc::new),
            };
            let observes = config.agent.mode == Mode::Observe
                || policy.enforcement == RequestEnforcement::Observe;
            limits.push(Limit {
                policy: policy.clone(),
                stores,
                counters: known.map_or_else(Arc::default, |known| Arc::clone(&known.counters)),
                number: refusals.number(&policy.name),
                name_hash: name_hash(&policy.name),
                line: known.map_or_else(Arc::default, |known| Arc::clone(&known.line)),
                together: policy.cluster.map(|_| {
                    known
                        .and_then(|known| known.together.clone())
                        .unwrap_or_default()
                }),
                escalation,
                observes,
                policy_headers: sources
                    .multipliers()
                    .iter()
                    .map(|times| headers::policy(policy, *times))
                    .collect(),
                periods: policy
                    .calendar
                    .clone()
                    .map(|calendar| Arc::new(Periods::new(calendar, wall.clone()))),
                replaces: policy.replaces.as_ref().and_then(&place),
            });
        }
        // Fingerprints match only under the same secret.
        let fingerprints = match before {
            Some(before) => before.fingerprints.clone(),
            None => Fingerprints::new().map_err(EngineError::Secret)?,
        };
        Ok(Self {
            together: match before {
                Some(before) => Arc::clone(&before.together),
                None => Arc::new(ArcSwap::from_pointee(
                    Fingerprints::new().map_err(EngineError::Secret)?,
                )),
            },
            by_name: limits
                .iter()
                .enumerate()
                .map(|(nth, limit)| (limit.policy.name.clone(), nth))
                .collect(),
            limits,
            requests: config
                .decide
                .requests
                .iter()
                .map(|request| (request.name.clone(), request.cost.clone()))
                .collect(),
            sources,
            fingerprints,
            wall,
            has_room,
            edge,
            escalate_from: config.decide.escalate_from.clone(),
            check: config.decide.check.clone(),
            resets: before.map_or_else(Arc::default, |before| Arc::clone(&before.resets)),
            reservations: before
                .map_or_else(Arc::default, |before| Arc::clone(&before.reservations)),
            reservation_bounds: ReservationBounds {
                in_all: config.decide.max_reservations as usize,
                per_key: config.decide.max_reservations_per_key as usize,
            },
            waiting: before.map_or_else(Arc::default, |before| Arc::clone(&before.waiting)),
            bounds: Bounds {
                per_key: config.decide.max_waiting_per_key as usize,
                // Half of the connections are reserved for requests that do not wait.
                in_all: (config.decide.max_waiting as usize).min(places().http / 2),
            },
            refusals,
            unsupported: before.map_or_else(Arc::default, |before| Arc::clone(&before.unsupported)),
            quota_buckets: before
                .map_or_else(Arc::default, |before| Arc::clone(&before.quota_buckets)),
        })
    }
}

/// States of another kind of period are under other fingerprints. In another time zone, a date's state is the same.
fn calendar_unit(policy: &RequestLimit) -> Option<CalendarUnit> {
    Some(policy.calendar.as_ref()?.unit)
}

/// An empty store for a limit's keys.
fn new_store(
    policy: &RequestLimit,
    tiers: Tiers,
    capacity: usize,
    sync: Duration,
    has_room: &Arc<AtomicBool>,
) -> StateStore {
    let mut store = StateStore::new(tiers, capacity, policy.on_full);
    if policy.throttle.is_elastic() {
        store = store.elastic(Arc::clone(has_room));
    }
    match policy.cluster {
        None => store,
        Some(ClusterMode::Shares) => store.shared(),
        Some(ClusterMode::Keys) => store.keyed(sync),
    }
}
