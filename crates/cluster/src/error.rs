//! Errors of leases and of the store.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use config::human;
use config::policy::Cluster;
use host::read::ReadError;
use redis::RedisError;
use thiserror::Error;

/// Leases cannot be started.
#[derive(Debug, Error)]
pub enum ClusterError {
    /// The system has no randomness.
    #[error("reading a random number that identifies this agent failed: {0}")]
    Random(getrandom::Error),
    /// The system has no threads.
    #[error("starting the thread that queries the cluster's store failed: {0}")]
    Thread(io::Error),
}

/// A failed request to the store.
#[derive(Clone, Debug, Error)]
pub enum StoreError {
    /// It does not reply in time.
    #[error("no reply within {}", human::time(*.0))]
    Slow(Duration),
    /// The store cannot be reached, or another server uses its address.
    #[error("{0}")]
    Gone(String),
    /// The store refused one request; others may succeed.
    #[error("{error}{help}")]
    Refused {
        /// The store's reason.
        error: String,
        /// The fix, or an empty text.
        help: &'static str,
    },
    /// A file of authorities cannot be read.
    #[error("[cluster] authorities: {0}")]
    Authorities(Arc<ReadError>),
    /// The reply is not one of the script's.
    #[error(
        "invalid reply of the store: {0}; another program may use the same keys: set another [cluster] name"
    )]
    Foreign(String),
}

impl StoreError {
    /// The library's error, without credentials.
    pub(super) fn of(cluster: &Cluster, error: &RedisError) -> Self {
        let mut text = error.to_string();
        for url in &cluster.store {
            let address = url.reveal().split_once("://").map_or("", |(_, rest)| rest);
            if let Some((credentials, _)) = address.rsplit_once('@') {
                for secret in credentials
                    .splitn(2, ':')
                    .chain([credentials])
                    .filter(|secret| !secret.is_empty())
                {
                    text = text.replace(secret, "*");
                }
            }
        }
        // After any error but a refusal, another server may use the address, or none.
        match error.code() {
            Some(code) if code != "READONLY" => Self::Refused {
                error: text,
                help: help(code),
            },
            _ => Self::Gone(text),
        }
    }

    /// Whether the error is a reply of the store.
    #[must_use]
    pub const fn is_reply(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Foreign(_))
    }
}

fn help(code: &str) -> &'static str {
    match code {
        "WRONGTYPE" => {
            "; the key of this limit's ledger belongs to another program: remove it, or set another [cluster] name"
        }
        "NOPERM" => {
            "; the user's ACL lacks a permission: docs/CLUSTER.md lists all that are needed"
        }
        "OOM" => "; the store has no memory left: raise its maxmemory",
        _ => "",
    }
}
