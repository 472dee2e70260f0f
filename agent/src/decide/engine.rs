//! One decision, or several that belong together.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::limiter::Rate;
use common::rate_limiter::{Outcome, Policy, PolicyError};
use common::share::Share;
use ipnet::IpNet;
use thiserror::Error;

use super::escalation::{Edge, Escalation};
use super::fingerprint::{Fingerprint, Fingerprints};
use super::formula::Formula;
use super::headers;
use super::memory::{LimitMemory, memory};
use super::question::{Answer, DecideError, Question};
use super::sources::{Sources, Standing};
use super::store::{Forecast, Store};
use super::waiting::{Bounds, LineCounters, Lines, Spot, Waiting};
use crate::cluster::InForce;
use crate::config::policy::{Config, EntryValue, KeyEntry, Mode, Multiplier, RequestEnforcement, RequestLimit};
use crate::config::request_key::{SOURCE, entry_name, masked};
use crate::config::table::suggestion;
use crate::descriptors::places;

/// A policy on requests that cannot be had.
#[derive(Debug, Error)]
pub enum EngineError {
    /// A limit's window or log is too large.
    #[error("limit {limit:?} cannot be kept: {error}")]
    Policy {
        /// Which.
        limit: String,
        /// Why.
        error: PolicyError,
    },
    /// The system has no randomness.
    #[error("reading a secret from the system failed: {0}")]
    Secret(getrandom::Error),
}

/// Counters of a limit: decisions, not credits.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) passed: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) would_refuse: AtomicU64,
}

/// What is told of a limit that many hosts keep together: units, not decisions.
#[derive(Debug, Default)]
struct Together {
    wanted: AtomicU64,
    refused: AtomicU64,
    is_open: AtomicBool,
}

/// A limit and its state.
#[derive(Debug)]
pub(super) struct Limit {
    pub(super) policy: RequestLimit,
    /// One for each multiplier of the classes.
    pub(super) stores: Vec<Arc<Store>>,
    pub(super) counters: Arc<Counters>,
    together: Option<Arc<Together>>,
    pub(super) line: Arc<LineCounters>,
    escalation: Option<Arc<Escalation>>,
    pub(super) observes: bool,
    /// One for each multiplier of the classes.
    policy_headers: Vec<Arc<str>>,
    /// The limit that is not charged where this one is.
    replaces: Option<usize>,
}

/// All limits on requests, and who is asking about them.
pub struct Engine {
    pub(super) limits: Vec<Limit>,
    by_name: HashMap<String, usize>,
    requests: HashMap<String, Formula>,
    sources: Sources,
    fingerprints: Fingerprints,
    edge: Arc<dyn Edge>,
    waiting: Arc<Waiting>,
    bounds: Bounds,
}

/// Why a charge does not pass now.
pub(super) struct Refused {
    pub(super) outcome: Outcome,
    /// When it will if nothing else does, those in front of it excepted; `None`: nobody can say, or never.
    pub(super) at: Option<u64>,
}

/// Keys that have to be moved before an engine takes the place of another.
#[derive(Debug, Default)]
#[must_use]
pub struct Moves(Vec<(Arc<Store>, Arc<Store>)>);

impl Moves {
    /// Moves them. Whoever decides by the engine before charges what that has moved in the new one.
    pub(super) fn carry_out(self, now: u64) {
        self.0.iter().for_each(|(old, new)| old.move_to(new, now));
    }
}

/// A question whose every part is known: which limit, which key of it, at what cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charge {
    pub(super) limit: usize,
    pub(super) standing: Standing,
    source: Option<IpAddr>,
    pub(super) key: Fingerprint,
    pub(super) cost: u64,
    pub(super) peek: bool,
}

impl Limit {
    /// Whether what it refuses passes at this moment.
    pub(super) fn observes_now(&self) -> bool {
        self.observes || self.together.as_ref().is_some_and(|together| together.is_open.load(Ordering::Relaxed))
    }
}

