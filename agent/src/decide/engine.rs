//! One decision, or several that belong together.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::rate_limiter::{Outcome, PolicyError};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::escalation::{Edge, Escalation};
use super::formula::{Formula, FormulaError};
use super::sources::{Sources, Standing};
use super::store::{Fingerprint, Fingerprints, Held, Store};
use crate::config::policy::{Config, Mode, RequestEnforcement, RequestLimit};
use crate::config::request_limit::SOURCE;
use crate::config::table::suggestion;

/// What is asked: one limit, one key, one cost.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// The limit's name.
    pub limit: String,
    /// Its entries and their values.
    #[serde(default)]
    pub key: BTreeMap<String, String>,
    /// The client's address, for its class and for limits by source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<IpAddr>,
    /// The kind of request; its formula says what it costs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// What the formula is over.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, f64>,
    /// The cost itself, in units; 1 if neither it nor a request is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<u64>,
    /// Look, and charge nothing.
    #[serde(default)]
    pub peek: bool,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Whether the request may go on.
    pub allowed: bool,
    /// The limit that was asked about.
    pub limit: String,
    /// The largest cost that would pass now.
    pub remaining: u64,
    /// Until this cost would pass if nothing else did; 0 if it passed; `null` if it never can.
    pub retry_after_seconds: Option<f64>,
    /// Until the whole allowance is back if nothing else passes.
    pub reset_after_seconds: f64,
}

/// Why there is no answer. Nothing was charged.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum DecideError {
    /// No such limit.
    #[error("there is no limit {name:?} on requests: {help}")]
    UnknownLimit {
        /// What was asked for.
        name: String,
        /// What there is.
        help: String,
    },
    /// An entry is missing.
    #[error("limit {limit:?} counts by {entry:?}, and the key has none: {help}")]
    MissingEntry {
        /// The limit.
        limit: String,
        /// The entry.
        entry: String,
        /// What to write.
        help: &'static str,
    },
    /// An entry too many.
    #[error("limit {limit:?} does not count by {entry:?}: leave it out")]
    UnknownEntry {
        /// The limit.
        limit: String,
        /// The entry.
        entry: String,
    },
    /// The source is no address, or two different ones.
    #[error("the source {0:?} is not an address: write it as 203.0.113.9 or 2001:db8::9, once")]
    Source(String),
    /// No such request.
    #[error("there is no request {name:?}: {help}")]
    UnknownRequest {
        /// What was asked for.
        name: String,
        /// What there is.
        help: String,
    },
    /// A request and a cost, or parameters without a request.
    #[error("{0}")]
    Cost(&'static str),
    /// The formula has no cost for these parameters.
    #[error("request {request:?}: {error}")]
    Formula {
        /// The request.
        request: String,
        /// Why.
        error: FormulaError,
    },
}

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

/// A limit and its state.
#[derive(Debug)]
pub(super) struct Limit {
    pub(super) policy: RequestLimit,
    /// One for each multiplier of the classes.
    pub(super) stores: Vec<Store>,
    pub(super) counters: Counters,
    escalation: Option<Escalation>,
    observes: bool,
}

/// All limits on requests, and who is asking about them.
pub struct Engine {
    pub(super) limits: Vec<Limit>,
    by_name: HashMap<String, usize>,
    requests: HashMap<String, Formula>,
    sources: Sources,
    fingerprints: Fingerprints,
    edge: Arc<dyn Edge>,
}

/// A question whose every part is known: which limit, which key of it, at what cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charge {
    pub(super) limit: usize,
    standing: Standing,
    source: Option<IpAddr>,
    key: Fingerprint,
    pub(super) cost: u64,
    peek: bool,
}

impl Charge {
    /// The store that holds its key; those that are not limited need none.
    fn store<'e>(&self, engine: &'e Engine) -> Option<&'e Store> {
        let Standing::Grade(grade) = self.standing else { return None };
        engine.limits.get(self.limit)?.stores.get(grade)
    }
}

