//! The agent as the control socket sees it: what holds packets, if anything does, what answers applications, and what
//! keeps groups of processes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use ipnet::IpNet;
use thiserror::Error;

use crate::cluster::{self, Past};
use crate::compile::{Layout, Plan, PrefixKey};
use crate::config::policy::Config;
use crate::config::prefix;
use crate::control::{BanOrder, Handler, Request, Reset};
use crate::datapath::PinDirectory;
use crate::decide::{self, Edge, Engine, EngineError, ServiceError};
use crate::events::{Event, EventLog, Subscription, What};
use crate::groups::Keeper;
use crate::live::{Cause, Changing, Live};
use crate::memory::Lasting;
use crate::service::{self, Escalated};
use crate::state::{Keeping, Saved, StateDirectory};
use crate::stats::{LimitStatus, Status, View, ViewQuery, monotonic_nanoseconds};

/// Bans that wait to be carried out.
const WAITING: usize = 1_024;

/// Takes the bans that decisions lead to, so that none of them waits for the kernel's maps.
pub struct BanQueue(SyncSender<BanOrder>);

/// The bans taken, to be carried out.
pub struct Orders(Receiver<BanOrder>);

/// A queue of bans: where they go in, and where they come out.
#[must_use]
pub fn bans() -> (BanQueue, Orders) {
    let (sender, receiver) = sync_channel(WAITING);
    (BanQueue(sender), Orders(receiver))
}

impl Edge for BanQueue {
    fn ban(&self, prefix: IpNet, time: Option<Duration>) {
        let order = BanOrder { cidr: prefix.to_string(), for_seconds: time.map(|time| time.as_secs_f64()) };
        // Whoever is not banned now goes on being refused, and is banned for that.
        if let Err(TrySendError::Full(order)) = self.0.try_send(order) {
            eprintln!("banning {} failed: {WAITING} bans are waiting already", order.cidr);
        }
    }
}

impl Orders {
    /// Carries out every ban, on a thread of its own, until nobody is left to order one.
    pub fn carry_out(self, edge: Packets, events: Arc<EventLog>) {
        let work = move || {
            for order in self.0 {
                let (cidr, time) = (order.cidr.clone(), order.for_seconds);
                // Where no packets are held, nobody can be kept off.
                let Some(edge) = edge.load_full() else { continue };
                match edge.escalate(&order) {
                    Ok(Escalated::BannedForLonger) => {}
                    Ok(Escalated::Banned) => events.push(banned(What::Banned, cidr, time)),
                    Ok(Escalated::Observed) => events.push(banned(What::WouldBan, cidr, time)),
                    Err(reason) => eprintln!("banning {cidr} failed: {reason}"),
                }
            }
        };
        if let Err(error) = thread::Builder::new().name("weir-bans".to_owned()).spawn(work) {
            eprintln!("starting the thread that bans addresses failed: {error}; nobody will be banned by escalate");
        }
    }
}

/// The event of a ban that escalation led to.
fn banned(what: What, cidr: String, seconds: Option<f64>) -> Event {
    let time = seconds.map_or_else(
        || "until it is lifted".to_owned(),
        |seconds| format!("for {}", humantime::format_duration(Duration::from_secs_f64(seconds))),
    );
    let ban = if what == What::Banned { "banned" } else { "in enforce mode it would be banned" };
    let reason = format!("kept being refused by a limit on requests: {ban} {time}");
    // As `agent bans` has it: an address without its whole length.
    let source = prefix::parse(&cidr).map_or(cidr, |prefix| PrefixKey::from(&prefix).to_string());
    Event { source: Some(source), ..Event::now(what, 1, reason) }
}

/// Applications cannot be answered.
#[derive(Debug, Error)]
pub enum StartError {
    /// The limits cannot be decided on.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Nobody can be listened to.
    #[error(transparent)]
    Service(#[from] ServiceError),
}

/// Starts to answer applications; the bans that are due come out at the other end.
///
/// # Errors
///
/// When it cannot listen where the config says.
pub fn start(
    config: &Config,
    shares: &HashMap<String, cluster::InForce>,
) -> Result<(decide::Service, Orders), StartError> {
    let (queue, orders) = bans();
    let engine = Engine::new(config, Arc::new(queue))?;
    // Before the first question: it would be held to the whole of the limit, on every host.
    engine.set_shares(shares);
    Ok((decide::Service::start(&config.decide, engine, monotonic_nanoseconds)?, orders))
}

/// What holds packets; empty if the config is for other things only: then nothing of the kernel's packet path is needed.
pub type Packets = Arc<ArcSwapOption<service::Service>>;

/// What keeps limits together with other hosts, if some are.
type Cluster = Arc<ArcSwapOption<cluster::Keeper>>;

/// What holds packets, what answers applications and what keeps groups, as one.
pub struct Agent {
    file: Option<PathBuf>,
    started: Instant,
    packets: Packets,
    requests: decide::Service,
    groups: Keeper,
    changing: Changing,
    cluster: Cluster,
    events: Arc<EventLog>,
    state: Arc<Keeping>,
}

impl Agent {
    /// All at work; `file` is where the config is read from, and `state` saves what survives a reboot.
    #[must_use]
    #[expect(clippy::too_many_arguments, reason = "the parts of an agent, which nothing else puts together")]
    pub fn new(
        file: Option<PathBuf>,
        live: Live,
        packets: Packets,
        requests: decide::Service,
        groups: Keeper,
        cluster: Option<cluster::Keeper>,
        events: Arc<EventLog>,
        state: Arc<Keeping>,
    ) -> Self {
        let (changing, cluster) = (Changing::new(live), Arc::new(ArcSwapOption::new(cluster.map(Arc::new))));
        Self { file, started: Instant::now(), packets, requests, groups, changing, cluster, events, state }
    }

