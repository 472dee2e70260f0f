//! Both databases of a config.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use api::geo::GeoStatus;
use config::PrefixKey;
use config::policy::{
    Class, Config, GeoKey, GeoKind, Limit, LimitSources, ListSource, Networks, Prefix,
};
use geo::{Classes, Database, with_lists, with_prefixes};

use super::class_lists::ClassLists;
use super::state::State;
use crate::files;

/// The databases that a config uses, and the lists of its classes. Copies share the content.
#[derive(Clone, Debug, Default)]
pub struct Databases {
    states: BTreeMap<GeoKind, State>,
    lists: ClassLists,
}

/// A change of one database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatabaseChange {
    /// It has another content, with so many prefixes of the requested keys.
    Updated {
        kind: GeoKind,
        prefixes: u64,
        summary: String,
    },
    /// Its file cannot be used.
    Failed {
        kind: GeoKind,
        prefixes: u64,
        note: String,
    },
    /// The new content of a class's list could not be put in effect.
    ListFailed {
        list: String,
        prefixes: u64,
        note: String,
    },
}

impl Databases {
    /// Reads the databases that a config uses, except unchanged files. The content of `before` stays where a file cannot
    /// be used. `lists` are those of the config's classes.
    #[must_use]
    pub fn read(config: &Config, before: &Self, lists: ClassLists) -> Self {
        let of_lists = config
            .ban_lists
            .iter()
            .filter_map(|list| match list.source() {
                ListSource::Geo(keys) => Some(keys),
                ListSource::File(_) | ListSource::Url(_) => None,
            });
        let of_limits = config
            .limits
            .iter()
            .filter_map(|limit| Some(limit.sources.as_ref()?.geo.clone()));
        let of_classes = config.classes.iter().map(Class::geo);
        let all: BTreeSet<GeoKey> = of_classes
            .chain(of_lists)
            .chain(of_limits)
            .flatten()
            .collect();
        let read = |kind: GeoKind| {
            let wanted: BTreeSet<GeoKey> = all
                .iter()
                .filter(|key| key.kind() == kind)
                .copied()
                .collect();
            // A valid config has a file for each of them.
            let wants_networks =
                kind == GeoKind::Asn && config.limits.iter().any(Limit::uses_networks);
            let path = config
                .geo
                .file(kind)
                .filter(|_| wants_networks || !wanted.is_empty())?;
            Some((
                kind,
                State::read(
                    kind,
                    path,
                    (wanted, wants_networks),
                    before.states.get(&kind),
                ),
            ))
        };
        Self {
            states: GeoKind::ALL.into_iter().filter_map(read).collect(),
            lists,
        }
    }

    /// The lists of classes.
    #[must_use]
    pub const fn lists(&self) -> &ClassLists {
        &self.lists
    }

    /// The config with the prefixes of its classes' lists, and of the networks and countries of classes and limits; and a
    /// note for each overlap of classes by them.
    #[must_use]
    pub fn applied(&self, config: &Config) -> (Config, Vec<String>) {
        let mut applied = config.clone();
        applied.geo.networks = self.networks();
        let Classes { classes, overlaps } = self.resolved(applied.classes);
        applied.classes = classes;
        for sources in applied
            .limits
            .iter_mut()
            .filter_map(|limit| limit.sources.as_mut())
        {
            *sources = self.with_prefixes(sources);
        }
        (applied, overlaps)
    }

    /// All networks, if a limit has them as its keys.
    #[must_use]
    pub fn networks(&self) -> Networks {
        let asn = self
            .states
            .get(&GeoKind::Asn)
            .filter(|state| state.wants_networks);
        let networks = asn.and_then(|state| state.database.as_ref()?.networks.as_ref());
        networks.map_or_else(Networks::default, |networks| Arc::clone(&networks.prefixes))
    }

    /// Whether policies with these contents and with others have the same prefixes.
    #[must_use]
    pub fn have_same_prefixes(&self, other: &Self, config: &Config) -> bool {
        self.networks() == other.networks()
            && self.classes(config.classes.clone()) == other.classes(config.classes.clone())
            && config
                .limits
                .iter()
                .filter_map(|limit| limit.sources.as_ref())
                .all(|sources| self.with_prefixes(sources) == other.with_prefixes(sources))
    }

    /// A limit's sources with all their prefixes.
    fn with_prefixes(&self, sources: &LimitSources) -> LimitSources {
        sources.with_prefixes(
            sources
                .geo
                .iter()
                .flat_map(|key| self.prefixes(*key))
                .copied(),
        )
    }

    /// Classes with all their prefixes.
    #[must_use]
    pub fn classes(&self, classes: Vec<Class>) -> Vec<Class> {
        self.resolved(classes).classes
    }

    fn resolved(&self, classes: Vec<Class>) -> Classes {
        let listed = with_lists(classes, self.lists.prefixes());
        let mut all = with_prefixes(listed.classes, |key| self.prefixes(key));
        all.overlaps.splice(..0, listed.overlaps);
        all
    }

    fn prefixes(&self, key: GeoKey) -> &[Prefix] {
        let database = self
            .states
            .get(&key.kind())
            .and_then(|state| state.database.as_ref());
        database
            .and_then(|database| database.prefixes.get(&key))
            .map_or(&[], Vec::as_slice)
    }

