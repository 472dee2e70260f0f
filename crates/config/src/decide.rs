//! `[decide]`: the endpoints for applications, and everything that they query.

use std::net::SocketAddr;

use common::rate_limiter::Policy;

use super::class::ReadClass;
use super::policy::{AgentConfig, Decide, Endpoint, Multiplier, Service};
use super::read_limit::ReadLimit;
use super::report::Span;
use super::request;
use super::request_limit::{self, AnyLimit, ReadRequestLimit};
use super::request_notes::{self, Whole};
use super::table::{Table, entries};

/// The most keys of a limit.
pub(super) const MOST_KEYS: u64 = 1 << 26;

/// The most waiting requests: each takes some 500 bytes and, over HTTP, a connection.
pub(super) const MOST_WAITING: u64 = 1 << 16;

/// Reads `[decide]` and the span of its endpoint. Requests and limits are separate tables.
fn read(mut table: Table<'_, '_>) -> (Decide, Option<Span>) {
    let mut decide = Decide::default();
    if let Some((text, span)) = table.string("http", "\"127.0.0.1:9465\"") {
        decide.http = match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Some(Endpoint::Unix(path.into())),
            Some(_) => {
                let help = "write http = \"unix:/run/weir/decide.sock\"";
                table
                    .problems
                    .error(span, format!("{text:?} is not an absolute path"), help);
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
    let endpoint = ["http", "grpc"]
        .into_iter()
        .find(|key| table.value(key).is_some())
        .map(|key| table.span_of(key));
    table.finish();
    (decide, endpoint)
}

fn address(table: &mut Table<'_, '_>, key: &str, text: &str, span: Span) -> Option<SocketAddr> {
    match text.parse::<SocketAddr>() {
        Ok(address) => {
            if !address.ip().is_loopback() {
                let message = format!(
                    "{address} is reachable from other hosts: any client there can use up allowances"
                );
                table.problems.warning(
                    span,
                    message,
                    "listen on 127.0.0.1 or a Unix socket: http = \"unix:/run/weir/decide.sock\"",
                );
            }
            Some(address)
        }
        Err(_) => {
            let help = format!(
                "write an address and a port: {key} = \"127.0.0.1:9465\" or \"[::1]:9465\""
            );
            table
                .problems
                .error(span, format!("invalid address {text:?} of {key}"), help);
            None
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
