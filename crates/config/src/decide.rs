//! `[decide]`: the endpoints for applications, and everything that they query.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::check_headers::CheckHeaders;
use super::policy::{RequestCost, RequestLimit, RequestProtocol};
use super::report::{Problems, Wrong};
use super::schema::{Key, Kind, Located, Table, Text};

/// The most keys of a limit.
const MOST_KEYS: f64 = (1 << 26) as f64;

/// The most waiting requests: each takes some 500 bytes and, over HTTP, a connection.
const MOST_WAITING: f64 = (1 << 16) as f64;

/// The most open reservations: each takes some 300 bytes.
const MOST_RESERVATIONS: f64 = (1 << 20) as f64;

/// Addresses for requests of applications, for limits with `scope = "request"`.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(heading = "[decide]", since = "0.1.0", check = check)]
#[table(
    example = "[decide]\nhttp = \"unix:/run/weir/decide.sock\"\ngrpc = \"127.0.0.1:8081\"\n\n\
                   [[limit]]\nname = \"logins\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"5/min\"\n"
)]
pub struct Decide {
    /// Address and port, or Unix socket, of `POST /v1/decide`. The socket belongs to the group `weir`.
    #[key(absent = "off", examples = ["127.0.0.1:9465", "unix:/run/weir/decide.sock"], restart)]
    pub http: Option<Endpoint>,
    /// Address and port of Envoy's rate limit service (`envoy.service.ratelimit.v3`) and rate limit quota service (`envoy.service.rate_limit_quota.v3`).
    #[key(absent = "off", examples = ["127.0.0.1:8081"], restart)]
    pub grpc: Option<SocketAddr>,
    /// The headers that `GET /v1/check` reads, for proxies that ask about each request: `auth_request` of nginx, `forward_auth` of
    /// Caddy, `forwardAuth` of Traefik, a Lua action of HAProxy. The proxy's URL names the limits: `/v1/check?limit=logins`.
    #[key(absent = "off: `/v1/check` is not found")]
    pub check: Option<CheckHeaders>,
    /// Endpoints whose clients may cause bans: `escalate` counts refusals of their requests, and bans the `source` that they name.
    /// Refusals over the other endpoints ban nobody. `weir decide` by root always counts, by other users never.
    #[key(absent = "none", examples = ["http", "grpc"])]
    pub escalate_from: Vec<RequestProtocol>,
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
    /// The most open reservations, in all. Beyond it, a request with `reserve` is an error and charges nothing.
    #[key(default = 10_000, range = (0.0, MOST_RESERVATIONS))]
    pub max_reservations: u32,
    /// The most open reservations for one key of a limit, so that no client takes all of them.
    #[key(default = 1_000, range = (0.0, MOST_RESERVATIONS))]
    pub max_reservations_per_key: u32,
    /// `[[request]]`, in the file's order.
    #[key(skip)]
    pub requests: Vec<RequestCost>,
    /// `[[limit]]` with `scope = "request"`, in the file's order.
    #[key(skip)]
    pub limits: Vec<RequestLimit>,
    /// Whether services report their loads, for fair limits.
    #[key(skip)]
    pub takes_loads: bool,
    /// Whether rules of the fleet may add limits.
    #[key(skip)]
    pub follows_fleet: bool,
}

impl Decide {
    /// Whether something is served, if an address is set.
    #[must_use]
    pub fn has_questions(&self) -> bool {
        self.takes_loads || self.follows_fleet || !self.limits.is_empty()
    }

    /// The protocols whose addresses are set.
    pub fn served(&self) -> impl Iterator<Item = RequestProtocol> {
        let http = self.http.is_some().then_some(RequestProtocol::Http);
        let grpc = self.grpc.is_some().then_some(RequestProtocol::Grpc);
        http.into_iter().chain(grpc)
    }
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
    for (key, protocol, address) in [
        (Decide::HTTP, RequestProtocol::Http, http),
        (Decide::GRPC, RequestProtocol::Grpc, read.table.grpc),
    ] {
        if let Some(address) = address.filter(|address| !address.ip().is_loopback()) {
            let bans = match read.table.escalate_from.contains(&protocol) {
                true => ", and have any source banned by escalate",
                false => "",
            };
            let message = format!(
                "{address} is reachable from other hosts: any client there can use up allowances{bans}"
            );
            let help =
                "listen on 127.0.0.1 or a Unix socket: http = \"unix:/run/weir/decide.sock\"";
            problems.warning(read.span_of(&key), message, help);
        }
    }
    if read.table.check.is_some() && read.table.http.is_none() {
        let message = "check has no effect: http is not set";
        let help = "set http, or leave out check";
        problems.warning(read.span_of(&Decide::CHECK), message, help);
    }
    for (protocol, span) in read.elements::<RequestProtocol>(&Decide::ESCALATE_FROM) {
        if !read.table.served().any(|served| served == protocol) {
            let message =
                format!("\"{protocol}\" in escalate_from has no effect: {protocol} is not set");
            let help = format!("set {protocol}, or take \"{protocol}\" out of escalate_from");
            problems.warning(span, message, help);
        }
    }
}

#[cfg(test)]
mod tests;
