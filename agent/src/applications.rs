//! The agent as the control socket sees it: what holds packets, if anything does, and what answers applications.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use ipnet::IpNet;

use crate::config::policy::Config;
use crate::control::{BanOrder, Handler, Request, Reset};
use crate::decide::{self, Edge};
use crate::service;
use crate::stats::{BypassStatus, LimitStatus, SourcesStatus, Status, Totals};

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
    pub fn carry_out(self, edge: Arc<service::Service>) {
        let work = move || {
            for order in self.0 {
                let cidr = order.cidr.clone();
                if let Err(reason) = edge.handle(Request::Ban { orders: vec![order] }) {
                    eprintln!("banning {cidr} failed: {reason}");
                }
            }
        };
        if let Err(error) = thread::Builder::new().name("weir-bans".to_owned()).spawn(work) {
            eprintln!("starting the thread that bans addresses failed: {error}; nobody will be banned by escalate");
        }
    }
}

/// Limits on packets and limits on requests, as one.
pub struct Agent {
    packets: Arc<service::Service>,
    requests: decide::Service,
}

impl Agent {
    /// Both at work.
    #[must_use]
    pub fn new(packets: Arc<service::Service>, requests: decide::Service) -> Self {
        Self { packets, requests }
    }
}

impl Handler for Agent {
    fn handle(&self, request: Request) -> Result<serde_json::Value, String> {
        match request {
            Request::Decide { question } => answer(&self.requests, &question),
            Request::ResetLimit { limit } => match self.requests.engine().reset(&limit) {
                Some(forgotten) => json(Reset { forgotten }),
                None => self.packets.handle(Request::ResetLimit { limit }),
            },
            Request::Limits => {
                let limits = self.packets.handle(Request::Limits)?;
                let mut limits: Vec<LimitStatus> = serde_json::from_value(limits).map_err(|error| error.to_string())?;
                limits.extend(self.requests.engine().statuses());
                json(limits)
            }
            other => self.packets.handle(other),
        }
    }
}

/// An agent without limits on packets: nothing of the kernel is needed.
pub struct RequestsAlone {
    config: Config,
    file: Option<String>,
    service: decide::Service,
    started: Instant,
}

impl RequestsAlone {
    /// At work.
    #[must_use]
    pub fn new(config: Config, file: Option<String>, service: decide::Service) -> Self {
        Self { config, file, service, started: Instant::now() }
    }

    fn status(&self) -> Status {
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mode: self.config.agent.mode.to_string(),
            uptime_seconds: self.started.elapsed().as_secs(),
            config: self.file.clone(),
            interfaces: Vec::new(),
            totals: Totals::default(),
            sources: SourcesStatus::default(),
            bypass: BypassStatus::default(),
            bans: 0,
            has_room: None,
            notes: vec!["there are limits on requests only".to_owned()],
        }
    }
}

impl Handler for RequestsAlone {
    fn handle(&self, request: Request) -> Result<serde_json::Value, String> {
        match request {
            Request::Status => json(self.status()),
            Request::Limits => json(self.service.engine().statuses()),
            Request::Decide { question } => answer(&self.service, &question),
            Request::ResetLimit { limit } => {
                let reset = self.service.engine().reset(&limit).map(|forgotten| Reset { forgotten });
                json(reset.ok_or_else(|| format!("there is no limit {limit:?}"))?)
            }
            Request::Top | Request::Bans => json([(); 0]),
            _ => Err("this agent has limits on requests only: it holds no packets".to_owned()),
        }
    }
}

fn answer(service: &decide::Service, question: &decide::Question) -> Result<serde_json::Value, String> {
    json(service.engine().decide(question, service.now()).map_err(|error| error.to_string())?)
}

fn json(document: impl serde::Serialize) -> Result<serde_json::Value, String> {
    serde_json::to_value(document).map_err(|error| error.to_string())
}