impl Engine {
    /// For the limits of a config; bans go to `edge`.
    ///
    /// # Errors
    ///
    /// When a limit cannot be kept, or there is no secret to be had.
    pub fn new(config: &Config, edge: Arc<dyn Edge>) -> Result<Self, EngineError> {
        let sources = Sources::of(config);
        let mut limits = Vec::new();
        for policy in &config.decide.limits {
            let fail = |error| EngineError::Policy { limit: policy.name.clone(), error };
            let mut stores = Vec::new();
            for multiplier in sources.multipliers() {
                let tiers = policy.policies(*multiplier).map_err(fail)?;
                stores.push(Store::new(tiers, config.decide.max_keys as usize, policy.on_full));
            }
            let observes = config.agent.mode == Mode::Observe || policy.enforcement == RequestEnforcement::Observe;
            limits.push(Limit {
                policy: policy.clone(),
                stores,
                counters: Counters::default(),
                escalation: policy.escalate.map(Escalation::new).transpose().map_err(fail)?,
                observes,
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
            fingerprints: Fingerprints::new().map_err(EngineError::Secret)?,
            edge,
        })
    }

    /// Decides on one question at `now`, in nanoseconds.
    ///
    /// # Errors
    ///
    /// When it cannot be understood; nothing is charged then.
    pub fn decide(&self, question: &Question, now: u64) -> Result<Answer, DecideError> {
        let charge = self.charge(question)?;
        let name = &self.limits[charge.limit].policy.name;
        Ok(answer(name, self.settle(charge, now)))
    }

    /// Decides on many questions, each for itself.
    ///
    /// # Errors
    ///
    /// With the first that cannot be understood and its place; none is charged then.
    pub fn decide_each(&self, questions: &[Question], now: u64) -> Result<Vec<Answer>, (usize, DecideError)> {
        let charges = questions.iter().enumerate();
        let charges: Vec<Charge> = charges
            .map(|(nth, question)| self.charge(question).map_err(|error| (nth, error)))
            .collect::<Result<_, _>>()?;
        let settled = charges.into_iter().map(|charge| {
            let name = &self.limits[charge.limit].policy.name;
            answer(name, self.settle(charge, now))
        });
        Ok(settled.collect())
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
        let limit = &self.limits[nth];
        let source = source(question)?;
        let known = |entry: &&String| *entry == SOURCE || limit.policy.key.contains(entry);
        if let Some(entry) = question.key.keys().find(|entry| !known(entry)) {
            return Err(DecideError::UnknownEntry { limit: limit.policy.name.clone(), entry: entry.clone() });
        }
        let entries = question.key.iter().map(|(entry, value)| (entry.as_str(), value.as_str()));
        let cost = self.cost(limit, source, question)?;
        self.charge_of(nth, entries, source, cost, question.peek)
    }

    /// Understands the entries of a key.
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
            let missing =
                |help| DecideError::MissingEntry { limit: limit.policy.name.clone(), entry: entry.clone(), help };
            if entry == SOURCE {
                let source = source.ok_or_else(|| missing("give the client's address as source"))?;
                values.push(masked(source, &limit.policy));
            } else {
                let value = entries.clone().find(|(name, _)| name == entry).map(|(_, value)| value);
                values.push(Value::Text(value.ok_or_else(|| missing("give it a value"))?));
            }
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
        // The limit's most credits are those of the caller's class.
        let grade = if let Standing::Grade(grade) = self.sources.standing(source) { grade } else { 0 };
        let most = limit.stores.get(grade).map_or(0, |store| super::tiers::most(store.tiers()));
        formula.cost(most, &question.parameters).map_err(|error| DecideError::Formula { request: name.clone(), error })
    }

    /// Decides on one charge.
    fn settle(&self, charge: Charge, now: u64) -> Outcome {
        let Some(store) = charge.store(self) else { return self.free(&charge) };
        let outcome = if charge.peek {
            store.peek(charge.key, now, charge.cost)
        } else {
            store.decide(charge.key, now, charge.cost)
        };
        self.count(&charge, outcome, now)
    }