impl Charge {
    /// The store that holds its key; those that are not limited need none.
    pub(super) fn store<'e>(&self, engine: &'e Engine) -> Option<&'e Store> {
        let Standing::Grade(grade) = self.standing else { return None };
        engine.limits.get(self.limit)?.stores.get(grade).map(Arc::as_ref)
    }
}

impl Engine {
    /// For the limits of a config; bans go to `edge`.
    ///
    /// # Errors
    ///
    /// When a limit cannot be kept, or there is no secret to be had.
    pub fn new(config: &Config, edge: Arc<dyn Edge>) -> Result<Self, EngineError> {
        Self::build(config, edge, None)
    }

    /// For another config: what is unchanged of a limit goes on as it is. The keys of the others are moved once nothing
    /// can fail any more.
    ///
    /// # Errors
    ///
    /// As [`Engine::new`]; this one is as it was then.
    pub fn after(&self, config: &Config) -> Result<(Self, Moves), EngineError> {
        let mut moves = Moves::default();
        let engine = Self::build(config, Arc::clone(&self.edge), Some((self, &mut moves)))?;
        Ok((engine, moves))
    }

    /// The store for these tiers: that of the engine before if nothing about it is changed, or a new one that its keys
    /// are to be moved to.
    fn store(
        &self,
        policy: &RequestLimit,
        multiplier: Multiplier,
        tiers: Vec<Policy>,
        capacity: usize,
        moves: &mut Moves,
    ) -> Arc<Store> {
        let is_same = |limit: &&Limit| {
            let (one, other) = (&limit.policy, policy);
            (&one.name, &one.key, one.ipv4_prefix, one.ipv6_prefix, one.unit)
                == (&other.name, &other.key, other.ipv4_prefix, other.ipv6_prefix, other.unit)
        };
        let new = Arc::new(new_store(policy, tiers, capacity));
        // Of a multiplier that is new, nobody has used anything yet.
        let grade = self.sources.multipliers().iter().position(|known| *known == multiplier);
        let limit = self.limits.iter().find(is_same);
        let Some(known) = limit.zip(grade).and_then(|(limit, grade)| limit.stores.get(grade)) else { return new };
        if known.is_as(&new) {
            return Arc::clone(known);
        }
        moves.0.push((Arc::clone(known), Arc::clone(&new)));
        new
    }

    fn build(config: &Config, edge: Arc<dyn Edge>, before: Option<(&Self, &mut Moves)>) -> Result<Self, EngineError> {
        let (before, mut moves) = before.unzip();
        let sources = Sources::of(config);
        let place = |name: &String| config.decide.limits.iter().position(|limit| limit.name == *name);
        let mut limits = Vec::new();
        let memory = memory(config).map_err(|(limit, error)| EngineError::Policy { limit, error })?;
        for (policy, LimitMemory { keys: capacity, .. }) in config.decide.limits.iter().zip(memory) {
            let fail = |error| EngineError::Policy { limit: policy.name.clone(), error };
            let mut stores = Vec::new();
            for multiplier in sources.multipliers() {
                let tiers = policy.policies(*multiplier).map_err(fail)?;
                stores.push(match (before, &mut moves) {
                    (Some(before), Some(moves)) => before.store(policy, *multiplier, tiers, capacity, moves),
                    _ => Arc::new(new_store(policy, tiers, capacity)),
                });
            }
            let known = before.and_then(|before| before.limits.get(*before.by_name.get(&policy.name)?));
            if let Some((known, share)) = known.and_then(|known| Some((known, known.stores.first()?.share()?))) {
                // The share of the policy before holds until there is another.
                let is_known = |store: &&Arc<Store>| known.stores.iter().any(|known| Arc::ptr_eq(known, store));
                stores.iter().filter(|store| !is_known(store)).for_each(|store| store.set_share(share));
            }
            let escalates = known.filter(|known| known.policy.escalate == policy.escalate);
            let escalation = match escalates.and_then(|known| known.escalation.clone()) {
                Some(escalation) => Some(escalation),
                None => policy.escalate.map(Escalation::new).transpose().map_err(fail)?.map(Arc::new),
            };
            let observes = config.agent.mode == Mode::Observe || policy.enforcement == RequestEnforcement::Observe;
            limits.push(Limit {
                policy: policy.clone(),
                stores,
                counters: known.map_or_else(Arc::default, |known| Arc::clone(&known.counters)),
                line: known.map_or_else(Arc::default, |known| Arc::clone(&known.line)),
                together: policy.cluster.then(|| known.and_then(|known| known.together.clone()).unwrap_or_default()),
                escalation,
                observes,
                policy_headers: sources
                    .multipliers()
                    .iter()
                    .map(|times| headers::policy(policy, *times).into())
                    .collect(),
                replaces: policy.replaces.as_ref().and_then(&place),
            });
        }
        Ok(Self {
            by_name: limits.iter().enumerate().map(|(nth, limit)| (limit.policy.name.clone(), nth)).collect(),
            limits,
            requests: config
                .decide
                .requests
                .iter()
                .map(|request| (request.name.clone(), request.cost.clone()))
                .collect(),
            sources,
            // Keys are found again only under the same secret.
            fingerprints: match before {
                Some(before) => before.fingerprints.clone(),
                None => Fingerprints::new().map_err(EngineError::Secret)?,
            },
            edge,
            waiting: before.map_or_else(Arc::default, |before| Arc::clone(&before.waiting)),
            bounds: Bounds {
                per_key: config.decide.max_waiting_per_key as usize,
                // Half of the connections stay free for those who do not wait.
                in_all: (config.decide.max_waiting as usize).min(places().http / 2),
            },
        })
    }

