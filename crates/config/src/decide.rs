//! `[decide]`: the endpoints for applications, and everything that they query.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use common::rate_limiter::Policy;

use super::class::ReadClass;
use super::policy::{AgentConfig, Multiplier, RequestCost, RequestLimit, Service};
use super::read_limit::ReadLimit;
use super::report::Problems;
use super::request;
use super::request_limit::{self, AnyLimit, ReadRequestLimit};
use super::request_notes::{self, Whole};
use super::schema::{Key, Kind, Located, Text, read_one};
use super::table::{Table, entries};
use super::units::Wrong;

/// The most keys of a limit.
const MOST_KEYS: f64 = (1 << 26) as f64;

/// The most waiting requests: each takes some 500 bytes and, over HTTP, a connection.
const MOST_WAITING: f64 = (1 << 16) as f64;

/// Addresses for requests of applications, for limits with `scope = "request"`.
#[derive(Clone, Debug, PartialEq, Eq, super::schema::Table)]
#[table(heading = "[decide]", since = "0.1.0", check = check)]
#[table(
    example = "[decide]\nhttp = \"unix:/run/weir/decide.sock\"\ngrpc = \"127.0.0.1:8081\"\n\n\
                   [[limit]]\nname = \"logins\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"5/min\"\n"
)]
pub struct Decide {
    /// Address and port, or Unix socket, of `POST /v1/decide`. The socket belongs to the group `weir`.
    #[key(absent = "off", examples = ["127.0.0.1:9465", "unix:/run/weir/decide.sock"], restart)]
    pub http: Option<Endpoint>,
    /// Address and port of Envoy's rate limit service (`envoy.service.ratelimit.v3`).
    #[key(absent = "off", examples = ["127.0.0.1:8081"], restart)]
    pub grpc: Option<SocketAddr>,
    /// Number of keys of each limit, for each multiplier of a class.
    #[key(absent = "1_000_000, or fewer where all limits together would take more than 1 GiB")]
    #[key(range = (1.0, MOST_KEYS))]
    pub max_keys: Option<u32>,
    /// The most waiting requests, in all.
    #[key(default = 1_024, range = (0.0, MOST_WAITING))]
    pub max_waiting: u32,
    /// The most waiting requests for one key of a limit.
    #[key(default = 64, range = (0.0, MOST_WAITING))]
    pub max_waiting_per_key: u32,
    /// `[[request]]`, in the file's order.
    #[key(skip)]
    pub requests: Vec<RequestCost>,
    /// `[[limit]]` with `scope = "request"`, in the file's order.
    #[key(skip)]
    pub limits: Vec<RequestLimit>,
}

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// An address and a port.
    Tcp(SocketAddr),
    /// A Unix socket's path.
    Unix(PathBuf),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(formatter),
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

impl Text for Endpoint {
    const KIND: Kind = Kind::Text(&[]);

