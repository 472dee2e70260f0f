//! The store: Redis or Valkey, asked for leases.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerErrorKind};
use thiserror::Error;
use tokio::task::JoinHandle;

use super::connect::{Connection, connect};
use super::ledger::{Grant, Report};
use crate::config::policy::Cluster;

/// What the store runs.
pub const SCRIPT: &str = include_str!("lease.lua");

/// A store that does not reply as it should.
#[derive(Clone, Debug, Error)]
pub enum StoreError {
    /// It does not reply in time.
    #[error("no answer within {} ms", .0.as_millis())]
    Slow(Duration),
    /// It cannot be reached, or the server there is not the one that is meant.
    #[error("{0}")]
    Gone(String),
    /// It refused one request. It may grant others.
    #[error("{error}{help}")]
    Refused {
        /// Its reason.
        error: String,
        /// What to do, or nothing.
        help: &'static str,
    },
    /// A file of authorities cannot be read.
    #[error("reading [cluster] authorities {} failed: {error}", path.display())]
    Authorities {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::sync::Arc<io::Error>,
    },
    /// Its reply is none of the script's.
    #[error("an answer that is none of Weir's: {0}")]
    Foreign(String),
}

impl StoreError {
    /// From the library's, without the credentials of any address.
    pub(super) fn of(cluster: &Cluster, error: &RedisError) -> Self {
        let mut text = error.to_string();
        for url in &cluster.store {
            let address = url.reveal().split_once("://").map_or("", |(_, rest)| rest);
            if let Some((credentials, _)) = address.rsplit_once('@') {
                for secret in credentials.splitn(2, ':').chain([credentials]).filter(|secret| !secret.is_empty()) {
                    text = text.replace(secret, "*");
                }
            }
        }
        // A server that refuses is there; anything else may be another server by now, or none.
        match error.code() {
            Some(code) if code != "READONLY" => Self::Refused { error: text, help: help(code) },
            _ => Self::Gone(text),
        }
    }

    /// Whether the store has replied at all.
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
        "NOPERM" => "; the user's ACL lacks a permission: docs/CLUSTER.md lists all that are needed",
        "OOM" => "; the store has no memory left: raise its maxmemory",
        _ => "",
    }
}

/// One host as the ledger has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostShare {
    /// The host, and which of its agents.
    pub host: String,
    /// Its share, in billionths.
    pub share: u64,
    /// Its demand, in billionths of the limit's rate.
    pub demand: u64,
}

/// How to reach the store, and what to ask it. A clone costs little.
#[derive(Clone)]
pub struct Store {
    cluster: Cluster,
    patience: Duration,
    digest: String,
}

impl Store {
    /// For a config. No reply is waited for longer than `patience`.
    #[must_use]
    pub fn new(cluster: Cluster, patience: Duration) -> Self {
        // The library may be built with several providers of cryptography; one has to be named, once a process.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let digest = redis::Script::new(SCRIPT).get_hash().to_owned();
        Self { cluster, patience, digest }
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// When the store cannot be reached.
    pub async fn connect(&self) -> Result<Connection, StoreError> {
        connect(&self.cluster, self.patience).await
    }

    /// Asks for the share of a limit, by its name. An older request that a later one has overtaken gets `None`.
    ///
    /// # Errors
    ///
    /// When the store does not reply, or refuses.
    pub async fn lease(
        &self,
        connection: &mut Connection,
        limit: &str,
        report: &Report,
    ) -> Result<Option<Grant>, StoreError> {
        let run = run(connection, &self.digest, self.keys(limit), report);
        let reply = tokio::time::timeout(self.patience, run).await.map_err(|_| StoreError::Slow(self.patience))?;
        grant(&reply.map_err(|error| StoreError::of(&self.cluster, &error))?)
    }

    /// Every host of some limits, as their ledgers have them, all asked for at the same time.
    pub async fn hosts(
        &self,
        connection: &Connection,
        limits: Vec<String>,
    ) -> Vec<(String, Result<Vec<HostShare>, StoreError>)> {
        let ask = |limit: String| {
            let (store, mut connection) = (self.clone(), connection.clone());
            let [ledger, _] = self.keys(&limit);
            let asked: JoinHandle<_> = tokio::spawn(async move {
                let query = async { connection.query(redis::cmd("HGETALL").arg(ledger)).await };
                let reply =
                    tokio::time::timeout(store.patience, query).await.map_err(|_| StoreError::Slow(store.patience))?;
                let entries: Result<BTreeMap<String, String>, RedisError> =
                    reply.and_then(|value| Ok(redis::from_redis_value(value)?));
                let entries = entries.map_err(|error| StoreError::of(&store.cluster, &error))?;
                Ok(entries.iter().filter_map(|(field, entry)| host_share(field, entry)).collect())
            });
            (limit, asked)
        };
        let asked: Vec<_> = limits.into_iter().map(ask).collect();
        let mut hosts = Vec::with_capacity(asked.len());
        for (limit, asked) in asked {
            let reply = asked.await.unwrap_or_else(|error| Err(StoreError::Gone(error.to_string())));
            hosts.push((limit, reply));
        }
        hosts
    }

    /// A limit's ledger and when its leases end. The braces keep the two on one node of a Cluster.
    fn keys(&self, limit: &str) -> [String; 2] {
        let tag = format!("weir:{{{}/{limit}}}", self.cluster.name);
        [format!("{tag}:ledger"), format!("{tag}:ends")]
    }
}

async fn run(
    connection: &mut Connection,
    digest: &str,
    keys: [String; 2],
    report: &Report,
) -> Result<Vec<i64>, RedisError> {
    let command = |name: &str, script: &str| {
        let mut command = redis::cmd(name);
        command.arg(script).arg(keys.len()).arg(keys.as_slice()).arg(&report.host);
        let numbers = [report.sequence, report.applied, report.demand, report.units, report.lease, report.epoch];
        let grant = report.grant.map_or([0; 3], |grant| [grant.sequence, grant.at, grant.elapsed]);
        command.arg(&numbers[..]).arg(u8::from(report.leaves));
        command.arg(report.replaces.as_deref().unwrap_or_default()).arg(&grant[..]);
        command
    };
    let answer = match connection.query(&command("EVALSHA", digest)).await {
        // A server that is new, or has been restarted, is given the script with the request, and keeps it.
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
            connection.query(&command("EVAL", SCRIPT)).await
        }
        answer => answer,
    };
    Ok(redis::from_redis_value(answer?)?)
}

fn grant(values: &[i64]) -> Result<Option<Grant>, StoreError> {
    let numbers: Vec<u64> = values.iter().filter_map(|value| u64::try_from(*value).ok()).collect();
    match numbers[..] {
        [_] => Ok(None),
        [share, hosts, epoch, is_quiet, held, demand, target, at] => {
            Ok(Some(Grant { share, hosts, epoch, is_quiet: is_quiet != 0, held, demand, target, at }))
        }
        _ => Err(StoreError::Foreign(format!("{values:?}"))),
    }
}

fn host_share(field: &str, entry: &str) -> Option<HostShare> {
    let mut numbers = entry.split(' ').map(str::parse);
    let (_, demand, _, share) = (numbers.next()?, numbers.next()?, numbers.next()?, numbers.next()?);
    Some(HostShare { host: field.strip_prefix("n:")?.to_owned(), share: share.ok()?, demand: demand.ok()? })
}
