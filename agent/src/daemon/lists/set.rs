//! All lists, and what is in effect of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use api::list::{ListStatus, ListsStatus};
use api::request::Excepted;
use api::source::{BanHolder, BanStatus};
use config::human;
use config::policy::{BanList, Config, ListSource, Mode, Prefix};
use config::{PrefixKey, prefix};
use datapath::ListMap;
use datapath::memory;
use host::StateDirectory;
use host::backoff::Backoff;
use http_client::Client;
use lists::{read_exceptions, write_exceptions};
use notify::RecommendedWatcher;

use super::effect::{Choice, Content as Prefixes, InEffect, listed};
use super::one::{One, Outcome};
use super::own::{OwnNetwork, contains};
use super::source::{self, Content, Failure};
use super::watch::{self, Message};
use crate::daemon::events::{Event, EventKind, EventLog};
use crate::daemon::packets::Packets;
use crate::geo::{ClassLists, Databases};

/// The pause before lists are put in effect again for which there was no room.
const AGAIN: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(300));

/// The ban lists of an agent.
pub struct BanLists {
    state: StateDirectory,
    packets: Packets,
    events: Arc<EventLog>,
    wake: Sender<Message>,
    client: OnceLock<Client>,
    /// Locked by whoever reads sources and replaces the lists in effect; before `set`.
    work: Mutex<()>,
    set: Mutex<Set>,
    /// Woken when the content of a class's list has changed.
    pub(crate) of_classes_changed: tokio::sync::Notify,
}

#[derive(Default)]
struct Set {
    /// In the config's order.
    lists: Vec<One>,
    exceptions: BTreeSet<PrefixKey>,
    /// Those of lists of networks and countries.
    databases: Databases,
    in_effect: Option<InEffect>,
    /// Packets that maps before the one in effect refused, by list.
    refused: HashMap<String, u64>,
    /// Why the lists in effect are not those above.
    problem: Option<String>,
    /// The lists of which an earlier content is in effect, or none, and why.
    shortened: BTreeMap<String, String>,
    /// When the lists are put in effect again, and how often this failed in a row.
    again: Option<(Instant, u32)>,
    /// Whether the mode is `observe`.
    is_suspended: bool,
    /// Addresses that no list refuses.
    exempt: Vec<Prefix>,
    /// The files with this host's resolvers.
    resolv_conf: Vec<PathBuf>,
    /// Warnings about lists that refuse addresses that this host needs.
    of_own_network: Vec<String>,
    watcher: Option<(BTreeSet<PathBuf>, RecommendedWatcher)>,
}

impl Set {
    /// The lists that refuse packets.
    fn banning(&self) -> impl Iterator<Item = &One> {
        self.lists.iter().filter(|one| one.list.class().is_none())
    }

    /// Their names and contents.
    fn contents(&self) -> impl Iterator<Item = (&str, &Prefixes)> {
        self.banning()
            .map(|one| (one.list.name.as_str(), &one.prefixes))
    }
}

impl BanLists {
    /// Puts the lists of a config in effect: files, and the last valid copies of URLs. The messages are for the worker.
    pub(super) fn new(
        config: &Config,
        databases: &Databases,
        packets: Packets,
        events: Arc<EventLog>,
    ) -> (Arc<Self>, Receiver<Message>) {
        let (wake, messages) = mpsc::channel();
        let lists = Arc::new(Self {
            state: StateDirectory::at(&config.agent.state_dir),
            packets,
            events,
            wake,
            client: OnceLock::new(),
            work: Mutex::default(),
            set: Mutex::default(),
            of_classes_changed: tokio::sync::Notify::new(),
        });
        match read_exceptions(&lists.state) {
            Ok(exceptions) => lists.set().exceptions = exceptions.into_iter().collect(),
            Err(error) => tracing::error!("exceptions from ban lists are not in effect: {error}"),
        }
        lists.replace(config, databases);
        (lists, messages)
    }