    /// The databases of a list's keys, to compare them.
    ///
    /// # Errors
    ///
    /// When some key was never read, since a file cannot be used.
    pub fn of(&self, keys: &[GeoKey]) -> Result<Vec<Arc<Database>>, String> {
        let kinds: BTreeSet<GeoKind> = keys.iter().map(|key| key.kind()).collect();
        let state = |kind: &GeoKind| self.states.get(kind);
        if let Some(lacking) = kinds
            .iter()
            .filter_map(state)
            .find(|state| state.lacks_any())
        {
            return Err(lacking
                .problem()
                .unwrap_or_else(|| format!("[geo] {} is not read", lacking.kind.key())));
        }
        Ok(kinds
            .iter()
            .filter_map(state)
            .filter_map(|state| state.database.clone())
            .collect())
    }

    /// The prefixes of a list's keys, in order.
    #[must_use]
    pub fn of_list(&self, keys: &[GeoKey]) -> Vec<PrefixKey> {
        let mut prefixes: Vec<PrefixKey> = keys
            .iter()
            .flat_map(|key| self.prefixes(*key))
            .map(PrefixKey::from)
            .collect();
        prefixes.sort_unstable();
        prefixes.dedup();
        prefixes
    }

    /// The problems of files that cannot be used.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        self.states.values().filter_map(State::problem).collect()
    }

    /// Why a network or country has no prefixes that was not requested of the databases `before`.
    #[must_use]
    pub fn lacking(&self, before: &Self) -> Option<String> {
        let lacking = self
            .states
            .iter()
            .filter(|(kind, state)| state.lacks_more_than(before.states.get(kind)));
        lacking.filter_map(|(_, state)| state.problem()).next()
    }

    /// Notes for the operator: problems, and networks and countries that a database does not contain.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        self.states
            .values()
            .filter_map(State::note)
            .chain(self.lists.notes())
            .chain(self.missing())
            .collect()
    }

    /// Networks and countries that a database does not contain, and prefixes of reserved networks.
    #[must_use]
    pub fn missing(&self) -> Vec<String> {
        let of = |state: &State| {
            state
                .missing()
                .map(|key| state.missing_note(key))
                .collect::<Vec<_>>()
        };
        let reserved = self.states.values().filter_map(State::reserved_note);
        self.states.values().flat_map(of).chain(reserved).collect()
    }

    /// The contents in use.
    #[must_use]
    pub fn summaries(&self) -> Vec<String> {
        let summary =
            |state: &State| Some(format!("[geo] {}: {}", state.kind.key(), state.summary()?));
        self.states.values().filter_map(summary).collect()
    }

    /// The part of `weir status`.
    #[must_use]
    pub fn status(&self) -> Vec<GeoStatus> {
        self.states.values().map(State::status).collect()
    }

    /// The files.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.states.values().map(|state| state.path.as_path())
    }

    /// Whether no file has changed since it was read.
    #[must_use]
    pub fn are_current(&self) -> bool {
        self.states
            .values()
            .all(|state| files::fingerprint(&state.path) == state.fingerprint)
    }

    /// These contents, after those of `next` could not be put in effect.
    #[must_use]
    pub fn kept(&self, next: &Self, why: &str) -> Self {
        let keep = |(kind, next): (&GeoKind, &State)| {
            let before = self
                .states
                .get(kind)
                .filter(|before| before.path == next.path);
            let is_same = before.is_some_and(|before| before.database == next.database);
            let state = match before {
                Some(before) if !is_same => next.not_in_effect(before.database.clone(), why),
                _ => next.clone(),
            };
            (*kind, state)
        };
        Self {
            states: next.states.iter().map(keep).collect(),
            lists: self.lists.kept(&next.lists, why),
        }
    }

    /// No contents, after these could not be put in effect.
    #[must_use]
    pub fn left_out(&self, why: &str) -> Self {
        let why = why.lines().collect::<Vec<_>>().join("; ");
        let leave = |(kind, state): (&GeoKind, &State)| (*kind, state.not_in_effect(None, &why));
        Self {
            states: self.states.iter().map(leave).collect(),
            lists: self.lists.left_out(&why),
        }
    }

    /// The differences from the databases `before`.
    #[must_use]
    pub fn changes(&self, before: &Self) -> Vec<DatabaseChange> {
        let mut changes = Vec::new();
        for (list, prefixes, note) in self.lists.failures(&before.lists) {
            changes.push(DatabaseChange::ListFailed {
                list,
                prefixes,
                note,
            });
        }
        for (kind, state) in &self.states {
            let (old, prefixes) = (before.states.get(kind), state.count() as u64);
            let is_other = old.is_none_or(|old| old.database != state.database);
            if let Some(summary) = state.summary().filter(|_| is_other) {
                changes.push(DatabaseChange::Updated {
                    kind: *kind,
                    prefixes,
                    summary,
                });
            }
            let known = old.and_then(State::note);
            if let Some(note) = state.note().filter(|note| known.as_ref() != Some(note)) {
                changes.push(DatabaseChange::Failed {
                    kind: *kind,
                    prefixes,
                    note,
                });
            }
        }
        changes
    }
}
