//! All lists, and what is in effect of them.

mod apply;
mod exceptions;
mod reading;
mod status;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use config::PrefixKey;
use config::policy::{BanList, Config, ListSource, Mode, Prefix};
use host::StateDirectory;
use http_client::Client;
use lists::read_exceptions;
use notify::RecommendedWatcher;

use super::effect::{Content as Prefixes, InEffect};
use super::one::One;
use super::watch::Message;
use crate::daemon::events::EventLog;
use crate::daemon::packets::Packets;
use crate::geo::{ClassLists, Databases};

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

    fn work(&self) -> MutexGuard<'_, ()> {
        // After a panic elsewhere, the next reading replaces everything.
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self) -> MutexGuard<'_, Set> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
