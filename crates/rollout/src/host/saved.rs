//! The state of a host that restarts and reboots keep.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Stop;
use crate::canary::Share;
use crate::key::KeyId;

/// Verified rules, with their texts: a start needs no store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    pub version: u64,
    /// The digest of the release.
    pub digest: String,
    pub key: KeyId,
    /// The texts of its objects, by name.
    pub texts: BTreeMap<String, String>,
    /// The shares that its limits are predicted to refuse, by name.
    #[serde(default)]
    pub predicted: BTreeMap<String, Share>,
}

/// The highest version that a host has accepted. Older ones are replays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seen {
    pub version: u64,
    pub digest: String,
    /// Whether the host is a canary of it, so that its report counts also while it reads the release again.
    pub is_canary: bool,
    /// Whether another document of the version was read.
    pub is_in_conflict: bool,
    /// How often the host has begun with it.
    pub attempts: u32,
    /// Why it is not in effect, and not begun again.
    pub stopped: Option<Stop>,
}

/// A host's state on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    pub(super) seen: Option<Seen>,
    /// Confirmed rules.
    pub(super) good: Option<Rules>,
    /// The confirmed rules before them, for an abort.
    pub(super) before: Option<Rules>,
    /// Whether a trial of the highest version was running.
    pub(super) is_trying: bool,
}

impl Saved {
    /// The rules for a start: the last confirmed ones. A trial does not survive the agent.
    #[must_use]
    pub const fn confirmed(&self) -> Option<&Rules> {
        self.good.as_ref()
    }

    /// The highest version that the host has accepted; 0 for none.
    #[must_use]
    pub fn highest(&self) -> u64 {
        self.seen.as_ref().map_or(0, |seen| seen.version)
    }

    /// Whether the host may begin with the highest version.
    pub(super) fn is_open(&self) -> bool {
        let is_confirmed = self.good.as_ref().map(|good| good.version) == Some(self.highest());
        let seen = self.seen.as_ref();
        seen.is_some_and(|seen| seen.stopped.is_none()) && !is_confirmed
    }

    /// The rules on trial are confirmed.
    pub(super) fn keep(&mut self, rules: Rules) {
        self.before = self.good.replace(rules);
        self.is_trying = false;
    }

    pub(super) fn stop(&mut self, reason: Stop) {
        self.is_trying = false;
        if let Some(seen) = &mut self.seen {
            seen.stopped = Some(reason);
        }
    }
}