    fn parse(text: &str, key: &Key) -> Result<Self, Wrong> {
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(_) => {
                let help = format!("write {} = \"unix:/run/weir/decide.sock\"", key.name);
                Err(Wrong::new(
                    format!("{text:?} is not an absolute path"),
                    help,
                ))
            }
            None => SocketAddr::parse(text, key).map(Self::Tcp),
        }
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

fn check(read: &Located<'_, Decide>, problems: &mut Problems) {
    let http = match read.table.http {
        Some(Endpoint::Tcp(address)) => Some(address),
        _ => None,
    };
    for (key, address) in [(Decide::HTTP, http), (Decide::GRPC, read.table.grpc)] {
        if let Some(address) = address.filter(|address| !address.ip().is_loopback()) {
            let message = format!(
                "{address} is reachable from other hosts: any client there can use up allowances"
            );
            let help =
                "listen on 127.0.0.1 or a Unix socket: http = \"unix:/run/weir/decide.sock\"";
            problems.warning(read.span_of(&key), message, help);
        }
    }
}

/// The most memory that a limit's keys may need, in GiB.
const LARGEST_STORE_GIB: u64 = 16;

/// All limits, by scope.
pub fn limits(root: &mut Table<'_, '_>) -> (Vec<ReadLimit>, Vec<ReadRequestLimit>) {
    let (mut packets, mut requests) = (Vec::new(), Vec::new());
    for limit in entries(root, "limit", "[[limit]]", request_limit::read_any) {
        match limit {
            AnyLimit::Packet(limit) => packets.push(limit),
            AnyLimit::Request(limit) => requests.push(limit),
        }
    }
    (packets, requests)
}

/// Reads `[decide]`, `[[request]]` and the limits on requests, and checks them together.
pub fn read_all(
    root: &mut Table<'_, '_>,
    limits: Vec<ReadRequestLimit>,
    packet_limits: &[ReadLimit],
    classes: &[ReadClass],
    agent: &AgentConfig,
) -> Decide {
    let read = read_one::<Decide>(root);
    let endpoint = read.as_ref().and_then(|read| {
        let written = read.find(&Decide::HTTP).or(read.find(&Decide::GRPC));
        written.map(|at| at.span())
    });
    let mut decide = read.map_or_else(Default::default, |read| read.table);
    let requests = entries(root, "request", "[[request]]", request::read);
    for (nth, read) in requests.iter().enumerate() {
        if requests[..nth]
            .iter()
            .any(|other| other.request.name == read.request.name)
        {
            let message = format!("duplicate request name {:?}", read.request.name);
            root.problems.error(
                read.name_span.clone(),
                message,
                "give one of them another name",
            );
        }
    }
    if let (Some(request), true) = (requests.first(), limits.is_empty()) {
        let help = "add a [[limit]] with scope = \"request\"";
        root.problems.warning(
            request.name_span.clone(),
            "[[request]] has no effect: no limit has scope = \"request\"",
            help,
        );
    }
    let mut multipliers = vec![Multiplier::ONE];
    multipliers.extend(classes.iter().filter_map(|read| match read.class.service {
        Service::Multiplier(multiplier) => Some(multiplier),
        Service::Unlimited => None,
    }));
    for (nth, read) in limits.iter().enumerate() {
        let name = &read.limit.name;
        let is_twice = limits[..nth].iter().any(|other| other.limit.name == *name)
            || packet_limits.iter().any(|other| other.limit.name == *name);
        if is_twice {
            let help = "give one of them another name: it is the label in counters";
            root.problems.error(
                read.name_span.clone(),
                format!("duplicate limit name {name:?}"),
                help,
            );
        }
        let policies = multipliers
            .iter()
            .map(|multiplier| read.limit.policies(*multiplier));
        match policies.collect::<Result<Vec<_>, _>>() {
            Ok(policies) => {
                let words: usize = policies.iter().flatten().map(Policy::words).sum();
                let keys = decide.max_keys.unwrap_or(1);
                let bytes = words as u64 * 8 * u64::from(keys);
                if bytes >> 30 >= LARGEST_STORE_GIB {
                    let message = format!(
                        "{keys} keys of limit {name:?} could take {} GiB of memory",
                        bytes >> 30
                    );
                    let help = "lower [decide] max_keys, or set algorithm = \"sliding-window\"";
                    root.problems.error(read.name_span.clone(), message, help);
                }
            }
            Err(error) => root.problems.error(
                read.name_span.clone(),
                format!("limit {name:?} cannot be enforced for every class: {error}"),
                "lower the rate, or the class's multiplier",
            ),
        }
        if read.limit.escalate.is_some() && agent.interfaces.is_empty() {
            let message = "escalate requires an interface on which the kernel bans addresses";
            root.problems.error(
                read.name_span.clone(),
                message,
                "add [agent] interfaces = [\"eth0\"]",
            );
        }
        if nth == 0 && decide.http.is_none() && decide.grpc.is_none() {
            let help = "add [decide] http = \"unix:/run/weir/decide.sock\"";
            let message = "applications cannot query this limit, only `agent decide` can: [decide] has no http and no grpc";
            root.problems.warning(read.name_span.clone(), message, help);
        }
    }
    let packet_limits: Vec<&str> = packet_limits
        .iter()
        .map(|read| read.limit.name.as_str())
        .collect();
    let whole = Whole {
        decide: &decide,
        endpoint,
        requests: &requests,
        limits: &limits,
        packet_limits: &packet_limits,
        classes,
        multipliers: &multipliers,
        agent,
    };
    request_notes::check(&whole, root.problems);
    decide.requests = requests.into_iter().map(|read| read.request).collect();
    decide.limits = limits.into_iter().map(|read| read.limit).collect();
    decide
}

#[cfg(test)]
mod tests;
