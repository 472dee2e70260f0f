//! The leads of this host's zone: a task for each limit, with requests to the zone's store and to that of all zones.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::cluster::ZoneStatus;
use api::event::EventKind;
use config::policy::{Cluster, Zone};
use events::EventLog;
use host::clock::boot_nanoseconds;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::claim;
use super::link::{self, Link, Opened};
use super::zone_member::ZoneMember;
use crate::connect::Connection;
use crate::error::StoreError;
use crate::health::{Health, StoreUsers, Turn, store_event};
use crate::ledger::{Claim, ClaimReply};
use crate::member::{LEAVE_TIMEOUT, Terms};
use crate::part::Definition;
use crate::store::{Script, Store};

/// The shortest time between two checks of what is due.
const SHORTEST_WAIT: Duration = Duration::from_millis(10);

/// The leads of all limits; none without zones.
pub(crate) struct Leads {
    /// The name of this run of the agent on this host.
    run: String,
    /// The tasks so far: each claims under a name of its own.
    begun: u64,
    stores: Option<Arc<Stores>>,
    tasks: HashMap<String, Task>,
    users: StoreUsers,
    events: Arc<EventLog>,
}

struct Task {
    terms: Terms,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Task {
    /// Has it end its lead.
    fn end(self) {
        // Fails only if the task has ended already.
        let _ = self.stop.send(());
    }
}

/// The two stores, and how they fare.
struct Stores {
    cluster: Cluster,
    zone: Zone,
    zones_own: Arc<Link>,
    of_all: Arc<Link>,
    script: Script,
    state: Mutex<State>,
    events: Arc<EventLog>,
}

struct State {
    /// Of the store of all zones.
    health: Health,
    /// The limits for which this host leads.
    leads: BTreeSet<String>,
    /// Why a store refuses a limit, by its name: the zone's store, and that of all zones.
    refused: [BTreeMap<String, String>; 2],
}

impl Leads {
    pub(crate) fn new(run: String, users: StoreUsers, events: Arc<EventLog>) -> Self {
        Self {
            run,
            begun: 0,
            stores: None,
            tasks: HashMap::new(),
            users,
            events,
        }
    }

    /// Leads, or would lead, for these limits; those that stay are led further.
    pub(crate) fn replace<'a>(
        &mut self,
        cluster: &Cluster,
        limits: impl Iterator<Item = &'a Definition>,
    ) {
        let limits: Vec<&Definition> = limits.collect();
        let is_same = |stores: &Arc<Stores>| stores.cluster == *cluster;
        if !self.stores.as_ref().is_some_and(is_same) {
            self.tasks.drain().for_each(|(_, task)| task.end());
            self.stores = cluster
                .zone
                .clone()
                .map(|zone| Arc::new(Stores::new(cluster, zone, &self.users, &self.events)));
        }
        let Some(stores) = &self.stores else { return };
        let is_gone = |name: &String| !limits.iter().any(|limit| limit.name == *name);
        let gone = self.tasks.extract_if(|name, _| is_gone(name));
        gone.for_each(|(_, task)| task.end());
        for limit in limits {
            let terms = limit.terms(cluster);
            if self
                .tasks
                .get(&limit.name)
                .is_some_and(|task| task.terms == terms)
            {
                continue;
            }
            let now = boot_nanoseconds();
            self.begun += 1;
            let host = format!("{}.{}", self.run, self.begun);
            let zone = &stores.zone;
            let member = ZoneMember::new(&terms, zone.sync, &zone.name, host, now);
            let (stop, stopped) = oneshot::channel();
            let name = limit.name.clone();
            let lead = LimitLead {
                stores: Arc::clone(stores),
                limit: name.clone(),
                member,
                connection: 0,
                server: None,
            };
            let task = tokio::spawn(lead.run(stopped));
            if let Some(before) = self.tasks.insert(name, Task { terms, stop, task }) {
                before.end();
            }
        }
    }