    /// Decides on one question at `now`, in nanoseconds, whether it would wait or not.
    ///
    /// # Errors
    ///
    /// When it cannot be understood; nothing is charged then.
    pub fn decide(&self, question: &Question, now: u64) -> Result<Answer, DecideError> {
        let charge = self.charge(question)?;
        Ok(self.answer(&charge, self.settle(charge, now)))
    }

    /// Decides on many questions, each for itself.
    ///
    /// # Errors
    ///
    /// With the first that cannot be understood and its place; none is charged then.
    pub fn decide_each(&self, questions: &[Question], now: u64) -> Result<Vec<Answer>, (usize, DecideError)> {
        let charges = self.understand(questions)?.into_iter();
        Ok(charges.map(|charge| self.answer(&charge, self.settle(charge, now))).collect())
    }

    /// The answer to a charge, with the `RateLimit-Policy` of the caller's class.
    pub(super) fn answer(&self, charge: &Charge, outcome: Outcome) -> Answer {
        let policy = self.policy_header(charge).map(Arc::clone);
        Answer { policy, ..Answer::new(self.limit_name(charge), outcome) }
    }

    /// Understands many questions.
    pub(super) fn understand(&self, questions: &[Question]) -> Result<Vec<Charge>, (usize, DecideError)> {
        let charges = questions.iter().enumerate();
        charges.map(|(nth, question)| self.charge(question).map_err(|error| (nth, error))).collect()
    }

    /// Understands a question.
    fn charge(&self, question: &Question) -> Result<Charge, DecideError> {
        let Some(nth) = self.by_name.get(&question.limit).copied() else {
            let names: Vec<&str> = self.limits.iter().map(|limit| limit.policy.name.as_str()).collect();
            return Err(DecideError::UnknownLimit {
                name: question.limit.clone(),
                help: suggest(&question.limit, &names),
            });
        };
        let source = question.address()?;
        let entries = question.key.iter().map(|(entry, value)| (entry_name(entry), value.as_str()));
        let nth = self.replacement(nth, entries.clone(), source);
        let limit = &self.limits[nth];
        let is_known = |entry: &str| entry == SOURCE || limit.policy.key.iter().any(|known| known.name == entry);
        if let Some((entry, _)) = entries.clone().find(|(entry, _)| !is_known(entry)) {
            return Err(DecideError::UnknownEntry { limit: limit.policy.name.clone(), entry: entry.to_owned() });
        }
        if question.peek && question.wait.is_some() {
            return Err(DecideError::PeekWaits);
        }
        let cost = self.cost(limit, source, question)?;
        self.charge_of(nth, entries, source, cost, question.peek)
    }