    pub(crate) const fn changing(&self) -> &Changing {
        &self.changing
    }

    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    pub(crate) const fn requests(&self) -> &decide::Service {
        &self.requests
    }

    pub(crate) const fn groups(&self) -> &Keeper {
        &self.groups
    }

    /// What has to survive a reboot; `None` where it cannot be read now, or there is nothing.
    #[must_use]
    pub fn snapshot(&self) -> Option<Saved> {
        match self.packets.load_full()?.snapshot() {
            Ok(saved) => Some(saved),
            Err(error) => {
                eprintln!("reading what has to survive a reboot failed: {error}");
                None
            }
        }
    }

    pub(crate) fn events(&self) -> &EventLog {
        &self.events
    }

    /// This host's share of each limit of a config that many hosts keep together, before it is put in force.
    pub(crate) fn shares(&self, config: &Config) -> HashMap<String, cluster::InForce> {
        match self.cluster.load_full() {
            Some(cluster) => cluster.shares(config),
            None => cluster::first_shares(config, &Past::read(&StateDirectory::at(&config.agent.state_dir))),
        }
    }

    /// Keeps the limits of another config together with other hosts. Leases of limits that were kept before stay valid.
    /// Returns what an operator should know.
    pub(crate) fn replace_cluster(&self, config: &Config) -> Option<String> {
        let shared = cluster::shared(config, &self.packets, &self.requests.current());
        match self.cluster.load_full() {
            Some(_) if shared.is_empty() => self.stop_cluster(),
            Some(cluster) => cluster.replace(config, shared),
            None => {
                let past = Past::read(&StateDirectory::at(&config.agent.state_dir));
                match cluster::Keeper::start(config, shared, &past, Arc::clone(&self.events)) {
                    Ok(keeper) => self.cluster.store(keeper.map(Arc::new)),
                    Err(error) => return Some(format!("limits are not kept together with other hosts: {error}")),
                }
            }
        }
        None
    }

    /// Refuses the requests that wait in line: the agent ends.
    pub fn close_lines(&self) {
        self.requests.close();
    }

    /// Gives back this host's shares.
    pub(crate) fn stop_cluster(&self) {
        if let Some(cluster) = self.cluster.swap(None) {
            cluster.stop();
        }
    }

    /// What is where in the table of sources.
    pub(crate) fn layout(&self) -> Layout {
        self.packets.load_full().map(|packets| packets.layout()).unwrap_or_default()
    }

    /// Puts other limits on packets in force, all of them or none. Returns what an operator should know.
    pub(crate) fn replace_packets(
        &self,
        config: &Config,
        plan: Plan,
        interfaces: &[String],
        lasting: Lasting,
    ) -> Result<Vec<String>, String> {
        let shares = self.shares(config);
        match (self.packets.load_full(), holds_packets(config)) {
            (Some(packets), true) => {
                packets.expect_shares(&shares);
                packets.replace(config.clone(), plan, interfaces, lasting).map_err(|error| error.to_string())
            }
            (None, true) => {
                let pins = PinDirectory::open(&config.agent.pins).map_err(|error| error.to_string())?;
                let file = self.file.as_ref().map(|file| file.display().to_string());
                let packets = service::Service::start(config.clone(), file, plan, pins, interfaces, None, shares)
                    .map_err(|error| error.to_string())?;
                let notes = packets.notes();
                self.packets.store(Some(Arc::new(packets)));
                Ok(notes)
            }
            (Some(packets), false) => {
                packets.detach().map_err(|error| error.to_string())?;
                self.packets.store(None);
                Ok(vec!["there are no limits on packets any more".to_owned()])
            }
            (None, false) => Ok(Vec::new()),
        }
    }

    /// Attaches to interfaces that have appeared, releases those that are gone, and reports it. `is_changed` is whether an
    /// interface may have changed since the last time.
    pub(crate) fn follow_host(&self, is_changed: bool) {
        // Not while another config is put in effect.
        let _one = self.changing.one();
        let Some(packets) = self.packets.load_full() else { return };
        let turns = match packets.follow_host(is_changed) {
            Ok(turns) => turns,
            Err(error) => return eprintln!("following this host's interfaces failed: {error}"),
        };
        for turn in turns {
            let verdict = if turn.is_attached { What::Attached } else { What::Detached };
            eprintln!("{} {}: {}", turn.interface, verdict.name(), turn.reason);
            let source = Some(format!("interface {}", turn.interface));
            self.events.push(Event { source, ..Event::now(verdict, 1, turn.reason) });
        }
    }

