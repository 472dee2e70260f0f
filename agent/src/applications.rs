//! The agent as the control socket sees it: what holds packets, if anything does, what answers applications, and what
//! keeps groups of processes.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use thiserror::Error;

use crate::cluster;
use crate::compile::PrefixKey;
use crate::config::policy::Config;
use crate::config::prefix;
use crate::control::{BanOrder, Handler, Request, Reset};
use crate::decide::{self, Edge, Engine, EngineError, ServiceError};
use crate::events::{Event, EventLog, Subscription, What};
use crate::groups::Keeper;
use crate::service;
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
    pub fn carry_out(self, edge: Arc<service::Service>, events: Arc<EventLog>) {
        let work = move || {
            for order in self.0 {
                let (cidr, time) = (order.cidr.clone(), order.for_seconds);
                match edge.handle(Request::Ban { orders: vec![order] }) {
                    Ok(_) => events.push(banned(cidr, time)),
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
fn banned(cidr: String, seconds: Option<f64>) -> Event {
    let time = seconds.map_or_else(
        || "until it is lifted".to_owned(),
        |seconds| format!("for {}", humantime::format_duration(Duration::from_secs_f64(seconds))),
    );
    let reason = format!("kept being refused by a limit on requests: banned {time}");
    // As `agent bans` has it: an address without its whole length.
    let source = prefix::parse(&cidr).map_or(cidr, |prefix| PrefixKey::from(&prefix).to_string());
    Event { source: Some(source), ..Event::now(What::Banned, 1, reason) }
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
pub fn start(config: &Config) -> Result<(decide::Service, Orders), StartError> {
    let (queue, orders) = bans();
    let engine = Engine::new(config, Arc::new(queue))?;
    Ok((decide::Service::start(&config.decide, engine, monotonic_nanoseconds)?, orders))
}

/// What holds packets, what answers applications and what keeps groups, as one.
pub struct Agent {
    config: Config,
    file: Option<String>,
    started: Instant,
    /// `None` if the config is for other things only: then nothing of the kernel's packet path is needed.
    packets: Option<Arc<service::Service>>,
    requests: decide::Service,
    groups: Keeper,
    cluster: Option<Arc<cluster::Keeper>>,
    events: Arc<EventLog>,
}

impl Agent {
    /// All at work.
    #[must_use]
    pub fn new(
        config: Config,
        file: Option<String>,
        packets: Option<Arc<service::Service>>,
        requests: decide::Service,
        groups: Keeper,
        cluster: Option<Arc<cluster::Keeper>>,
        events: Arc<EventLog>,
    ) -> Self {
        Self { config, file, started: Instant::now(), packets, requests, groups, cluster, events }
    }

    fn status(&self) -> Result<Status, String> {
        let mut status = match &self.packets {
            Some(packets) => parsed(packets.handle(Request::Status)?)?,
            None => Status {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                mode: self.config.agent.mode.to_string(),
                uptime_seconds: self.started.elapsed().as_secs(),
                config: self.file.clone(),
                notes: vec!["there are no limits on packets".to_owned()],
                ..Status::default()
            },
        };
        status.groups = self.groups.names();
        status.notes.extend(self.groups.notes());
        status.cluster = self.cluster.as_ref().map(|cluster| cluster.status());
        Ok(status)
    }

    fn view(&self, query: ViewQuery) -> Result<View, String> {
        let sources = match &self.packets {
            Some(packets) => parsed(packets.handle(Request::View { query })?)?,
            None => View::default(),
        };
        Ok(View { status: self.status()?, limits: self.limits()?, groups: self.groups.statuses(), ..sources })
    }

    fn limits(&self) -> Result<Vec<LimitStatus>, String> {
        let mut limits: Vec<LimitStatus> = match &self.packets {
            Some(packets) => parsed(packets.handle(Request::Limits)?)?,
            None => Vec::new(),
        };
        limits.extend(self.requests.engine().statuses());
        Ok(limits)
    }
}

impl Handler for Agent {
    fn handle(&self, request: Request) -> Result<serde_json::Value, String> {
        match (request, &self.packets) {
            (Request::Status, _) => json(self.status()?),
            (Request::Limits, _) => json(self.limits()?),
            (Request::Decide { question }, _) => answer(&self.requests, &question),
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

    fn follow(&self, last: usize) -> Result<Subscription, String> {
        self.events.follow(last).map_err(|error| error.to_string())
    }
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
