//! The file of decisions and exceptions in the state directory.

use std::fs::File;
use std::io::Read as _;

use config::{PrefixKey, prefix};
use crowdsec::SavedDecision;
use host::{Moment, StateDirectory, StateError, set_aside};
use serde::{Deserialize, Serialize};

const NAME: &str = "crowdsec";
/// The largest file that is read: some 120 bytes a decision.
const LARGEST: u64 = 256 << 20;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SavedBouncer {
    /// The instant of the save.
    pub at: Moment,
    pub decisions: Vec<SavedDecision>,
    /// The prefixes to which bans by CrowdSec do not apply.
    pub exceptions: Vec<String>,
}

impl SavedBouncer {
    /// Reads the file. A damaged one is set aside, and the reason returned.
    pub(super) fn read(directory: &StateDirectory) -> (Option<Self>, Option<String>) {
        let path = directory.file(NAME);
        let Ok(file) = File::open(&path) else {
            return (None, None);
        };
        let mut text = Vec::new();
        let result = file
            .take(LARGEST)
            .read_to_end(&mut text)
            .map_err(|error| error.to_string());
        match result.and_then(|_| serde_json::from_slice(&text).map_err(|error| error.to_string()))
        {
            Ok(saved) => (Some(saved), None),
            Err(error) => {
                // If it cannot be renamed, the next save replaces it.
                let aside = set_aside(&path);
                let path = path.display();
                let note = format!(
                    "{path} cannot be used: {error}; {aside}, and exceptions from CrowdSec's bans start over"
                );
                (None, Some(note))
            }
        }
    }

    pub(super) fn write(&self, directory: &StateDirectory) -> Result<(), StateError> {
        let text = serde_json::to_vec(self).unwrap_or_default();
        directory.replace(NAME, &[&text])
    }

    /// The time since the save, in nanoseconds.
    pub(super) fn ago(&self, now: &Moment) -> u64 {
        if self.at.boot == now.boot {
            return now.monotonic.saturating_sub(self.at.monotonic);
        }
        now.wall.saturating_sub(self.at.wall)
    }

    pub(super) fn exceptions(&self) -> Vec<PrefixKey> {
        self.exceptions
            .iter()
            .filter_map(|text| Some(PrefixKey::from(&prefix::parse(text).ok()?)))
            .collect()
    }
}
