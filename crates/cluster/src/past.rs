//! The state that one run of the agent saves for the next: the number of hosts, and the shares that it enforced.
//!
//! The file in the state directory is a hint, not a lease: a saved share is enforced only as far as
//! `when_store_is_down` allows, and reported to the ledger.

use std::collections::BTreeMap;

use host::{StateDirectory, StateError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

const NAME: &str = "cluster";
/// The largest file that is read.
const LARGEST: u64 = 16 << 20;
/// The file with the hosts that exchange keys.
const EXCHANGE: &str = "exchange";

/// The saved state of all shared limits, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    limits: BTreeMap<String, PastLimit>,
    /// The number of hosts that exchange keys, from a separate file.
    #[serde(skip)]
    exchanging: u64,
}

/// Hosts that exchange keys.
#[derive(Default, Serialize, Deserialize)]
struct Exchanging {
    hosts: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastLimit {
    /// The name of the host and of this run of its agent.
    pub host: String,
    /// The share that it enforced, in billionths; none if it was returned.
    pub share: Option<u64>,
    /// The most hosts in the ledger lately.
    pub hosts: u64,
    /// The ledger's epoch; 0 if there was none.
    pub epoch: u64,
}

impl Past {
    /// Reads the state of the run before. A damaged file is renamed, and counts as missing.
    #[must_use]
    pub fn read(directory: &StateDirectory) -> Self {
        let past: Self = read(directory, NAME);
        let Exchanging { hosts } = read(directory, EXCHANGE);
        Self {
            exchanging: hosts,
            ..past
        }
    }

    /// Replaces the file atomically.
    ///
    /// # Errors
    ///
    /// When it cannot be written; the previous file stays.
    pub fn write(&self, directory: &StateDirectory) -> Result<(), StateError> {
        replace(directory, NAME, self)
    }

    /// Replaces the number of hosts that exchange keys, atomically.
    ///
    /// # Errors
    ///
    /// When it cannot be written; the previous file stays.
    pub fn write_exchanging(directory: &StateDirectory, hosts: u64) -> Result<(), StateError> {
        replace(directory, EXCHANGE, &Exchanging { hosts })
    }

    #[must_use]
    pub fn limit(&self, name: &str) -> Option<&PastLimit> {
        self.limits.get(name)
    }

    /// The most hosts of any limit, this one included.
    #[must_use]
    pub fn hosts(&self) -> u64 {
        self.limits
            .values()
            .map(|limit| limit.hosts)
            .chain([1, self.exchanging])
            .max()
            .unwrap_or(1)
    }
}

fn read<T: Default + DeserializeOwned>(directory: &StateDirectory, name: &str) -> T {
    let read = directory.read(name, LARGEST, |text| serde_json::from_slice(text));
    let past = read.unwrap_or_else(|damaged| {
        tracing::warn!("cluster: {damaged}; this host starts without its former shares");
        None
    });
    past.unwrap_or_default()
}

fn replace(
    directory: &StateDirectory,
    name: &str,
    value: &impl Serialize,
) -> Result<(), StateError> {
    let fail = |error: serde_json::Error| StateError::Write {
        path: directory.file(name),
        source: error.into(),
    };
    directory.replace(name, &[&serde_json::to_vec(value).map_err(fail)?])
}

impl FromIterator<(String, PastLimit)> for Past {
    fn from_iter<T: IntoIterator<Item = (String, PastLimit)>>(limits: T) -> Self {
        Self {
            limits: limits.into_iter().collect(),
            exchanging: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_damaged_or_missing_file_has_no_hosts() {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::at(folder.path());
        assert_eq!(Past::read(&directory), Past::default());
        let limit = PastLimit {
            host: "one/1".to_owned(),
            share: Some(5),
            hosts: 3,
            epoch: 7,
        };
        let past = Past::from_iter([("a".to_owned(), limit)]);
        past.write(&directory).unwrap();
        assert_eq!((Past::read(&directory), past.hosts()), (past, 3));
        for text in ["", "{", "[]", "{\"limits\":{\"a\":{\"host\":1}}}"] {
            fs::write(directory.file(NAME), text).unwrap();
            assert_eq!(
                (Past::read(&directory), Past::default().hosts()),
                (Past::default(), 1),
                "{text}"
            );
        }
        Past::write_exchanging(&directory, 5).unwrap();
        assert_eq!(Past::read(&directory).hosts(), 5);
        for text in ["", "{", "[]", "{\"hosts\":-1}"] {
            fs::write(directory.file(EXCHANGE), text).unwrap();
            assert_eq!(Past::read(&directory).hosts(), 1, "{text}");
        }
    }
}