    /// The zone, and notes for the operator.
    pub(crate) fn status(&self) -> Option<(ZoneStatus, Vec<String>)> {
        let stores = self.stores.as_ref()?;
        let state = stores.state();
        let of_all = state.health.status(&stores.cluster);
        let status = ZoneStatus {
            name: stores.zone.name.clone(),
            store: of_all.store,
            health: of_all.health,
            leads: state.leads.iter().cloned().collect(),
            failures: of_all.failures,
            last_error: of_all.last_error,
        };
        let notes = state.refused.iter().flat_map(BTreeMap::values);
        Some((status, notes.cloned().collect()))
    }

    /// Ends all leads, so that other hosts have them at once.
    pub(crate) async fn stop(&mut self) {
        let tasks: Vec<Task> = self.tasks.drain().map(|(_, task)| task).collect();
        let ended: Vec<JoinHandle<()>> = tasks
            .into_iter()
            .map(|task| {
                let _ = task.stop.send(());
                task.task
            })
            .collect();
        for task in ended {
            let _ = task.await;
        }
    }
}

impl Stores {
    fn new(cluster: &Cluster, zone: Zone, users: &StoreUsers, events: &Arc<EventLog>) -> Self {
        let patience = Terms::patience_for(zone.sync);
        let own_patience = Terms::patience_for(cluster.sync);
        let own = Store::new(cluster.of_zone(), own_patience);
        Self {
            zones_own: Link::new(own, own_patience),
            of_all: Link::new(Store::new(cluster.clone(), patience), patience),
            script: Script::new(claim::SCRIPT),
            state: Mutex::new(State {
                health: Health::new(patience, boot_nanoseconds(), users),
                leads: BTreeSet::new(),
                refused: Default::default(),
            }),
            cluster: cluster.clone(),
            zone,
            events: Arc::clone(events),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records whether this host leads the zone for a limit. Without any lead it uses the store of all zones no longer.
    fn show(&self, limit: &str, leads: bool) {
        let mut state = self.state();
        let had_any = !state.leads.is_empty();
        if leads {
            state.leads.insert(limit.to_owned());
        } else {
            state.leads.remove(limit);
            state.refused[1].remove(limit);
        }
        if had_any == state.leads.is_empty() {
            let patience = Terms::patience_for(self.zone.sync);
            state.health = state.health.renewed(patience, boot_nanoseconds());
        }
    }

    /// Records a reply of the zone's store to a claim, or its error.
    fn claimed(&self, limit: &str, error: Option<&StoreError>) {
        let refused = &mut self.state().refused[0];
        match error.filter(|error| error.is_reply()) {
            Some(error) => {
                let note = format!(
                    "claiming the lead of zone {:?} for limit {limit:?} failed: {error}",
                    self.zone.name
                );
                refused.insert(limit.to_owned(), note);
            }
            None => _ = refused.remove(limit),
        }
    }

    /// Records a reply of the store of all zones to the request of `asked`.
    fn granted(&self, limit: &str, asked: u64) {
        let mut state = self.state();
        let turn = state.health.granted(asked, boot_nanoseconds());
        state.refused[1].remove(limit);
        if let Some(Turn::Up { failures, is_last }) = turn {
            let reason = format!(
                "the store of all zones is available again, after {failures} failed requests"
            );
            tracing::info!("cluster: {reason}");
            if is_last {
                self.event(EventKind::StoreUp, failures, reason);
            }
        }
    }

    /// Records a failed request to the store of all zones.
    fn failed(&self, limit: &str, error: &StoreError) {
        let mut state = self.state();
        let turn = state.health.failed(error, boot_nanoseconds());
        if error.is_reply() {
            let note = format!(
                "leasing zone {:?}'s share of limit {limit:?} failed: {error}",
                self.zone.name
            );
            state.refused[1].insert(limit.to_owned(), note);
        }
        if let Some(Turn::Down { is_first }) = turn {
            let when = self.cluster.when_store_is_down;
            let reason = format!(
                "leasing from the store of all zones failed: {error}; when the zone's leases expire, \
                 when_store_is_down = \"{when}\" takes effect for zone {:?}",
                self.zone.name
            );
            tracing::error!("cluster: {reason}");
            if is_first {
                self.event(EventKind::StoreDown, state.health.failures(), reason);
            }
        }
    }

    fn event(&self, what: EventKind, count: u64, reason: String) {
        self.events
            .push(store_event(&self.cluster, what, count, reason));
    }
}

/// The lead for one limit.
struct LimitLead {
    stores: Arc<Stores>,
    limit: String,
    member: ZoneMember,
    /// The number of the last connection to all zones, and its server.
    connection: u64,
    server: Option<Arc<str>>,
}

impl LimitLead {
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        loop {
            tokio::select! {
                biased;
                _ = &mut stopped => break,
                () = self.go_on() => {}
            }
        }
        self.show(false);
        if let Opened::Open(connection, number) = self.stores.zones_own.open() {
            let claim = self.member.leave();
            // Otherwise the lead ends by itself.
            let left = self.send((connection, number), &claim);
            let _ = tokio::time::timeout(LEAVE_TIMEOUT, left).await;
        }
    }

    /// Does what is due, or waits for it.
    async fn go_on(&mut self) {
        let now = boot_nanoseconds();
        let has_sent = if self.member.claims(now) {
            self.claim().await
        } else if self.member.is_due(now) {
            self.lease().await
        } else {
            let wait = Duration::from_nanos(self.member.next(now).saturating_sub(now));
            tokio::time::sleep(wait.clamp(SHORTEST_WAIT, self.stores.zone.sync)).await;
            true
        };
        if !has_sent {
            tokio::time::sleep(link::PAUSE).await;
        }
    }

    /// Claims the lead, or goes on with it; returns whether it has sent anything.
    async fn claim(&mut self) -> bool {
        let (connection, number) = match self.stores.zones_own.open() {
            Opened::Open(connection, number) => (connection, number),
            Opened::NotYet | Opened::Failed(_) => {
                self.show(self.member.leads(boot_nanoseconds()));
                return false;
            }
        };
        let now = boot_nanoseconds();
        let claim = self.member.claim(now);
        if let Ok(reply) = self.send((connection, number), &claim).await {
            self.member.claimed(now, &reply, boot_nanoseconds());
        }
        self.show(self.member.leads(boot_nanoseconds()));
        true
    }

    fn show(&self, leads: bool) {
        self.stores.show(&self.limit, leads);
    }

    async fn send(
        &self,
        (mut connection, number): (Connection, u64),
        claim: &Claim,
    ) -> Result<ClaimReply, StoreError> {
        let link = &self.stores.zones_own;
        let request = (&link.store, &self.stores.script);
        let reply = claim::send(request, &mut connection, &self.limit, claim).await;
        match &reply {
            Ok(_) => link.replied(),
            Err(error) => link.failed(number, error),
        }
        self.stores.claimed(&self.limit, reply.as_ref().err());
        reply
    }

    /// Requests the zone's share; returns whether it has sent anything.
    async fn lease(&mut self) -> bool {
        let stores = Arc::clone(&self.stores);
        let link = &stores.of_all;
        let (mut connection, number) = match link.open() {
            Opened::Open(connection, number) => (connection, number),
            Opened::NotYet => return false,
            Opened::Failed(error) => {
                self.failed(&error);
                return false;
            }
        };
        if number != self.connection {
            let server = connection.server().cloned();
            if server.is_none() || server != self.server {
                self.member.reconnected();
            }
            (self.connection, self.server) = (number, server);
        }
        let now = boot_nanoseconds();
        let Some(report) = self.member.report(now) else {
            return false;
        };
        match link
            .store
            .lease(&mut connection, &self.limit, &report)
            .await
        {
            Ok(grant) => {
                link.replied();
                if let Some(grant) = grant {
                    self.member.granted(now, &grant, boot_nanoseconds());
                    stores.granted(&self.limit, now);
                }
            }
            Err(error) => {
                link.failed(number, &error);
                self.failed(&error);
            }
        }
        true
    }

    fn failed(&mut self, error: &StoreError) {
        let next = boot_nanoseconds() + self.stores.zone.sync.as_nanos() as u64;
        self.member.failed(next);
        self.stores.failed(&self.limit, error);
    }
}