    /// The limit that is charged for this key in place of the one that was asked about, if there is one.
    fn replacement<'q>(
        &self,
        mut nth: usize,
        entries: impl Iterator<Item = (&'q str, &'q str)> + Clone,
        source: Option<IpAddr>,
    ) -> usize {
        // A config has no circles of them; this ends all the same.
        for _ in &self.limits {
            let is_for = |limit: &Limit| {
                limit.replaces == Some(nth)
                    && limit.policy.domain == self.limits[nth].policy.domain
                    && limit.policy.key.iter().filter(|entry| entry.value.is_some()).all(|entry| {
                        let value = value_of(entry, entries.clone(), source, &limit.policy);
                        value.is_some_and(|value| is_wanted(entry, &value, &limit.policy))
                    })
            };
            match self.limits.iter().position(is_for) {
                Some(other) => nth = other,
                None => break,
            }
        }
        nth
    }

    /// Understands the entries of a key, under the names that limits have for them.
    pub(super) fn charge_of<'q>(
        &self,
        nth: usize,
        entries: impl Iterator<Item = (&'q str, &'q str)> + Clone,
        source: Option<IpAddr>,
        cost: u64,
        peek: bool,
    ) -> Result<Charge, DecideError> {
        let limit = &self.limits[nth];
        let mut values = Vec::with_capacity(limit.policy.key.len());
        for entry in &limit.policy.key {
            let name = || limit.policy.name.clone();
            let value = match (value_of(entry, entries.clone(), source, &limit.policy), &entry.value) {
                (Some(value), _) if is_wanted(entry, &value, &limit.policy) => value,
                (Some(value), _) => {
                    let (entry, value) = (entry.to_string(), value.to_string());
                    return Err(DecideError::OtherValue { limit: name(), entry, value });
                }
                // There is only one that it can be.
                (None, Some(EntryValue::Text(text))) => Value::Text(text),
                (None, Some(EntryValue::Address(address))) => Value::of_address(*address, &limit.policy),
                (None, None) => {
                    let help =
                        if entry.is_source() { "give the client's address as source" } else { "give it a value" };
                    return Err(DecideError::MissingEntry { limit: name(), entry: entry.name.clone(), help });
                }
            };
            values.push(value);
        }
        let standing = self.sources.standing(source);
        Ok(Charge { limit: nth, standing, source, key: self.fingerprints.of(&values), cost, peek })
    }

    fn cost(&self, limit: &Limit, source: Option<IpAddr>, question: &Question) -> Result<u64, DecideError> {
        let Some(name) = &question.request else {
            if !question.parameters.is_empty() {
                return Err(DecideError::Cost("parameters are of a request: name it, or give the cost itself"));
            }
            return Ok(question.cost.unwrap_or(1));
        };
        if question.cost.is_some() {
            return Err(DecideError::Cost("a request and a cost are two costs: leave out one"));
        }
        let Some(formula) = self.requests.get(name) else {
            let names: Vec<&str> = self.requests.keys().map(String::as_str).collect();
            return Err(DecideError::UnknownRequest { name: name.clone(), help: suggest(name, &names) });
        };
        // The allowance is that of the caller's class.
        let grade = if let Standing::Grade(grade) = self.sources.standing(source) { grade } else { 0 };
        let most = limit.stores.get(grade).map_or(0, |store| super::tiers::most(store.tiers()));
        formula.cost(most, &question.parameters).map_err(|error| DecideError::Formula { request: name.clone(), error })
    }

    /// Decides on one charge; where somebody waits for its key, it is behind.
    fn settle(&self, charge: Charge, now: u64) -> Outcome {
        if self.line_of(&charge).is_empty() {
            return self.settle_now(charge, now);
        }
        let lines = self.waiting.lock();
        self.settle_behind(&lines, charge, now)
    }

    /// Decides on one charge that does not wait.
    pub(super) fn settle_behind(&self, lines: &Lines, charge: Charge, now: u64) -> Outcome {
        match self.behind(lines, &charge, now) {
            Some(refused) => self.count(&charge, refused.outcome, now),
            None => self.settle_now(charge, now),
        }
    }

    /// Charges what conforms and has nobody in front of it, and counts it; or why it does not pass.
    pub(super) fn try_pass(&self, lines: &Lines, charge: Charge, spot: &Spot, now: u64) -> Result<Outcome, Refused> {
        if lines.has(spot)
            && let Some(refused) = self.behind(lines, &charge, now)
        {
            return Err(refused);
        }
        self.pass(charge, now).ok_or_else(|| self.refused(&charge, std::iter::empty(), now))
    }

    /// Charges what conforms, and counts it.
    pub(super) fn pass(&self, charge: Charge, now: u64) -> Option<Outcome> {
        let Some(store) = charge.store(self) else { return Some(self.free(&charge)) };
        let outcome = store.decide(charge.key, now, charge.cost);
        (outcome.allowed || self.limits[charge.limit].observes_now()).then(|| self.count(&charge, outcome, now))
    }

    /// What a charge is answered that has somebody in front of it.
    pub(super) fn behind(&self, lines: &Lines, charge: &Charge, now: u64) -> Option<Refused> {
        let spot = self.spot(charge).filter(|spot| lines.has(spot))?;
        if charge.cost == 0 || self.limits[charge.limit].observes_now() {
            return None;
        }
        Some(self.refused(charge, lines.costs(&spot), now))
    }

    fn refused(&self, charge: &Charge, in_front: impl Iterator<Item = u64>, now: u64) -> Refused {
        let at = self.forecast(charge, now).and_then(|mut forecast| {
            let mut pass = |cost| forecast.passes_at(cost, u64::MAX).ok();
            // Those in front pass in time, or were not in line.
            for cost in in_front {
                let _ = pass(cost);
            }
            pass(charge.cost)
        });
        Refused { outcome: self.refusal(charge, at, now), at }
    }

    /// The answer to a charge that would pass at an instant, if ever.
    pub(super) fn refusal(&self, charge: &Charge, at: Option<u64>, now: u64) -> Outcome {
        let outcome = match charge.store(self) {
            Some(store) => store.peek(charge.key, now, charge.cost),
            None => self.free_outcome(charge),
        };
        let retry_after = match at {
            Some(at) => Some(Duration::from_nanos(at.saturating_sub(now))),
            None => outcome.retry_after,
        };
        // Those in front have what there is.
        let remaining = if outcome.allowed { 0 } else { outcome.remaining };
        Outcome { allowed: false, remaining, retry_after, ..outcome }
    }

    /// When costs of a charge's key will pass; `None` if it has no state, or no limit.
    pub(super) fn forecast(&self, charge: &Charge, now: u64) -> Option<Forecast> {
        charge.store(self)?.hold(charge.key).forecast(charge.key, now)
    }

    /// Where those wait who ask about a charge's key; `None` if it is not limited, or only looks.
    pub(super) fn spot(&self, charge: &Charge) -> Option<Spot> {
        let Standing::Grade(grade) = charge.standing else { return None };
        Some(Spot::new(self.line_of(charge), *self.sources.multipliers().get(grade)?, charge.key))
    }

    /// Who waits for a charge's limit, in numbers.
    pub(super) fn line_of(&self, charge: &Charge) -> &Arc<LineCounters> {
        &self.limits[charge.limit].line
    }

    pub(super) fn limit_name(&self, charge: &Charge) -> &str {
        &self.limits[charge.limit].policy.name
    }

    pub(super) const fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Everybody who waits.
    #[must_use]
    pub const fn waiting(&self) -> &Arc<Waiting> {
        &self.waiting
    }

    fn settle_now(&self, charge: Charge, now: u64) -> Outcome {
        let Some(store) = charge.store(self) else { return self.free(&charge) };
        let outcome = if charge.peek {
            store.peek(charge.key, now, charge.cost)
        } else {
            store.decide(charge.key, now, charge.cost)
        };
        self.count(&charge, outcome, now)
    }

    /// Counts an outcome, and makes of it what the limit's mode says.
    pub(super) fn count(&self, charge: &Charge, mut outcome: Outcome, now: u64) -> Outcome {
        let limit = &self.limits[charge.limit];
        let observes = limit.observes_now();
        if let Some(together) = &limit.together
            && !charge.peek
        {
            together.wanted.fetch_add(charge.cost, Ordering::Relaxed);
            if !outcome.allowed {
                together.refused.fetch_add(charge.cost, Ordering::Relaxed);
            }
        }
        let counter = match (outcome.allowed, observes) {
            (true, _) => &limit.counters.passed,
            (false, true) => &limit.counters.would_refuse,
            (false, false) => &limit.counters.refused,
        };
        if !charge.peek {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        if !outcome.allowed && observes {
            outcome.allowed = true;
            outcome.retry_after = Some(Duration::ZERO);
        } else if !outcome.allowed
            && !charge.peek
            && let (Some(escalation), Some(source)) = (&limit.escalation, charge.source)
            && let Some((prefix, time)) = escalation.refused(source, &self.fingerprints, now)
        {
            self.ban(prefix, time);
        }
        outcome
    }

    fn ban(&self, prefix: IpNet, time: Duration) {
        self.edge.ban(prefix, Some(time));
    }

    /// Who is not limited passes, and is counted as passed.
    fn free(&self, charge: &Charge) -> Outcome {
        let outcome = self.free_outcome(charge);
        if !charge.peek {
            self.limits[charge.limit].counters.passed.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    pub(super) fn free_outcome(&self, charge: &Charge) -> Outcome {
        let most = self.limits[charge.limit].stores.first().map_or(0, |store| super::tiers::most(store.tiers()));
        Outcome { allowed: true, remaining: most, retry_after: Some(Duration::ZERO), reset_after: Duration::ZERO }
    }

    /// The `RateLimit-Policy` of a charge's class, if it is limited.
    pub(super) fn policy_header(&self, charge: &Charge) -> Option<&Arc<str>> {
        let Standing::Grade(grade) = charge.standing else { return None };
        self.limits[charge.limit].policy_headers.get(grade)
    }

    /// What the charge's class has of the limit's rate, if it is limited.
    pub(super) fn quota(&self, charge: &Charge) -> Option<Rate> {
        let Standing::Grade(grade) = charge.standing else { return None };
        self.limit(charge.limit).quotas(*self.sources.multipliers().get(grade)?).first().copied()
    }

    /// A limit as the config has it.
    pub(super) fn limit(&self, nth: usize) -> &RequestLimit {
        &self.limits[nth].policy
    }

    /// The limits on a descriptor with these entries: those that count by exactly them, in any order, but for those that
    /// another one of them replaces.
    pub(super) fn limits_of<'q, I: Iterator<Item = (&'q str, &'q str)> + Clone>(
        &self,
        domain: &str,
        entries: impl Fn() -> I,
    ) -> Vec<usize> {
        let is_for = |limit: &Limit| {
            let policy = &limit.policy;
            policy.domain.as_ref().is_none_or(|wanted| wanted == domain)
                && policy.key.len() == entries().count()
                && policy.key.iter().all(|entry| {
                    let value = value_of(entry, entries(), None, policy);
                    value.is_some_and(|value| is_wanted(entry, &value, policy))
                })
        };
        let matching: Vec<usize> = (0..self.limits.len()).filter(|nth| is_for(&self.limits[*nth])).collect();
        let is_replaced = |nth: &usize| matching.iter().any(|other| self.limits[*other].replaces == Some(*nth));
        matching.iter().copied().filter(|nth| !is_replaced(nth)).collect()
    }

    /// Forgets what has decayed; each lock is held for some tens of microseconds.
    pub fn sweep(&self, now: u64) {
        for limit in &self.limits {
            limit.stores.iter().for_each(|store| store.sweep(now));
            if let Some(escalation) = &limit.escalation {
                escalation.sweep(now);
            }
        }
    }

    /// What has been asked of a limit that many hosts keep together, in units: (passed and refused, refused).
    #[must_use]
    pub fn asked(&self, name: &str) -> Option<(u64, u64)> {
        let together = self.limits[*self.by_name.get(name)?].together.as_ref()?;
        Some((together.wanted.load(Ordering::Relaxed), together.refused.load(Ordering::Relaxed)))
    }

    /// What this host has of such a limit from now on, and whether it refuses anything at all.
    pub fn set_share(&self, name: &str, share: Share, is_open: bool) {
        let Some(limit) = self.by_name.get(name).and_then(|nth| self.limits.get(*nth)) else { return };
        limit.stores.iter().for_each(|store| store.set_share(share));
        if let Some(together) = &limit.together {
            together.is_open.store(is_open, Ordering::Relaxed);
        }
        if !limit.line.is_empty() {
            self.waiting.changed();
        }
    }

    /// The same for several, by their names.
    pub fn set_shares<'a>(&self, shares: impl IntoIterator<Item = (&'a String, &'a InForce)>) {
        shares.into_iter().for_each(|(name, share)| self.set_share(name, share.share, share.is_open));
    }

    /// Forgets all state of a limit; how many keys there were, or `None` if there is no such limit.
    #[must_use]
    pub fn reset(&self, name: &str) -> Option<u64> {
        let limit = &self.limits[*self.by_name.get(name)?];
        let forgotten = limit.stores.iter().map(|store| store.clear()).sum::<usize>() as u64;
        if !limit.line.is_empty() {
            self.waiting.changed();
        }
        Some(forgotten)
    }
}