    /// Puts the lists of another config in effect. Lists that stay keep their content until it is read again.
    pub fn replace(&self, config: &Config, databases: &Databases) {
        let _work = self.work();
        {
            let mut set = self.set();
            let mut known: HashMap<String, One> = set
                .lists
                .drain(..)
                .map(|one| (one.list.name.clone(), one))
                .collect();
            set.lists = config
                .ban_lists
                .iter()
                .map(|list| self.one(list, &mut known))
                .collect();
            for one in set
                .lists
                .iter_mut()
                .filter(|one| matches!(one.list.source(), ListSource::Geo(_)))
            {
                one.due = Instant::now();
            }
            set.databases = databases.clone();
            set.is_suspended = config.agent.mode == Mode::Observe;
            set.exempt = config.agent.never_banned().copied().collect();
            set.resolv_conf.clone_from(&config.agent.resolv_conf);
            let names: BTreeSet<&str> = config
                .ban_lists
                .iter()
                .map(|list| list.name.as_str())
                .collect();
            set.refused.retain(|name, _| names.contains(name.as_str()));
        }
        self.watch();
        let read = self.read_due();
        // It is reported, and tried again.
        let _ = self.apply();
        self.report_all(&read);
        // The worker waits for the earliest list.
        let _ = self.wake.send(Message::Replaced);
    }

    fn one(&self, list: &BanList, known: &mut HashMap<String, One>) -> One {
        match known.remove(&list.name) {
            Some(mut one) => {
                one.redefine(list.clone());
                one
            }
            None => One::new(list.clone(), &self.state),
        }
    }

