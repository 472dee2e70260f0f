//! `[decide]`: where applications ask, and everything that is asked about.

use std::net::SocketAddr;
use std::path::PathBuf;

use common::rate_limiter::Policy;

use super::entries;
use super::limit::ReadLimit;
use super::policy::{AgentConfig, Class, Multiplier, Service};
use super::report::Span;
use super::request::{self, RequestCost};
use super::request_limit::{self, AnyLimit, ReadRequestLimit, RequestLimit};
use super::request_notes::{self, Whole};
use super::table::Table;

/// The most keys of a limit.
const MOST_KEYS: u64 = 1 << 26;

/// The most requests that may wait: each takes some 500 bytes and, over HTTP, a connection.
const MOST_WAITING: u64 = 1 << 16;

/// What applications ask about, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decide {
    /// JSON over HTTP.
    pub http: Option<Endpoint>,
    /// Envoy's rate limit service over gRPC.
    pub grpc: Option<SocketAddr>,
    /// Keys that each limit remembers, for each multiplier of a class; `None`: see [`crate::decide::memory`].
    pub max_keys: Option<u32>,
    /// Requests that may wait in line, in all.
    pub max_waiting: u32,
    /// Requests that may wait in line for one key of a limit.
    pub max_waiting_per_key: u32,
    /// `[[request]]`, in the file's order.
    pub requests: Vec<RequestCost>,
    /// `[[limit]]` with `scope = "request"`, in the file's order.
    pub limits: Vec<RequestLimit>,
}

impl Default for Decide {
    fn default() -> Self {
        Self {
            http: None,
            grpc: None,
            max_keys: None,
            max_waiting: 1_024,
            max_waiting_per_key: 64,
            requests: Vec::new(),
            limits: Vec::new(),
        }
    }
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// An address and a port.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(formatter),
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

/// Reads `[decide]`, and tells where it says to listen; its requests and limits are tables of their own.
fn read(mut table: Table<'_, '_>) -> (Decide, Option<Span>) {
    let mut decide = Decide::default();
    if let Some((text, span)) = table.string("http", "\"127.0.0.1:9465\"") {
        decide.http = match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Some(Endpoint::Unix(path.into())),
            Some(_) => {
                let help = "write http = \"unix:/run/weir/decide.sock\"";
                table.problems.error(span, format!("{text:?} is not an absolute path"), help);
                None
            }
            None => address(&mut table, "http", text, span).map(Endpoint::Tcp),
        };
    }
    if let Some((text, span)) = table.string("grpc", "\"127.0.0.1:8081\"") {
        decide.grpc = address(&mut table, "grpc", text, span);
    }
    if let Some(number) = table.number("max_keys", 1, MOST_KEYS) {
        decide.max_keys = u32::try_from(number).ok();
    }
    if let Some(number) = table.number("max_waiting", 0, MOST_WAITING) {
        decide.max_waiting = u32::try_from(number).unwrap_or(u32::MAX);
    }
    if let Some(number) = table.number("max_waiting_per_key", 0, MOST_WAITING) {
        decide.max_waiting_per_key = u32::try_from(number).unwrap_or(u32::MAX);
    }
    let endpoint = ["http", "grpc"].into_iter().find(|key| table.value(key).is_some()).map(|key| table.span_of(key));
    table.finish();
    (decide, endpoint)
}

fn address(table: &mut Table<'_, '_>, key: &str, text: &str, span: Span) -> Option<SocketAddr> {
    match text.parse::<SocketAddr>() {
        Ok(address) => {
            if !address.ip().is_loopback() {
                let message = format!("{address} can be asked from other hosts: whoever reaches it spends allowances");
                table.problems.warning(span, message, "listen on 127.0.0.1 or a unix socket");
            }
            Some(address)
        }
        Err(_) => {
            let help = format!("write {key} = \"127.0.0.1:9465\" or \"[::1]:9465\"");
            table.problems.error(span, format!("{text:?} is no address with a port"), help);
            None
        }
    }
}

/// The most memory that a limit's keys may come to need, in GiB.
const LARGEST_STORE_GIB: u64 = 16;

/// All limits, by their scope.
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

/// `[decide]`, `[[request]]` and the limits on requests together, and what between them cannot be.
pub fn read_all(
    root: &mut Table<'_, '_>,
    limits: Vec<ReadRequestLimit>,
    packet_limits: &[ReadLimit],
    classes: &[Class],
    agent: &AgentConfig,
) -> Decide {
    let (mut decide, endpoint) = match root.value("decide") {
        Some(value) => match value.get_ref().as_table() {
            Some(content) => read(Table::new(content, value.span(), "[decide]", root.problems)),
            None => {
                root.wrong_type("decide", value, "a table: [decide]");
                (Decide::default(), None)
            }
        },
        None => (Decide::default(), None),
    };
    let requests = entries(root, "request", "[[request]]", request::read);
    for (nth, read) in requests.iter().enumerate() {
        if requests[..nth].iter().any(|other| other.request.name == read.request.name) {
            let message = format!("there are two requests named {:?}", read.request.name);
            root.problems.error(read.name_span.clone(), message, "give one of them another name");
        }
    }
    if let (Some(request), true) = (requests.first(), limits.is_empty()) {
        let help = "add a [[limit]] with scope = \"request\"";
        root.problems.warning(request.name_span.clone(), "no limit counts what requests cost", help);
    }
    let mut multipliers = vec![Multiplier::ONE];
    multipliers.extend(classes.iter().filter_map(|class| match class.service {
        Service::Multiplier(multiplier) => Some(multiplier),
        Service::Unlimited => None,
    }));
    for (nth, read) in limits.iter().enumerate() {
        let name = &read.limit.name;
        let is_twice = limits[..nth].iter().any(|other| other.limit.name == *name)
            || packet_limits.iter().any(|other| other.limit.name == *name);
        if is_twice {
            let help = "give one of them another name: it is the label in counters";
            root.problems.error(read.name_span.clone(), format!("there are two limits named {name:?}"), help);
        }
        let policies = multipliers.iter().map(|multiplier| read.limit.policies(*multiplier));
        match policies.collect::<Result<Vec<_>, _>>() {
            Ok(policies) => {
                let words: usize = policies.iter().flatten().map(Policy::words).sum();
                let keys = decide.max_keys.unwrap_or(1);
                let bytes = words as u64 * 8 * u64::from(keys);
                if bytes >> 30 >= LARGEST_STORE_GIB {
                    let message = format!("{keys} keys of this limit could take {} GiB", bytes >> 30);
                    let help = "lower [decide] max_keys, or set algorithm = \"sliding-window\"";
                    root.problems.error(read.name_span.clone(), message, help);
                }
            }
            Err(error) => root.problems.error(
                read.name_span.clone(),
                format!("this limit cannot be kept for every class: {error}"),
                "lower the rate, or the class's multiplier",
            ),
        }
        if read.limit.escalate.is_some() && agent.interfaces.is_empty() {
            let message = "escalate bans at the kernel edge, and there is no interface to ban on";
            root.problems.error(read.name_span.clone(), message, "add [agent] interfaces = [\"eth0\"]");
        }
        if nth == 0 && decide.http.is_none() && decide.grpc.is_none() {
            let help = "add [decide] http = \"unix:/run/weir/decide.sock\"";
            let message = "only `agent decide` can ask about this limit: nobody listens for applications";
            root.problems.warning(read.name_span.clone(), message, help);
        }
    }
    let packet_limits: Vec<&str> = packet_limits.iter().map(|read| read.limit.name.as_str()).collect();
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
