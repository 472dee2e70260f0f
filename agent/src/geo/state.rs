//! One database and its file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::geo::GeoStatus;
use config::policy::{GeoKey, GeoKind};
use geo::Database;

use crate::files::{self, Fingerprint};

/// The most bytes of a file.
const MOST_BYTES: u64 = 256 << 20;

/// A database, as it was last read.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub kind: GeoKind,
    pub path: PathBuf,
    /// The keys that were requested.
    pub wanted: BTreeSet<GeoKey>,
    /// Whether all networks were requested, for keys.
    pub wants_networks: bool,
    /// The last valid content.
    pub database: Option<Arc<Database>>,
    /// Why the file's present content is not in use.
    pub problem: Option<String>,
    /// Of the content that was last read, valid or not.
    pub fingerprint: Option<Fingerprint>,
}

impl State {
    /// Reads a file, unless it is as it was. If it cannot be used, the content of `before` stays.
    pub fn read(
        kind: GeoKind,
        path: &Path,
        (wanted, wants_networks): (BTreeSet<GeoKey>, bool),
        before: Option<&Self>,
    ) -> Self {
        let before = before.filter(|before| before.path == path);
        let is_known = |before: &&Self| {
            let has_networks = before.wants_networks || !wants_networks;
            before.problem.is_none() && has_networks && wanted.is_subset(&before.wanted)
        };
        let known = before
            .filter(is_known)
            .and_then(|before| before.fingerprint);
        let read = files::read(path, known, MOST_BYTES);
        // A file that is too large is not read again until it changes.
        let fingerprint = read
            .as_ref()
            .map_or_else(|_| files::fingerprint(path), |(_, found)| Some(*found));
        let database = match read {
            Ok((None, _)) => Ok(before.and_then(|before| before.database.clone())),
            Ok((Some(bytes), _)) => Database::read(&bytes, kind, &wanted, wants_networks)
                .map(|database| Some(Arc::new(database)))
                .map_err(|error| format!("{} cannot be used: {error}", path.display())),
            Err(error) => Err(format!(
                "{}; put a database in MaxMind's format there",
                error.without_fix()
            )),
        };
        let (database, problem) = match database {
            Ok(database) => (database, None),
            Err(problem) => (
                before.and_then(|before| before.database.clone()),
                Some(problem),
            ),
        };
        // A file that is touched has the same content, and lists and classes stay as they are.
        let old = before.and_then(|before| before.database.as_ref());
        let database = match (database, old) {
            (Some(new), Some(old)) if new == *old => Some(Arc::clone(old)),
            (new, _) => new,
        };
        Self {
            kind,
            path: path.to_owned(),
            wanted,
            wants_networks,
            database,
            problem,
            fingerprint,
        }
    }

    /// The same file with another content in use, since its own could not be put in effect.
    pub fn not_in_effect(&self, instead: Option<Arc<Database>>, why: &str) -> Self {
        let problem = Some(format!(
            "{} could not be put in effect: {why}",
            self.path.display()
        ));
        Self {
            database: instead,
            problem,
            ..self.clone()
        }
    }

    /// The problem with its consequence.
    pub fn note(&self) -> Option<String> {
        let consequence = if self.lacks_networks() {
            "until it can be read, limits with key = \"asn\" count each address by its prefix, classes have only their \
             sources, and ban lists only their last copy"
        } else if self.lacks_any() {
            "until it can be read, classes and limits have only their sources, and ban lists only their last copy"
        } else {
            "the prefixes in effect stay"
        };
        Some(format!("{}; {consequence}", self.problem()?))
    }

    /// The problem with the key in limits.toml.
    pub fn problem(&self) -> Option<String> {
        Some(format!(
            "[geo] {}: {}",
            self.kind.key(),
            self.problem.as_ref()?
        ))
    }

    /// Whether some key was never read.
    pub fn lacks_any(&self) -> bool {
        self.lacks_networks()
            || self.wanted.iter().any(|key| {
                !self
                    .database
                    .as_ref()
                    .is_some_and(|read| read.prefixes.contains_key(key))
            })
    }

    fn lacks_networks(&self) -> bool {
        self.wants_networks
            && self
                .database
                .as_ref()
                .is_none_or(|read| read.networks.is_none())
    }

    /// Whether some key was never read, and was not requested before either.
    pub fn lacks_more_than(&self, before: Option<&Self>) -> bool {
        let known = before.filter(|before| before.path == self.path);
        let is_new = |key: &&GeoKey| !known.is_some_and(|before| before.wanted.contains(*key));
        let is_read = |key: &GeoKey| {
            self.database
                .as_ref()
                .is_some_and(|read| read.prefixes.contains_key(key))
        };
        let lacks_new_networks =
            self.lacks_networks() && !known.is_some_and(|before| before.wants_networks);
        lacks_new_networks || self.wanted.iter().filter(is_new).any(|key| !is_read(key))
    }

    /// The keys that the database does not contain.
    pub fn missing(&self) -> impl Iterator<Item = GeoKey> + '_ {
        let read = self.database.iter().flat_map(|database| &database.prefixes);
        read.filter(|(key, prefixes)| prefixes.is_empty() && self.wanted.contains(key))
            .map(|(key, _)| *key)
    }

    pub fn missing_note(&self, key: GeoKey) -> String {
        let (name, path) = (self.kind.key(), self.path.display());
        format!("[geo] {name}: {key} is not in {path}: correct or remove it")
    }

    /// A note about networks that cannot be told apart.
    pub fn reserved_note(&self) -> Option<String> {
        let networks = self
            .database
            .as_ref()?
            .networks
            .as_ref()
            .filter(|_| self.wants_networks)?;
        let (count, path) = (
            config::human::number(networks.reserved),
            self.path.display(),
        );
        (networks.reserved > 0).then(|| {
            format!("[geo] asn: {count} prefixes of {path} have reserved AS numbers; key = \"asn\" counts their addresses by prefix")
        })
    }

    /// The number of prefixes of all requested keys, or of all networks.
    pub fn count(&self) -> usize {
        let networks = self
            .database
            .as_ref()
            .and_then(|database| database.networks.as_ref());
        if let Some(networks) = networks.filter(|_| self.wants_networks) {
            return networks.prefixes.len();
        }
        let read = self.database.iter().flat_map(|database| &database.prefixes);
        read.filter(|(key, _)| self.wanted.contains(key))
            .map(|(_, prefixes)| prefixes.len())
            .sum()
    }

    pub fn status(&self) -> GeoStatus {
        GeoStatus {
            database: self.kind.key().to_owned(),
            file: self.path.display().to_string(),
            prefixes: self.count() as u64,
            built: self.database.as_ref().map(|database| database.built),
            problem: self.problem.clone(),
        }
    }

    /// A summary of the content in use.
    pub fn summary(&self) -> Option<String> {
        let database = self.database.as_ref()?;
        let built =
            std::time::UNIX_EPOCH.checked_add(std::time::Duration::from_secs(database.built));
        // A year beyond 9999 cannot be printed.
        let built = built.filter(|_| database.built < 253_402_300_800);
        let built = built.map_or_else(String::new, |time| {
            format!(", built {}", humantime::format_rfc3339_seconds(time))
        });
        Some(format!(
            "{} prefixes from {} ({}{built})",
            config::human::number(self.count() as u64),
            self.path.display(),
            database.database_type
        ))
    }
}