/// An empty store for a limit's keys.
fn new_store(policy: &RequestLimit, tiers: Vec<Policy>, capacity: usize) -> Store {
    let store = Store::new(tiers, capacity, policy.on_full);
    if policy.cluster { store.shared() } else { store }
}

/// What a key is made of. Values that are next to each other cannot run together: the hash has their lengths.
#[derive(Hash, PartialEq, Eq)]
enum Value<'q> {
    Text(&'q str),
    Address(IpAddr),
}

impl Value<'_> {
    fn of_address(address: IpAddr, policy: &RequestLimit) -> Self {
        Self::Address(masked(address, policy.ipv4_prefix, policy.ipv6_prefix))
    }
}

impl std::fmt::Display for Value<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(text) => text.fmt(formatter),
            Self::Address(address) => address.fmt(formatter),
        }
    }
}

/// An entry's value among those of a question or descriptor. `source` may be given apart; what is no address there is
/// kept as text, so that it comes under the limit like any other value.
fn value_of<'q>(
    entry: &KeyEntry,
    mut entries: impl Iterator<Item = (&'q str, &'q str)>,
    source: Option<IpAddr>,
    policy: &RequestLimit,
) -> Option<Value<'q>> {
    let text = entries.find(|(name, _)| *name == entry.name).map(|(_, value)| value);
    if !entry.is_source() {
        return text.map(Value::Text);
    }
    match text {
        Some(text) => Some(match text.parse::<IpAddr>() {
            Ok(address) => Value::of_address(address.to_canonical(), policy),
            Err(_) => Value::Text(text),
        }),
        None => source.map(|source| Value::of_address(source, policy)),
    }
}

/// Whether it is the one value that the entry is for, if it is for one.
fn is_wanted(entry: &KeyEntry, value: &Value<'_>, policy: &RequestLimit) -> bool {
    match &entry.value {
        None => true,
        Some(EntryValue::Text(text)) => *value == Value::Text(text),
        Some(EntryValue::Address(address)) => *value == Value::of_address(*address, policy),
    }
}

fn suggest(written: &str, known: &[&str]) -> String {
    if known.is_empty() { "the config has none".to_owned() } else { suggestion(written, known) }
}
