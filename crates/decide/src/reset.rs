//! Resets of keys, of addresses and of whole limits: on this host, or on all that exchange the keys.

use std::sync::Arc;

use api::event::seconds_since_1970;
use config::policy::{ClusterMode, Prefix};
use host::PROGRAM;
use thiserror::Error;

use super::charge::Charge;
use super::engine::Engine;
use super::error::DecideError;
use super::fingerprint::Fingerprint;
use super::limit::Limit;
use super::resets::{LastReset, LastResets, ResetKey, ResetsFull, current, merge, raise};
use super::state_store::StateStore;
use super::status::is_by_address;

/// A reset that changes nothing.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ResetError {
    /// The key is none of the limit.
    #[error(transparent)]
    Key(#[from] DecideError),
    /// No limit counts by exactly these entries.
    #[error(
        "no limit on requests has keys of {entries} alone: add all entries of a limit's key ({help})"
    )]
    NoLimit {
        entries: String,
        /// The limits' keys.
        help: String,
    },
    /// The prefix has more keys of a limit than are looked up. The agent names both.
    #[error("{keys} keys of limit {limit:?}")]
    TooWide {
        limit: String,
        /// Saturated.
        keys: u128,
    },
    #[error(
        "this host has not joined the cluster yet, and does not know the keys of the other hosts: try again when {PROGRAM} status shows its store as up"
    )]
    NotJoined,
    #[error(transparent)]
    Full(#[from] ResetsFull),
}

/// The result of a reset of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyReset {
    /// Removed states of this host.
    pub forgotten: u64,
    /// The limits under which it is reset.
    pub limits: Vec<String>,
    /// Of them, those under which all hosts reset it.
    pub on_all_hosts: Vec<String>,
    /// Of them, those of which other hosts have their share, and keep its state.
    pub on_this_host: Vec<String>,
}

impl Engine {
    /// Removes all state of a limit, on all hosts that exchange its keys. Returns the number of this host's keys, or `None`
    /// if there is no such limit.
    ///
    /// # Errors
    ///
    /// When this host does not know the other hosts' keys yet; nothing is reset then.
    pub fn reset(&self, name: &str) -> Result<Option<u64>, ResetError> {
        let Some(nth) = self.by_name.get(name) else {
            return Ok(None);
        };
        let limit = &self.limits[*nth];
        if limit.is_exchanged() {
            self.check_joined(limit)?;
            return Ok(Some(self.raise(&[ResetKey::all(limit.name_hash)])?));
        }
        let stores = limit.stores.iter();
        let forgotten = stores.map(|store| store.clear() as u64).sum();
        self.wake(&limit.line);
        Ok(Some(forgotten))
    }

