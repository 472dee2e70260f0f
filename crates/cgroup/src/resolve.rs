//! Resolves the names in matchers again, as the host changes.

use std::sync::mpsc::{TryRecvError, channel};
use std::time::{Duration, Instant};

use super::error::GroupsError;
use super::groups::Groups;
use super::resolution::{Found, USERS};

/// The interval at which symbolic links are followed again.
const LINKS: Duration = Duration::from_secs(5);

impl Groups {
    /// Resolves names again where an interval has passed.
    pub(super) fn resolve_again(&mut self) {
        if self.resolution.followed.elapsed() >= LINKS {
            self.matchers.follow_links();
            self.resolution.followed = Instant::now();
        }
        self.take_users();
        if self.resolution.pending.is_none() && Instant::now() >= self.resolution.due {
            self.look_up_users();
        }
    }

    /// Looks up unknown users on a separate thread: a directory that is not available may reply after a long time.
    pub(super) fn look_up_users(&mut self) {
        let names = self.matchers.unknown_users();
        if names.is_empty() {
            return;
        }
        let (sender, receiver) = channel();
        let look_up = self.resolution.look_up;
        std::thread::spawn(move || {
            let found = |name: String| look_up(&name).map(|user| (name, user));
            // Fails if the groups have ended.
            let _ = sender.send(names.into_iter().filter_map(found).collect());
        });
        self.resolution.pending = Some(receiver);
    }

    /// Matches by users that were found. Returns whether a look-up is pending.
    pub(super) fn take_users(&mut self) -> bool {
        let Some(pending) = &self.resolution.pending else {
            return false;
        };
        let found = match pending.try_recv() {
            Ok(found) => found,
            Err(TryRecvError::Empty) => return true,
            Err(TryRecvError::Disconnected) => Found::new(),
        };
        let resolution = &mut self.resolution;
        resolution.pending = None;
        resolution.tries = resolution.tries.saturating_add(1);
        resolution.due = Instant::now() + USERS.pause(resolution.tries);
        for (name, user) in found {
            for group in self.matchers.know_user(&name, user) {
                let note = GroupsError::User(name.clone()).to_string();
                self.members[group].notes.remove(&note);
                self.is_changed = true;
                self.make_own_if_needed(group);
            }
        }
        false
    }
}
