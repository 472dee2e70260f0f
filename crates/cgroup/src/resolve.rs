//! Resolves the names in matchers again, as the host changes.

use std::sync::mpsc::{TryRecvError, channel};
use std::time::{Duration, Instant};

use super::error::GroupsError;
use super::groups::Groups;
use super::links::THREAD;
use super::resolution::{Found, USERS};
use super::threads;

const USERS_THREAD: &str = "groups-users";

impl Groups {
    /// Resolves names again where an interval has passed.
    pub(super) fn resolve_again(&mut self) {
        self.follow_links(Duration::ZERO);
        self.take_users();
        if self.resolution.pending.is_none() && Instant::now() >= self.resolution.due {
            self.look_up_users();
        }
    }

    /// Follows the symbolic links of programs, and waits at most `patience` for the results; later ones are processed at a
    /// tick.
    pub(super) fn follow_links(&mut self, patience: Duration) {
        let paths = self.matchers.programs().map(|(_, path)| path.to_owned());
        if let Some(started) = self.resolution.links.begin(paths) {
            self.note_thread(THREAD, started);
        }
        for (path, target) in self.resolution.links.take(patience) {
            self.matchers.lead(&path, target.as_deref());
        }
        let silent = self.resolution.links.silent();
        if silent == self.resolution.links.noted {
            return;
        }
        for (group, path) in self.matchers.programs() {
            let note = GroupsError::Silent(path.to_owned()).to_string();
            let notes = &mut self.members[group].notes;
            if silent.contains(path) {
                notes.insert(note);
            } else {
                notes.remove(&note);
            }
        }
        self.resolution.links.noted = silent;
        self.is_changed = true;
    }

    /// Looks up unknown users on a separate thread: a directory that is not available may reply after a long time.
    pub(super) fn look_up_users(&mut self) {
        let names = self.matchers.unknown_users();
        if names.is_empty() {
            return;
        }
        let (sender, receiver) = channel();
        let look_up = self.resolution.look_up;
        let started = threads::start(USERS_THREAD, move || {
            let found = |name: String| look_up(&name).map(|user| (name, user));
            // Fails if the groups have ended.
            let _ = sender.send(names.into_iter().filter_map(found).collect());
        });
        if started.is_ok() {
            self.resolution.pending = Some(receiver);
        } else {
            self.resolution.due = Instant::now() + USERS.pause(self.resolution.tries);
        }
        self.note_thread(USERS_THREAD, started);
    }

    /// Notes that the host refused a thread, until one of the same name starts.
    pub(super) fn note_thread(&mut self, name: &'static str, started: Result<(), GroupsError>) {
        let text = format!("starting the thread {name} failed");
        for member in &mut self.members {
            let count = member.notes.len();
            member.notes.retain(|note| !note.starts_with(&text));
            self.is_changed |= member.notes.len() != count;
        }
        if let Err(problem) = started {
            self.note(&problem);
        }
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
