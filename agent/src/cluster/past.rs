//! What one run of the agent leaves to the next: how many hosts there were, and which shares it applied.
//!
//! Kept in the state directory. It is a hint, never a lease: what it says is applied only as far as `when_store_is_down`
//! would allow as much, and the ledger is told.

use std::collections::BTreeMap;
use std::fs;

use serde::{Deserialize, Serialize};

use crate::state::{StateDirectory, StateError};

const NAME: &str = "cluster";

/// Every limit that many hosts keep together, by its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    limits: BTreeMap<String, PastLimit>,
}

/// One limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastLimit {
    /// The host, and which run of its agent.
    pub host: String,
    /// The share it applied, in billionths; none if it was given back.
    pub share: Option<u64>,
    /// Hosts that the ledger knew of.
    pub hosts: u64,
    /// Which ledger that was; 0 if there was none.
    pub epoch: u64,
}

impl Past {
    /// Reads what the run before has left. A file that cannot be read is none: then no other host was ever seen.
    #[must_use]
    pub fn read(directory: &StateDirectory) -> Self {
        let text = fs::read(directory.file(NAME)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Replaces the file, in one step.
    ///
    /// # Errors
    ///
    /// When it cannot be written; then the one before is there.
    pub fn write(&self, directory: &StateDirectory) -> Result<(), StateError> {
        let fail = |error: serde_json::Error| StateError::Write { path: directory.file(NAME), source: error.into() };
        let text = serde_json::to_vec(self).map_err(fail)?;
        directory.replace(NAME, &[&text])
    }

    /// What is known of a limit.
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<&PastLimit> {
        self.limits.get(name)
    }

    /// The most hosts that were seen with any limit, this one included.
    #[must_use]
    pub fn hosts(&self) -> u64 {
        self.limits.values().map(|limit| limit.hosts).max().unwrap_or(1)
    }
}

impl FromIterator<(String, PastLimit)> for Past {
    fn from_iter<T: IntoIterator<Item = (String, PastLimit)>>(limits: T) -> Self {
        Self { limits: limits.into_iter().collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_damaged_or_missing_knows_of_no_host() {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::at(folder.path());
        assert_eq!(Past::read(&directory), Past::default());
        let limit = PastLimit { host: "one/1".to_owned(), share: Some(5), hosts: 3, epoch: 7 };
        let past = Past::from_iter([("a".to_owned(), limit)]);
        past.write(&directory).unwrap();
        assert_eq!((Past::read(&directory), past.hosts()), (past, 3));
        for text in ["", "{", "[]", "{\"limits\":{\"a\":{\"host\":1}}}"] {
            fs::write(directory.file(NAME), text).unwrap();
            assert_eq!((Past::read(&directory), Past::default().hosts()), (Past::default(), 1), "{text}");
        }
    }
}