    fn status(&self) -> Result<Status, String> {
        let mut status = match self.packets.load_full() {
            Some(packets) => parsed(packets.handle(Request::Status)?)?,
            None => Status {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                mode: self.changing.live().config().agent.mode.to_string(),
                uptime_seconds: self.started.elapsed().as_secs(),
                config: self.file.as_ref().map(|file| file.display().to_string()),
                notes: vec!["there are no limits on packets".to_owned()],
                ..Status::default()
            },
        };
        status.groups = self.groups.names();
        status.uptime_seconds = self.started.elapsed().as_secs();
        status.notes.extend(self.groups.notes());
        status.notes.extend(self.state.notes());
        let live = self.changing.live();
        status.last_reload = live.last();
        status.trial = live.trial();
        status.protected = live.protected();
        drop(live);
        if let Some(cluster) = self.cluster.load_full() {
            status.notes.extend(cluster.notes());
            status.cluster = Some(cluster.status());
        }
        Ok(status)
    }

    fn view(&self, query: ViewQuery) -> Result<View, String> {
        let sources = match self.packets.load_full() {
            Some(packets) => parsed(packets.handle(Request::View { query })?)?,
            None => View::default(),
        };
        Ok(View { status: self.status()?, limits: self.limits()?, groups: self.groups.statuses(), ..sources })
    }

    fn limits(&self) -> Result<Vec<LimitStatus>, String> {
        let mut limits: Vec<LimitStatus> = match self.packets.load_full() {
            Some(packets) => parsed(packets.handle(Request::Limits)?)?,
            None => Vec::new(),
        };
        limits.extend(self.requests.engine().statuses());
        Ok(limits)
    }
}

impl Handler for Agent {
    fn handle(&self, request: Request) -> Result<serde_json::Value, String> {
        match (request, self.packets.load_full()) {
            (Request::Status, _) => json(self.status()?),
            (Request::Limits, _) => json(self.limits()?),
            (Request::Decide { question }, _) => answer(&self.requests, &question),
            (Request::Reload { operator }, _) => json(self.reload(Cause::Command, operator)),
            (Request::Try { file, text, for_seconds, operator }, _) => {
                let time = Duration::try_from_secs_f64(for_seconds).unwrap_or_default();
                json(self.try_config(&file, text, time, operator))
            }
            (Request::Confirm, _) => json(self.confirm()?),
            (Request::Compare, _) => json(self.compare()),
            (Request::Revert, _) => json(self.revert()),
            (Request::View { query }, _) => json(self.view(query)?),
            (Request::Events, _) => json(self.events.recent().iter().map(|event| &**event).collect::<Vec<_>>()),
            (Request::Groups, _) => json(self.groups.statuses()),
            (Request::Emergency { group, what }, _) => json(self.groups.emergency(group, what)?),
            (Request::ResetLimit { limit }, packets) => match (self.requests.engine().reset(&limit), packets) {
                (Some(forgotten), _) => json(Reset { forgotten }),
                (None, Some(packets)) => packets.handle(Request::ResetLimit { limit }),
                (None, None) => Err(format!("there is no limit {limit:?}")),
            },
            (request, Some(packets)) => packets.handle(request),
            (Request::Top | Request::Bans, None) => json([(); 0]),
            (_, None) => Err("the config in force has no limits on packets, so nothing is known of sources".to_owned()),
        }
    }

    async fn wait(&self, question: &decide::Question) -> Result<serde_json::Value, String> {
        let decision = self.requests.desk().ask(question).map_err(|error| error.to_string())?;
        json(decision.answer().await.map_err(|error| error.to_string())?)
    }

    fn follow(&self, last: usize) -> Result<Subscription, String> {
        self.events.follow(last).map_err(|error| error.to_string())
    }
}

/// Whether a config has limits on packets, or nothing but these.
#[must_use]
pub fn holds_packets(config: &Config) -> bool {
    let has_others = !config.groups.is_empty() || !config.decide.limits.is_empty();
    // Also while the host has none of them.
    !config.agent.interfaces.is_empty() || !has_others
}

fn parsed<T: serde::de::DeserializeOwned>(document: serde_json::Value) -> Result<T, String> {
    serde_json::from_value(document).map_err(|error| error.to_string())
}

fn answer(service: &decide::Service, question: &decide::Question) -> Result<serde_json::Value, String> {
    json(service.engine().decide(question, service.now()).map_err(|error| error.to_string())?)
}

fn json(document: impl serde::Serialize) -> Result<serde_json::Value, String> {
    serde_json::to_value(document).map_err(|error| error.to_string())
}
