//! Lists the containers of the host, by the container runtimes.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use host::backoff::Backoff;

use super::groups::Groups;
use super::place::Kind as PlaceKind;
use super::{containers, threads};

/// The interval at which containers are listed again, because of renames: Podman's service may start for each request.
const LIST: Duration = Duration::from_secs(60);
const LIST_THREAD: &str = "groups-containers";
/// The pauses before a container that no runtime lists is requested again; at least five times what listing takes.
const UNKNOWN: Backoff = Backoff::new(Duration::from_millis(200), LIST);
/// How long a new container waits for the reply. A later reply is processed at a tick.
const REPLY: Duration = Duration::from_millis(100);

impl Groups {
    /// Requests the container runtimes' lists if a group needs them, and waits at most `patience`: the reply of a
    /// runtime that has to start is processed at a later tick.
    pub(super) fn list_containers(&mut self, patience: Duration) {
        if !self.matchers.has_containers() {
            return;
        }
        if self.listing.is_none() {
            let (sender, receiver) = channel();
            let sockets = self.host.containers.clone();
            let started = threads::start(LIST_THREAD, move || {
                // Fails if the groups have ended.
                let _ = sender.send(containers::list(&sockets));
            });
            // The containers that are known stay; their list is requested again at a tick.
            self.listing = started.is_ok().then(|| (Instant::now(), receiver));
            self.note_thread(LIST_THREAD, started);
        }
        self.take_list(patience);
    }

    /// Processes the reply of the container runtimes, if it has arrived. Returns whether it has.
    fn take_list(&mut self, patience: Duration) -> bool {
        let Some((start, listing)) = &self.listing else {
            return false;
        };
        let (known, problems) = match listing.recv_timeout(patience) {
            Ok(listed) => listed,
            Err(RecvTimeoutError::Timeout) => return false,
            Err(RecvTimeoutError::Disconnected) => Default::default(),
        };
        self.listed = Some((Instant::now(), start.elapsed()));
        self.listing = None;
        for (nth, member) in self.members.iter_mut().enumerate() {
            member
                .notes
                .retain(|note| !note.starts_with("listing the containers"));
            if self.matchers.is_of_containers(nth) {
                member.notes.extend(problems.iter().cloned());
            }
        }
        self.is_changed |= !problems.is_empty() || known != self.known;
        self.asked.retain(|id, _| !known.contains_key(id));
        self.known = known;
        true
    }

    /// Lists containers again if the interval has passed, and limits new ones.
    pub(super) fn list_containers_at_tick(&mut self) {
        if self.take_list(Duration::ZERO) {
            self.walk();
        } else if self.listing.is_none() && self.listed.is_none_or(|(at, _)| at.elapsed() >= LIST) {
            self.list_containers(Duration::ZERO);
        }
    }

    /// Lists containers again for a process in an unknown one. The pauses grow for a container that no runtime lists.
    pub(super) fn list_containers_for(&mut self, path: &str) {
        let PlaceKind::Container(id) = self.place_of(path).kind else {
            return;
        };
        let Some((_, took)) = self.listed else { return };
        if self.known.contains_key(&id) || self.listing.is_some() {
            return;
        }
        let (due, requests) = self.asked.get(&id).copied().unwrap_or((Instant::now(), 0));
        if Instant::now() >= due {
            let requests = requests.saturating_add(1);
            let pause = UNKNOWN.pause(requests).max(took * 5);
            self.asked.insert(id, (Instant::now() + pause, requests));
            self.list_containers(REPLY);
        }
    }
}