    /// Removes the state of a key under one limit, or under all limits with exactly these entries.
    ///
    /// # Errors
    ///
    /// When no limit has such a key, or hosts keep too many resets; nothing is reset then.
    pub fn reset_key<'q>(
        &self,
        entries: impl Iterator<Item = (&'q str, &'q str)> + Clone,
        only: Option<&str>,
    ) -> Result<KeyReset, ResetError> {
        let charges = match only {
            Some(limit) => vec![self.charge_of_key(limit, entries)?],
            None => self.charges_of_key(entries)?,
        };
        let of = |charge: &Charge| &self.limits[charge.limit];
        let exchanged: Vec<ResetKey> = charges
            .iter()
            .filter(|charge| of(charge).is_exchanged())
            .map(|charge| reset_key(of(charge), charge))
            .collect();
        charges
            .iter()
            .try_for_each(|charge| self.check_joined(of(charge)))?;
        let mut reset = KeyReset {
            forgotten: self.raise(&exchanged)?,
            ..KeyReset::default()
        };
        for charge in &charges {
            let limit = of(charge);
            let name = || limit.policy.name.clone();
            reset.limits.push(name());
            match limit.policy.cluster {
                Some(ClusterMode::Keys) => {
                    reset.on_all_hosts.push(name());
                    continue;
                }
                Some(ClusterMode::Shares) => reset.on_this_host.push(name()),
                None => {}
            }
            reset.forgotten += forget(limit, charge.key);
            self.wake(&limit.line);
        }
        Ok(reset)
    }

    /// A charge of a limit's key that has no entries of others.
    fn charge_of_key<'q>(
        &self,
        limit: &str,
        mut entries: impl Iterator<Item = (&'q str, &'q str)> + Clone,
    ) -> Result<Charge, DecideError> {
        let charge = self.charge_of_any(limit, entries.clone(), None, 1)?;
        let policy = &self.limits[charge.limit].policy;
        let is_of_others = |entry: &str| policy.key.iter().all(|known| known.name != entry);
        match entries.find(|(entry, _)| is_of_others(entry)) {
            Some((entry, _)) => Err(DecideError::UnknownEntry {
                limit: policy.name.clone(),
                entry: entry.to_owned(),
            }),
            None => Ok(charge),
        }
    }

    fn charges_of_key<'q>(
        &self,
        entries: impl Iterator<Item = (&'q str, &'q str)> + Clone,
    ) -> Result<Vec<Charge>, ResetError> {
        let is_of = |limit: &Limit| {
            limit.policy.key.len() == entries.clone().count()
                && entries
                    .clone()
                    .all(|(entry, _)| limit.policy.key.iter().any(|known| known.name == entry))
                // All users share that state.
                && limit.policy.over.is_empty()
        };
        let charges: Vec<Charge> = (0..self.limits.len())
            .filter(|nth| is_of(&self.limits[*nth]))
            .filter_map(|nth| self.charge_of(nth, entries.clone(), None, 1).ok())
            .collect();
        if charges.is_empty() {
            let names: Vec<&str> = entries.map(|(entry, _)| entry).collect();
            return Err(ResetError::NoLimit {
                entries: names.join(", "),
                help: self.keys_of_limits(),
            });
        }
        Ok(charges)
    }

    /// The entries of each limit's key, for the operator.
    fn keys_of_limits(&self) -> String {
        let keys = |limit: &Limit| {
            let entries = limit.policy.key.iter().map(ToString::to_string);
            let entries: Vec<String> = entries.collect();
            format!("{:?} has {}", limit.policy.name, entries.join(", "))
        };
        let keys: Vec<String> = self.limits.iter().map(keys).collect();
        if keys.is_empty() {
            return "the config in effect has none".to_owned();
        }
        keys.join("; ")
    }

    /// Whether [`Engine::reset_sources`] can reset a prefix.
    ///
    /// # Errors
    ///
    /// When the prefix has more keys of a limit than [`MOST_KEYS`](config::prefix::MOST_KEYS), or of an exchanged limit than
    /// there is room for, or this host does not know the other hosts' keys yet.
    pub fn check_reset(&self, prefix: &Prefix, only: Option<&str>) -> Result<(), ResetError> {
        let mut exchanged = Vec::new();
        for (nth, limit) in self.limits.iter().enumerate() {
            let policy = &limit.policy;
            if !is_by_address(limit) || only.is_some_and(|only| policy.name != only) {
                continue;
            }
            let keys = prefix.keys(policy.ipv4_prefix, policy.ipv6_prefix);
            let keys = keys.map_err(|keys| ResetError::TooWide {
                limit: policy.name.clone(),
                keys,
            })?;
            if limit.is_exchanged() {
                self.check_joined(limit)?;
                let charges = keys.filter_map(|key| self.charge_of_source(nth, limit, key));
                exchanged.extend(charges.map(|charge| reset_key(limit, &charge)));
            }
        }
        let mut last = LastResets::clone(&self.resets.last());
        Ok(raise(&mut last, &exchanged, 0)?)
    }

    /// Removes the states of a prefix's addresses under limits whose key is the address alone; of prefixes that
    /// [`Engine::check_reset`] finds too wide, none. Returns their number, and the names of the other limits.
    ///
    /// # Errors
    ///
    /// When hosts keep too many resets; [`Engine::check_reset`] finds that before.
    pub fn reset_sources(
        &self,
        prefix: &Prefix,
        only: Option<&str>,
    ) -> Result<(Option<u64>, Vec<String>), ResetsFull> {
        let (mut forgotten, mut others) = (only.is_none().then_some(0), Vec::new());
        for (nth, limit) in self.limits.iter().enumerate() {
            if only.is_some_and(|only| limit.policy.name != only) {
                continue;
            }
            if !is_by_address(limit) {
                others.push(limit.policy.name.clone());
                continue;
            }
            let forgotten = forgotten.get_or_insert(0);
            let policy = &limit.policy;
            let keys = prefix.keys(policy.ipv4_prefix, policy.ipv6_prefix);
            let charges = keys
                .into_iter()
                .flatten()
                .filter_map(|address| self.charge_of_source(nth, limit, address));
            if limit.is_exchanged() {
                let keys: Vec<ResetKey> = charges.map(|charge| reset_key(limit, &charge)).collect();
                *forgotten += self.raise(&keys)?;
                continue;
            }
            *forgotten += charges.map(|charge| forget(limit, charge.key)).sum::<u64>();
            self.wake(&limit.line);
        }
        Ok((forgotten, others))
    }

    /// A host that has not joined has other fingerprints.
    fn check_joined(&self, limit: &Limit) -> Result<(), ResetError> {
        match limit.is_exchanged() && !self.exchanged_secret().1 {
            true => Err(ResetError::NotJoined),
            false => Ok(()),
        }
    }

    /// Resets exchanged keys, and removes their states. Returns the number of removed ones.
    fn raise(&self, keys: &[ResetKey]) -> Result<u64, ResetsFull> {
        let states = self.resets.change(|last| {
            let before = last.clone();
            raise(last, keys, milliseconds_since_1970())?;
            Ok(self.states_of(keys, &before, last))
        })?;
        Ok(self.forget_states(keys, states))
    }

    /// The states that keys have before a reset. After it, a key starts with the demand of the other hosts: each of them would
    /// pass a burst of it as of a new one.
    fn states_of(
        &self,
        keys: &[ResetKey],
        before: &LastResets,
        after: &LastResets,
    ) -> Vec<State<'_>> {
        let mut states = Vec::new();
        for limit in self.limits.iter().filter(|limit| limit.is_exchanged()) {
            for key in keys.iter().filter(|key| key.limit == limit.name_hash) {
                let current = |last| {
                    let key = Fingerprint::of_word(key.key);
                    current(last, limit.name_hash, key, || self.together.load_full())
                };
                for store in limit.stores.iter().map(Arc::as_ref) {
                    if key.is_all() {
                        states.extend(store.known_keys().map(|key| (store, key)));
                    } else {
                        store.inherit_peers(current(before), current(after));
                        states.push((store, current(before)));
                    }
                }
            }
        }
        states
    }

    /// Removes states of before, after the resets are in effect: nobody charges these any more.
    fn forget_states(&self, keys: &[ResetKey], states: Vec<State<'_>>) -> u64 {
        let forgotten = states
            .into_iter()
            .filter(|(store, key)| store.forget(*key))
            .count();
        let is_of = |limit: &&Limit| keys.iter().any(|key| key.limit == limit.name_hash);
        self.limits
            .iter()
            .filter(is_of)
            .for_each(|limit| self.wake(&limit.line));
        forgotten as u64
    }

    /// The last resets of exchanged keys.
    #[must_use]
    pub fn last_resets(&self) -> Arc<LastResets> {
        self.resets.last()
    }

    /// Takes over the resets of other hosts.
    pub fn receive_resets(&self, others: &[(ResetKey, LastReset)]) {
        if others.is_empty() {
            return;
        }
        let (raised, states) = self.resets.change(|last| {
            let before = last.clone();
            let raised = merge(last, others);
            let states = self.states_of(&raised, &before, last);
            (raised, states)
        });
        self.forget_states(&raised, states);
    }
}

/// The state of a key.
type State<'e> = (&'e StateStore, Fingerprint);

/// The key of an exchanged limit's charge.
fn reset_key(limit: &Limit, charge: &Charge) -> ResetKey {
    ResetKey {
        limit: limit.name_hash,
        key: charge.named.word(),
    }
}

/// Removes a key, under the multipliers of all classes. Returns the number of its states.
fn forget(limit: &Limit, key: Fingerprint) -> u64 {
    let stores = limit.stores.iter();
    stores.map(|store| u64::from(store.forget(key))).sum()
}

fn milliseconds_since_1970() -> u64 {
    (seconds_since_1970() * 1_000.0) as u64
}