    /// The time at which a list is to be read, or all are put in effect again.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let set = self.set();
        let read = set.lists.iter().filter(|one| !one.is_fetching);
        let again = set.again.map(|(at, _)| at);
        read.map(|one| one.due).chain(again).min()
    }

    /// Reads all lists that are due, and puts them in effect.
    pub(super) fn refresh(&self) {
        let _work = self.work();
        let read = self.read_due();
        self.put_in_effect(&read);
    }

    /// Reads all files again that have changed.
    pub(super) fn files_changed(&self) {
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
    pub(super) fn fetched(&self, list: &BanList, content: Result<Content, Failure>) {
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
    fn read_due(&self) -> Vec<(One, Outcome)> {
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
                        let content = source::fetch(&client, &url, known.as_ref());
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

    fn report_all(&self, read: &[(One, Outcome)]) {
        for (one, outcome) in read {
            self.report(one, outcome);
            if *outcome == Outcome::Updated && one.list.class().is_some() {
                self.of_classes_changed.notify_one();
            }
        }
    }

    /// The present contents of the lists of a config's classes. One that is new here is read.
    #[must_use]
    pub fn of_classes(&self, config: &Config) -> ClassLists {
        let known = |list: &BanList| {
            let set = self.set();
            let known = set.lists.iter().find(|one| one.list == *list)?;
            Some(Arc::clone(&known.prefixes))
        };
        ClassLists::of(config, |list| {
            known(list).unwrap_or_else(|| One::at_start(list, &self.state).0)
        })
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

    /// Puts the content of all lists in effect, as a whole. A failure is reported, and the worker tries again.
    fn apply(&self) -> Result<(), String> {
        let result = self.try_to_apply();
        memory::trim_soon();
        let mut set = self.set();
        let (problem, shortened) = match &result {
            Ok(shortened) => (None, shortened.clone()),
            Err(problem) => (Some(problem.clone()), BTreeMap::new()),
        };
        let failures = set.again.map_or(1, |(_, failures)| failures + 1);
        set.again = (problem.is_some() || !shortened.is_empty())
            .then(|| (Instant::now() + AGAIN.pause(failures), failures));
        let report = |source: String, problem: &str| {
            tracing::error!("{problem}");
            self.events.push(Event {
                source: Some(source),
                ..Event::now(EventKind::ListFailed, 0, problem.to_owned())
            });
        };
        // The texts have figures of the moment.
        if let Some(problem) = problem.as_ref().filter(|_| set.problem.is_none()) {
            report("lists".to_owned(), problem);
        }
        for (name, problem) in &shortened {
            if !set.shortened.contains_key(name) {
                report(
                    format!("list {name}"),
                    &format!("ban list {name:?}: {problem}"),
                );
            }
        }
        (set.problem, set.shortened) = (problem, shortened);
        if set.again.is_some() {
            // The worker may wait for a later instant.
            let _ = self.wake.send(Message::Replaced);
        }
        drop(set);
        self.check_own_network();
        result.map(drop)
    }

    /// Looks again for lists that refuse addresses that this host needs.
    pub fn check_own_network(&self) {
        if self.set().banning().next().is_none() {
            self.set().of_own_network.clear();
            return;
        }
        let files = self.set().resolv_conf.clone();
        let own = OwnNetwork::of_host(&files);
        let mut set = self.set();
        let warning =
            |one: &One| own.warning(&one.list.name, &one.prefixes, &set.exempt, &set.exceptions);
        let warnings: Vec<String> = set.banning().filter_map(warning).collect();
        for warning in &warnings {
            if !set.of_own_network.contains(warning) {
                tracing::warn!("{warning}");
            }
        }
        set.of_own_network = warnings;
    }

    /// Returns the lists for whose content there is no room, and why.
    fn try_to_apply(&self) -> Result<BTreeMap<String, String>, String> {
        let fail = |why: String| {
            format!("putting ban lists in effect failed: {why}; those before stay in effect")
        };
        let Some(packets) = self.packets.load_full() else {
            return Ok(BTreeMap::new());
        };
        let (mut choice, exceptions, is_first) = {
            let set = self.set();
            let choice = Choice::new(set.contents(), set.in_effect.as_ref());
            let exceptions: Vec<PrefixKey> = set.exceptions.iter().copied().collect();
            (choice, exceptions, set.in_effect.is_none())
        };
        // Those of an earlier agent stay in effect rather than a part of these.
        let keeps_others = is_first && packets.has_lists().unwrap_or(false);
        let mut shortened = BTreeMap::new();
        let next = if choice.is_empty() {
            None
        } else {
            let (trees, why) = choice.trees(&exceptions, keeps_others).map_err(fail)?;
            let reasons = choice.shortened().map(|(name, prefixes, kept)| {
                let prefixes = human::number(prefixes as u64);
                let effect = match kept {
                    0 => "none of them is in effect".to_owned(),
                    kept => format!("its earlier {} stay in effect", human::number(kept as u64)),
                };
                (
                    name.to_owned(),
                    format!("no room for its {prefixes} prefixes: {why}; {effect}"),
                )
            });
            shortened = reasons.collect();
            let map = ListMap::create(&trees).map_err(|error| fail(error.to_string()))?;
            let (names, contents) = choice.into_parts();
            Some(InEffect {
                map,
                names,
                contents,
                exceptions,
            })
        };
        packets
            .put_lists(next.as_ref().map(|next| &next.map))
            .map_err(|error| fail(error.to_string()))?;
        let mut set = self.set();
        // No packet uses it any more.
        if let Some(before) = std::mem::replace(&mut set.in_effect, next) {
            for (name, refused) in before.names.into_iter().zip(before.map.refused()) {
                if set.lists.iter().any(|one| one.list.name == name) {
                    *set.refused.entry(name).or_default() += refused;
                }
            }
        }
        Ok(shortened)
    }

    /// Watches the folders of files.
    fn watch(&self) {
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

    /// The first list that contains an address, unless it is excepted or lists are suspended.
    #[must_use]
    pub fn ban_of(&self, address: IpAddr) -> Option<BanStatus> {
        let set = self.set();
        let whole = PrefixKey {
            address: prefix::mapped(address),
            length: 128,
        };
        if set.is_suspended {
            return None;
        }
        let (name, listed) = match &set.in_effect {
            Some(effect) => listed(effect.lists(), &effect.exceptions, &whole)?,
            // Those of an earlier agent may still be in effect.
            None => listed(set.contents(), &set.exceptions, &whole)?,
        };
        let origin = format!("list:{name}");
        let holder = BanHolder {
            owner: origin.clone(),
            origin,
            since: Some(u64::from(listed.since)),
            ..BanHolder::default()
        };
        Some(holder.of(listed.prefix().to_string()))
    }

    /// Excepts those of the prefixes that a list contains, for good.
    ///
    /// # Errors
    ///
    /// When the state directory cannot be written; then nothing is excepted. When the lists cannot be put in effect
    /// without them; the exceptions are saved, and this is tried again.
    pub fn except(&self, prefixes: &[PrefixKey]) -> Result<Vec<Excepted>, String> {
        let _work = self.work();
        let mut excepted = Vec::new();
        {
            let mut set = self.set();
            let mut exceptions = set.exceptions.clone();
            for prefix in prefixes {
                let is_around = |exception: &PrefixKey| contains(exception, prefix);
                let effect = set.in_effect.as_ref();
                // One that could not be put in effect is tried again.
                if exceptions.iter().any(is_around)
                    && effect.is_none_or(|effect| effect.exceptions.iter().any(is_around))
                {
                    continue;
                }
                let in_effect = effect.into_iter().flat_map(InEffect::lists);
                if let Some((list, _)) = listed(set.contents().chain(in_effect), [], prefix) {
                    excepted.push(Excepted {
                        cidr: prefix.to_string(),
                        list: list.to_owned(),
                    });
                    exceptions.insert(*prefix);
                }
            }
            if excepted.is_empty() {
                return Ok(excepted);
            }
            write_exceptions(&self.state, &exceptions).map_err(|error| error.to_string())?;
            set.exceptions = exceptions;
        }
        for Excepted { cidr, list } in &excepted {
            tracing::info!("{cidr} excepted from ban list {list:?} by an operator");
        }
        self.apply().map_err(|problem| {
            format!("exceptions from ban lists are saved, and not in effect: {problem}")
        })?;
        Ok(excepted)
    }

    /// Ends the exceptions of exactly these prefixes, since an operator bans them.
    pub fn end_exceptions(&self, prefixes: impl Iterator<Item = PrefixKey>) {
        let prefixes: Vec<PrefixKey> = prefixes.collect();
        let is_excepted = |set: &Set| {
            prefixes
                .iter()
                .any(|prefix| set.exceptions.contains(prefix))
        };
        if !is_excepted(&self.set()) {
            return;
        }
        let _work = self.work();
        let mut exceptions = self.set().exceptions.clone();
        exceptions.retain(|exception| !prefixes.contains(exception));
        match write_exceptions(&self.state, &exceptions) {
            Ok(()) => {
                self.set().exceptions = exceptions;
                // The ban itself is in effect.
                let _ = self.apply();
            }
            // The ban itself is in effect.
            Err(error) => tracing::error!("ending exceptions from ban lists failed: {error}"),
        }
    }

    /// The part of `agent status`.
    #[must_use]
    pub fn status(&self) -> ListsStatus {
        let has_packets = self.packets.load().is_some();
        let set = self.set();
        let mut refused = set.refused.clone();
        let mut in_effect = HashMap::new();
        if let Some(effect) = &set.in_effect {
            for ((name, content), packets) in effect.lists().zip(effect.map.refused()) {
                *refused.entry(name.to_owned()).or_default() += packets;
                in_effect.insert(name, content.len() as u64);
            }
        }
        let status = |one: &One| {
            let name = one.list.name.as_str();
            let is_enforced = has_packets && one.list.class().is_none();
            let prefixes = match in_effect.get(name) {
                Some(prefixes) => *prefixes,
                None if is_enforced => 0,
                None => one.prefixes.len() as u64,
            };
            let status = one.status(prefixes, refused.get(name).copied().unwrap_or(0));
            let of_all = set.problem.as_ref().filter(|_| one.list.class().is_none());
            ListStatus {
                problem: status
                    .problem
                    .clone()
                    .or_else(|| set.shortened.get(name).or(of_all).cloned()),
                ..status
            }
        };
        ListsStatus {
            lists: set.lists.iter().map(status).collect(),
            exceptions: set.exceptions.iter().map(ToString::to_string).collect(),
            memory_bytes: set
                .in_effect
                .as_ref()
                .map_or(0, |in_effect| in_effect.map.bytes()),
        }
    }

    /// Notes for the operator.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let set = self.set();
        let problem = |one: &One| {
            let kept = human::number(one.prefixes.len() as u64);
            let problem = one.problem.as_ref()?;
            Some(format!(
                "ban list {:?}: {problem}; its {kept} prefixes stay in effect",
                one.list.name
            ))
        };
        let note = |one: &One| {
            Some(format!(
                "ban list {:?}: {}",
                one.list.name,
                one.note.as_ref()?
            ))
        };
        let suspended = (set.is_suspended && set.banning().next().is_some())
            .then(|| "ban lists are suspended in observe mode".to_owned());
        let of_lists = set
            .lists
            .iter()
            .flat_map(|one| problem(one).into_iter().chain(note(one)));
        let shortened = set
            .shortened
            .iter()
            .map(|(name, problem)| format!("ban list {name:?}: {problem}"));
        set.problem
            .iter()
            .cloned()
            .chain(shortened)
            .chain(suspended)
            .chain(of_lists)
            .chain(set.of_own_network.iter().cloned())
            .collect()
    }

    fn work(&self) -> MutexGuard<'_, ()> {
        // After a panic elsewhere, the next reading replaces everything.
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self) -> MutexGuard<'_, Set> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
