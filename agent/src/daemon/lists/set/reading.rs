//! Reads the sources of lists, and reports the outcomes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Instant;

use config::human;
use config::policy::{BanList, ListSource};

use super::BanLists;
use crate::daemon::events::{Event, EventKind};
use crate::daemon::lists::one::{One, Outcome};
use crate::daemon::lists::source::{self, Content, Failure};
use crate::daemon::lists::watch::{self, Message};

impl BanLists {
    /// The time at which a list is to be read, or all are put in effect again.
    pub(in crate::daemon::lists) fn next_due(&self) -> Option<Instant> {
        let set = self.set();
        let read = set.lists.iter().filter(|one| !one.is_fetching);
        let again = set.again.map(|(at, _)| at);
        read.map(|one| one.due).chain(again).min()
    }

    /// Reads all lists that are due, and puts them in effect.
    pub(in crate::daemon::lists) fn refresh(&self) {
        let _work = self.work();
        let read = self.read_due();
        self.put_in_effect(&read);
    }

    /// Reads all files again that have changed.
    pub(in crate::daemon::lists) fn files_changed(&self) {
        let _work = self.work();
        for one in &mut self.set().lists {
            if matches!(one.list.source(), ListSource::File(_)) {
                one.due = Instant::now();
            }
        }
        let read = self.read_due();
        self.put_in_effect(&read);
    }

    /// Takes up the result of a request.
    pub(in crate::daemon::lists) fn fetched(
        &self,
        list: &BanList,
        content: Result<Content, Failure>,
    ) {
        let _work = self.work();
        let is_it = |one: &&One| {
            one.is_fetching && one.list.name == list.name && one.list.source() == list.source()
        };
        // It may have been removed or redefined meanwhile.
        let Some(mut one) = self.set().lists.iter().find(is_it).cloned() else {
            return;
        };
        one.is_fetching = false;
        let outcome = one.take_up(content, &self.state);
        self.put(&one);
        self.put_in_effect(&[(one, outcome)]);
    }

    /// Puts the lists in effect if a content changed or there was no room before, and reports the readings.
    fn put_in_effect(&self, read: &[(One, Outcome)]) {
        let is_due = |(at, _): (Instant, u32)| at <= Instant::now();
        let is_due = self.set().again.is_some_and(is_due);
        if is_due || read.iter().any(|(_, outcome)| *outcome == Outcome::Updated) {
            // It is reported, and tried again.
            let _ = self.apply();
        }
        self.report_all(read);
    }

    /// Replaces a list's state by one that was changed without the lock that `status` takes. Under `work`, nobody else
    /// changes it.
    fn put(&self, one: &One) {
        if let Some(before) = self
            .set()
            .lists
            .iter_mut()
            .find(|before| before.list.name == one.list.name)
        {
            before.clone_from(one);
        }
    }

    /// Reads files and begins requests; returns the lists that were read.
    pub(super) fn read_due(&self) -> Vec<(One, Outcome)> {
        let mut read = Vec::new();
        let now = Instant::now();
        let is_due = |one: &&One| one.due <= now && !one.is_fetching;
        let due: Vec<One> = self.set().lists.iter().filter(is_due).cloned().collect();
        for mut one in due {
            match one.list.source() {
                ListSource::File(path) => {
                    let outcome = one.read(&path, &self.state);
                    read.push((one, outcome));
                }
                ListSource::Geo(keys) => {
                    let databases = self.set().databases.clone();
                    let outcome = one.look_up(&keys, &databases, &self.state);
                    read.push((one, outcome));
                }
                ListSource::Url(url) => {
                    let known = one.valid_origin().cloned();
                    let (list, wake) = (one.list.clone(), self.wake.clone());
                    let client = self.client.get_or_init(source::client).clone();
                    let fetch = move || {
                        let work =
                            AssertUnwindSafe(|| source::fetch(&client, &url, known.as_ref()));
                        let content = catch_unwind(work).unwrap_or_else(|_| {
                            Err("the request panicked; the log has the place"
                                .to_owned()
                                .into())
                        });
                        // The agent may have ended.
                        let _ = wake.send(Message::Fetched(Box::new(list), content));
                    };
                    match thread::Builder::new()
                        .name("weir-list".to_owned())
                        .spawn(fetch)
                    {
                        Ok(_) => {
                            one.is_fetching = true;
                            self.put(&one);
                        }
                        Err(error) => {
                            let outcome = one.take_up(
                                Err(format!("starting a thread failed: {error}").into()),
                                &self.state,
                            );
                            read.push((one, outcome));
                        }
                    }
                }
            }
        }
        read.iter().for_each(|(one, _)| self.put(one));
        read
    }

    pub(super) fn report_all(&self, read: &[(One, Outcome)]) {
        for (one, outcome) in read {
            self.report(one, outcome);
            if *outcome == Outcome::Updated && one.list.class().is_some() {
                self.of_classes_changed.notify_one();
            }
        }
    }

    /// Logs the outcome of a reading, and makes an event of it.
    fn report(&self, one: &One, outcome: &Outcome) {
        let (name, prefixes) = (&one.list.name, one.prefixes.len() as u64);
        let kept = human::number(prefixes);
        let (kind, reason) = match (outcome, &one.problem) {
            (Outcome::Updated, _) => (
                EventKind::ListUpdated,
                format!("{kept} prefixes from {}", one.list.source().shown()),
            ),
            (Outcome::Failed, Some(problem)) => (
                EventKind::ListFailed,
                format!("{problem}; its {kept} prefixes stay in effect"),
            ),
            _ => return,
        };
        match kind {
            EventKind::ListUpdated => tracing::info!("ban list {name:?}: {reason}"),
            _ => tracing::warn!("ban list {name:?}: {reason}"),
        }
        one.note
            .iter()
            .for_each(|note| tracing::warn!("ban list {name:?}: {note}"));
        self.events.push(Event {
            source: Some(format!("list {name}")),
            ..Event::now(kind, prefixes, reason)
        });
    }

    /// Watches the folders of files.
    pub(super) fn watch(&self) {
        let mut set = self.set();
        let folders = watch::folders(set.lists.iter().map(|one| one.list.source()));
        if set
            .watcher
            .as_ref()
            .map_or(folders.is_empty(), |(watched, _)| *watched == folders)
        {
            return;
        }
        set.watcher = None;
        if folders.is_empty() {
            return;
        }
        match watch::watch(&folders, self.wake.clone()) {
            Ok(watcher) => set.watcher = Some((folders, watcher)),
            Err(error) => tracing::warn!(
                "watching the files of ban lists failed: {error}; they are read at intervals"
            ),
        }
    }
}
