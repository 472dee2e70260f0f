//! Requests to the store, Redis or Valkey.

use std::collections::BTreeMap;
use std::time::Duration;

use config::policy::Cluster;
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::task::JoinHandle;

use super::connect::{Connection, Timeouts, connect};
use super::error::StoreError;
use super::ledger::{Grant, Report};

/// The script that grants leases.
pub const SCRIPT: &str = include_str!("lease.lua");

/// A host's entry in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostShare {
    /// The name of the host and of this run of its agent.
    pub host: String,
    /// Its share, in billionths.
    pub share: u64,
    /// Its demand, in billionths of the limit's rate.
    pub demand: u64,
}

/// A script and its SHA-1.
#[derive(Clone)]
pub struct Script {
    text: &'static str,
    digest: String,
}

impl Script {
    #[must_use]
    pub fn new(text: &'static str) -> Self {
        Self {
            text,
            digest: redis::Script::new(text).get_hash().to_owned(),
        }
    }

    /// Runs the script. `arguments` adds the number of keys, the keys and the other arguments.
    async fn run(
        &self,
        connection: &mut Connection,
        arguments: impl Fn(&mut Cmd),
    ) -> Result<Value, RedisError> {
        let command = |name: &str, script: &str| {
            let mut command = redis::cmd(name);
            command.arg(script);
            arguments(&mut command);
            command
        };
        match connection.query(&command("EVALSHA", &self.digest)).await {
            // A new or restarted server gets the script with the request, and keeps it. `redis::Script` is not used: it
            // sends SCRIPT LOAD first, to every node of a Cluster including unavailable ones, and users who may run
            // scripts may lack that permission.
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                connection.query(&command("EVAL", self.text)).await
            }
            reply => reply,
        }
    }
}

/// The timeout for connecting, in timeouts of a request: names, certificates and a Cluster's slots take longer.
const CONNECTING: u32 = 3;

/// A client of the store. A clone is cheap.
#[derive(Clone)]
pub struct Store {
    cluster: Cluster,
    patience: Duration,
    script: Script,
}

impl Store {
    /// `patience` is the timeout of a request.
    #[must_use]
    pub fn new(cluster: Cluster, patience: Duration) -> Self {
        // The library may be built with several crypto providers; one must be chosen once per process.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self {
            cluster,
            patience,
            script: Script::new(SCRIPT),
        }
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// When the store cannot be reached.
    pub async fn connect(&self) -> Result<Connection, StoreError> {
        self.connect_within(CONNECTING * self.patience).await
    }

    /// The same with another timeout of requests.
    pub(super) fn within(&self, patience: Duration) -> Self {
        Self {
            patience,
            ..self.clone()
        }
    }

    /// Connects within a time.
    ///
    /// # Errors
    ///
    /// When the store cannot be reached.
    pub(super) async fn connect_within(&self, time: Duration) -> Result<Connection, StoreError> {
        let timeouts = Timeouts {
            connect: time,
            request: self.patience,
        };
        connect(&self.cluster, timeouts).await
    }

    /// Requests the share of a limit. `None` if a later request has arrived before.
    ///
    /// # Errors
    ///
    /// When the store does not reply, or refuses the request.
    pub async fn lease(
        &self,
        connection: &mut Connection,
        limit: &str,
        report: &Report,
    ) -> Result<Option<Grant>, StoreError> {
        let run = run(connection, &self.script, self.keys(limit), report);
        let reply = tokio::time::timeout(self.patience, run)
            .await
            .map_err(|_| StoreError::Slow(self.patience))?;
        grant(&reply.map_err(|error| StoreError::of(&self.cluster, &error))?)
    }

    /// Runs another script.
    ///
    /// # Errors
    ///
    /// When the store does not reply in time, or refuses the request.
    pub async fn run(
        &self,
        connection: &mut Connection,
        script: &Script,
        keys: &[String],
        arguments: &[&[u8]],
    ) -> Result<Value, StoreError> {
        let run = script.run(connection, |command| {
            command.arg(keys.len()).arg(keys).arg(arguments);
        });
        let reply = tokio::time::timeout(self.patience, run)
            .await
            .map_err(|_| StoreError::Slow(self.patience))?;
        reply.map_err(|error| StoreError::of(&self.cluster, &error))
    }

