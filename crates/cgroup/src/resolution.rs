//! When the names in matchers were last resolved, and the pending look-up of users.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use host::backoff::Backoff;

use super::links::Links;
use super::matcher::user;

/// The pauses between look-ups of unknown users: at boot, a directory may start after the agent.
pub(super) const USERS: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(60));

/// Users and their IDs.
pub(super) type Found = Vec<(String, u32)>;

/// The last resolution of names.
#[derive(Debug)]
pub struct Resolution {
    /// The symbolic links of programs.
    pub links: Links,
    /// When unknown users are looked up again, and how often they were.
    pub(super) due: Instant,
    pub(super) tries: u32,
    pub(super) pending: Option<Receiver<Found>>,
    /// Looks up a user's ID; tests supply their own.
    pub look_up: fn(&str) -> Option<u32>,
}

impl Resolution {
    /// The same for another config: threads that wait for a file system or a directory are not started again.
    pub(super) fn for_another_config(self) -> Self {
        Self {
            links: self.links.for_another_config(),
            pending: self.pending,
            ..Self::default()
        }
    }
}

impl Default for Resolution {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            links: Links::default(),
            due: now + USERS.pause(1),
            tries: 1,
            pending: None,
            look_up: user,
        }
    }
}
