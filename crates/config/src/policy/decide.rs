//! `[decide]`, with the limits on requests.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::{RequestCost, RequestLimit};

/// Limits on requests, and the servers that applications query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decide {
    /// JSON over HTTP.
    pub http: Option<Endpoint>,
    /// Envoy's rate limit service over gRPC.
    pub grpc: Option<SocketAddr>,
    /// The number of keys of each limit, for each class multiplier; `None`: the agent divides its memory limit.
    pub max_keys: Option<u32>,
    /// The most waiting requests in total.
    pub max_waiting: u32,
    /// The most waiting requests per key of a limit.
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

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// An address and a port.
    Tcp(SocketAddr),
    /// A Unix socket's path.
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
