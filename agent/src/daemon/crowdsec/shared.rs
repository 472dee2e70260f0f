//! State that the bouncer's threads share.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use config::PrefixKey;
use config::policy::{CrowdSec, Secret};
use crowdsec::{Alert, Ignored};
use host::StateDirectory;
use host::read::read_secret;

use crate::daemon::events::EventLog;
use crate::daemon::packets::Packets;

/// The bouncer's environment.
pub struct Parts {
    pub packets: Packets,
    pub events: Arc<EventLog>,
    pub directory: StateDirectory,
}

pub(super) struct Shared {
    pub parts: Parts,
    pub state: Mutex<State>,
    /// Wakes both threads.
    pub wake: Condvar,
}

#[derive(Default)]
pub(super) struct State {
    pub settings: Option<Arc<CrowdSec>>,
    /// Counts reloads, so that a thread notices each.
    pub generation: u64,
    pub is_closed: bool,
    /// Whether the thread of decisions has ended, after the last save.
    pub has_ended: bool,
    /// Whether the exceptions have changed since the last save.
    pub has_new_exceptions: bool,
    pub alerts: VecDeque<Alert>,
    pub pulls: Pulls,
    pub sent: Sent,
    /// Notes about the state file.
    pub notes: Vec<String>,
}

/// The state of the decisions thread.
#[derive(Default)]
pub(super) struct Pulls {
    pub decisions: usize,
    pub ignored: Ignored,
    pub pulls: u64,
    pub failures: u64,
    /// Why the last pull failed; `None` if it succeeded.
    pub failure: Option<String>,
    /// Why the kernel does not have all bans.
    pub trouble: Option<String>,
    pub last: Option<Instant>,
    pub last_full: Option<Instant>,
}

/// The state of the alerts thread.
#[derive(Default)]
pub(super) struct Sent {
    pub sent: u64,
    pub dropped: u64,
    pub failure: Option<String>,
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves plain values, each of which is valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `until`, or until something has changed for which `is_due`.
    pub(super) fn wait(
        &self,
        until: Option<Instant>,
        is_due: impl Fn(&State) -> bool,
    ) -> MutexGuard<'_, State> {
        let mut state = self.state();
        loop {
            if state.is_closed || is_due(&state) {
                return state;
            }
            state = match until {
                None => self
                    .wake
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return state;
                    }
                    self.wake
                        .wait_timeout(state, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
    }

    /// Reports that the thread of decisions has ended.
    pub(super) fn closed(&self) {
        self.state().has_ended = true;
        self.wake.notify_all();
    }

    /// The number of prefixes that CrowdSec bans, and the exceptions.
    pub(super) fn counts(&self) -> (u64, Vec<PrefixKey>) {
        self.parts
            .packets
            .load_full()
            .map(|packets| packets.decision_counts())
            .unwrap_or_default()
    }
}

/// Reads a secret.
pub(super) fn reveal(secret: Option<&Secret>) -> Result<String, String> {
    match secret {
        Some(Secret::Text(text)) => Ok(text.reveal().to_owned()),
        Some(Secret::File(path)) => read_secret(path).map_err(|error| error.to_string()),
        None => Err("the config has no api_key and no api_key_file".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_without_an_end_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        // Each has a length of 0.
        for path in [fifo.as_path(), "/dev/zero".as_ref()] {
            let error = reveal(Some(&Secret::File(path.to_owned()))).unwrap_err();
            assert!(error.contains("not a regular file"), "{error}");
        }
    }
}