    /// Decides on charges that are made all together or not at all; what each of them would have said.
    ///
    /// Shards are held in the order of (limit, grade, shard), so that two callers never wait for each other.
    pub(super) fn settle_all(&self, charges: &[Charge], now: u64) -> Vec<Outcome> {
        let mut places: Vec<(usize, usize, usize, Fingerprint)> = Vec::new();
        for charge in charges {
            if let (Standing::Grade(grade), Some(store)) = (charge.standing, charge.store(self)) {
                places.push((charge.limit, grade, store.shard_of(charge.key), charge.key));
            }
        }
        places.sort_unstable_by_key(|(limit, grade, shard, _)| (*limit, *grade, *shard));
        places.dedup_by_key(|(limit, grade, shard, _)| (*limit, *grade, *shard));
        let mut held: Vec<((usize, usize, usize), Held<'_>)> = places
            .into_iter()
            .filter_map(|(limit, grade, shard, key)| {
                Some(((limit, grade, shard), self.limits.get(limit)?.stores.get(grade)?.hold(key)))
            })
            .collect();
        let mut find = |charge: &Charge| -> Option<usize> {
            let (Standing::Grade(grade), Some(store)) = (charge.standing, charge.store(self)) else { return None };
            let place = (charge.limit, grade, store.shard_of(charge.key));
            held.iter().position(|(other, _)| *other == place)
        };
        let at: Vec<Option<usize>> = charges.iter().map(&mut find).collect();

        let mut outcomes = Vec::with_capacity(charges.len());
        let mut undo: Vec<(usize, Fingerprint, Option<Box<[u64]>>)> = Vec::new();
        let mut all_pass = true;
        for (charge, at) in charges.iter().zip(&at) {
            let Some((_, held)) = at.and_then(|at| held.get_mut(at)) else {
                outcomes.push(self.free_outcome(charge));
                continue;
            };
            if charge.peek {
                outcomes.push(held.peek(charge.key, now, charge.cost));
            } else {
                undo.push((at.unwrap_or_default(), charge.key, held.save(charge.key)));
                outcomes.push(held.decide(charge.key, now, charge.cost));
            }
            let is_refused = outcomes.last().is_some_and(|outcome| !outcome.allowed);
            all_pass &= !is_refused || self.limits[charge.limit].observes;
        }
        if !all_pass {
            // In reverse, since one key may have been charged twice.
            for (at, key, saved) in undo.into_iter().rev() {
                if let Some((_, held)) = held.get_mut(at) {
                    held.restore(key, saved.as_deref());
                }
            }
            for ((charge, at), outcome) in charges.iter().zip(&at).zip(&mut outcomes) {
                if let Some((_, held)) = at.and_then(|at| held.get(at))
                    && outcome.allowed
                {
                    outcome.remaining = held.peek(charge.key, now, charge.cost).remaining;
                }
            }
        }
        drop(held);
        let count = |(charge, outcome): (&Charge, Outcome)| {
            // What passed by itself was not charged if another refused: it counts as neither.
            if all_pass || !outcome.allowed { self.count(charge, outcome, now) } else { outcome }
        };
        charges.iter().zip(outcomes).map(count).collect()
    }

    /// Counts an outcome, and makes of it what the limit's mode says.
    fn count(&self, charge: &Charge, mut outcome: Outcome, now: u64) -> Outcome {
        let limit = &self.limits[charge.limit];
        let counter = match (outcome.allowed, limit.observes) {
            (true, _) => &limit.counters.passed,
            (false, true) => &limit.counters.would_refuse,
            (false, false) => &limit.counters.refused,
        };
        if !charge.peek {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        if !outcome.allowed && limit.observes {
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

    fn free_outcome(&self, charge: &Charge) -> Outcome {
        let most = self.limits[charge.limit].stores.first().map_or(0, |store| super::tiers::most(store.tiers()));
        Outcome { allowed: true, remaining: most, retry_after: Some(Duration::ZERO), reset_after: Duration::ZERO }
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

    /// Forgets all state of a limit; how many keys there were, or `None` if there is no such limit.
    #[must_use]
    pub fn reset(&self, name: &str) -> Option<u64> {
        let limit = &self.limits[*self.by_name.get(name)?];
        Some(limit.stores.iter().map(Store::clear).sum::<usize>() as u64)
    }
}

pub(super) fn answer(name: &str, outcome: Outcome) -> Answer {
    Answer {
        allowed: outcome.allowed,
        limit: name.to_owned(),
        remaining: outcome.remaining,
        retry_after_seconds: outcome.retry_after.map(|wait| wait.as_secs_f64()),
        reset_after_seconds: outcome.reset_after.as_secs_f64(),
    }
}

/// What a key is made of. Values that are next to each other cannot run together: the hash has their lengths.
#[derive(Hash)]
enum Value<'q> {
    Text(&'q str),
    Address(IpAddr),
}

fn masked(source: IpAddr, policy: &RequestLimit) -> Value<'static> {
    let length = if source.is_ipv4() { policy.ipv4_prefix } else { policy.ipv6_prefix };
    Value::Address(IpNet::new(source, length).map_or(source, |net| net.network()))
}

/// The client's address, wherever it is given, IPv4-mapped as IPv4.
fn source(question: &Question) -> Result<Option<IpAddr>, DecideError> {
    let in_key = match question.key.get(SOURCE) {
        Some(text) => Some(text.parse::<IpAddr>().map_err(|_| DecideError::Source(text.clone()))?.to_canonical()),
        None => None,
    };
    let apart = question.source.map(|address| address.to_canonical());
    match (in_key, apart) {
        (Some(one), Some(other)) if one != other => Err(DecideError::Source(format!("{one}, {other}"))),
        (one, other) => Ok(one.or(other)),
    }
}

fn suggest(written: &str, known: &[&str]) -> String {
    if known.is_empty() { "the config has none".to_owned() } else { suggestion(written, known) }
}