    /// The hosts in the ledgers of some limits, requested concurrently.
    pub async fn hosts(
        &self,
        connection: &Connection,
        limits: Vec<String>,
    ) -> Vec<(String, Result<Vec<HostShare>, StoreError>)> {
        let ask = |limit: String| {
            let (store, mut connection) = (self.clone(), connection.clone());
            let [ledger, _] = self.keys(&limit);
            let request: JoinHandle<_> = tokio::spawn(async move {
                let query = async { connection.query(redis::cmd("HGETALL").arg(ledger)).await };
                let reply = tokio::time::timeout(store.patience, query)
                    .await
                    .map_err(|_| StoreError::Slow(store.patience))?;
                let entries: Result<BTreeMap<String, String>, RedisError> =
                    reply.and_then(|value| Ok(redis::from_redis_value(value)?));
                let entries = entries.map_err(|error| StoreError::of(&store.cluster, &error))?;
                Ok(entries
                    .iter()
                    .filter_map(|(field, entry)| host_share(field, entry))
                    .collect())
            });
            (limit, request)
        };
        let requests: Vec<_> = limits.into_iter().map(ask).collect();
        let mut hosts = Vec::with_capacity(requests.len());
        for (limit, request) in requests {
            let reply = request
                .await
                .unwrap_or_else(|error| Err(StoreError::Gone(error.to_string())));
            hosts.push((limit, reply));
        }
        hosts
    }

    /// The keys of a limit's ledger and of its leases' ends. The braces place both on one node of a Cluster.
    pub(super) fn keys(&self, limit: &str) -> [String; 2] {
        let tag = format!("weir:{{{}/{limit}}}", self.cluster.name);
        [format!("{tag}:ledger"), format!("{tag}:ends")]
    }
}

async fn run(
    connection: &mut Connection,
    script: &Script,
    keys: [String; 2],
    report: &Report,
) -> Result<Vec<i64>, RedisError> {
    let reply = script.run(connection, |command| {
        command
            .arg(keys.len())
            .arg(keys.as_slice())
            .arg(&report.host);
        let numbers = [
            report.sequence,
            report.applied,
            report.demand,
            report.units,
            report.lease,
            report.epoch,
        ];
        let grant = report
            .grant
            .map_or([0; 3], |grant| [grant.sequence, grant.at, grant.elapsed]);
        command.arg(&numbers[..]).arg(u8::from(report.leaves));
        command
            .arg(report.replaces.as_deref().unwrap_or_default())
            .arg(&grant[..])
            .arg(u8::from(report.in_zone));
    });
    Ok(redis::from_redis_value(reply.await?)?)
}

fn grant(values: &[i64]) -> Result<Option<Grant>, StoreError> {
    let numbers: Vec<u64> = values
        .iter()
        .filter_map(|value| u64::try_from(*value).ok())
        .collect();
    match numbers[..] {
        [_] => Ok(None),
        [
            share,
            hosts,
            epoch,
            is_quiet,
            held,
            demand,
            target,
            at,
            all,
            zones,
        ] => Ok(Some(Grant {
            share,
            hosts,
            epoch,
            is_quiet: is_quiet != 0,
            held,
            demand,
            target,
            at,
            all,
            zones: zones.max(1),
        })),
        _ => Err(StoreError::Foreign(format!("{values:?}"))),
    }
}

fn host_share(field: &str, entry: &str) -> Option<HostShare> {
    let mut numbers = entry.split(' ').map(str::parse);
    let (_, demand, _, share) = (
        numbers.next()?,
        numbers.next()?,
        numbers.next()?,
        numbers.next()?,
    );
    Some(HostShare {
        host: field.strip_prefix("n:")?.to_owned(),
        share: share.ok()?,
        demand: demand.ok()?,
    })
}
