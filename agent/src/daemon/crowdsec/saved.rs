//! The file of decisions and exceptions in the state directory.

use config::{PrefixKey, prefix};
use crowdsec::SavedDecision;
use host::{Moment, StateDirectory, StateError};
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
    /// Reads the file; `None` if it is missing or damaged, with a note for the operator.
    pub(super) fn read(directory: &StateDirectory) -> (Option<Self>, Option<String>) {
        match directory.read(NAME, LARGEST, |text| serde_json::from_slice(text)) {
            Ok(saved) => (saved, None),
            Err(damaged) => {
                let note = format!("{damaged}; exceptions from CrowdSec's bans start over");
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
