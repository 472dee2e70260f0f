//! The store: Redis or Valkey, one server, a Cluster, or what Sentinels call the master.
//!
//! Nothing is kept here but a connection. It is made when it is needed, and made anew after an error, so that a store
//! that was away, or is another server now, is found again.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, RedisError,
    ServerErrorKind, TlsCertificates, TlsMode, Value,
};
use thiserror::Error;

use super::ledger::{Grant, Report};
use crate::config::policy::Cluster;

/// Connecting may take so many times as long as an answer.
const CONNECTING: u32 = 3;

/// What the store runs.
pub const SCRIPT: &str = include_str!("lease.lua");

/// A store that does not answer as it should.
#[derive(Debug, Error)]
pub enum StoreError {
    /// It does not answer in time.
    #[error("no answer within {} ms", .0.as_millis())]
    Slow(Duration),
    /// It cannot be reached, or it refused.
    #[error("{0}")]
    Refused(String),
    /// A file of authorities cannot be read.
    #[error("reading [cluster] authorities {} failed: {error}", path.display())]
    Authorities {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Its answer is none of the script's.
    #[error("an answer that is none of Weir's: {0}")]
    Foreign(String),
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

#[derive(Clone)]
enum Connection {
    One(MultiplexedConnection),
    Many(ClusterConnection),
}

impl Connection {
    async fn query(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        match self {
            Self::One(connection) => connection.req_packed_command(command).await,
            Self::Many(connection) => connection.req_packed_command(command).await,
        }
        .and_then(Value::extract_error)
    }
}

/// How to get to the store, and the way there while there is one.
pub struct Store {
    cluster: Cluster,
    patience: Duration,
    digest: String,
    connection: Option<Connection>,
}

impl Store {
    /// For a config; nothing is connected yet. No answer is waited for longer than `patience`.
    #[must_use]
    pub fn new(cluster: Cluster, patience: Duration) -> Self {
        // The library may be built with several providers of cryptography; one has to be named, once a process.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let digest = redis::Script::new(SCRIPT).get_hash().to_owned();
        Self { cluster, patience, digest, connection: None }
    }

    /// Forgets the way to the store: the next request finds it anew.
    pub fn disconnect(&mut self) {
        self.connection = None;
    }

    /// Asks for the shares of some limits, all at the same time, each by its name. An older request that a later one
    /// has overtaken is answered with `None`.
    ///
    /// # Errors
    ///
    /// When the store cannot be reached, or one of the requests failed.
    pub async fn lease(&mut self, reports: &[(String, Report)]) -> Result<Vec<Option<Grant>>, StoreError> {
        let patience = self.patience;
        let connection = self.connect().await?;
        let ask = self.lease_all(connection, reports);
        tokio::time::timeout(patience, ask).await.unwrap_or(Err(StoreError::Slow(patience)))
    }

    async fn lease_all(
        &mut self,
        connection: Connection,
        reports: &[(String, Report)],
    ) -> Result<Vec<Option<Grant>>, StoreError> {
        let ask = |(limit, report): &(String, Report)| {
            let (mut connection, digest) = (connection.clone(), self.digest.clone());
            let keys = self.keys(limit);
            let report = report.clone();
            async move { run(&mut connection, &digest, &keys, &report).await }
        };
        let asked: Vec<_> = reports.iter().map(ask).map(tokio::spawn).collect();
        let mut grants = Vec::with_capacity(asked.len());
        for answer in asked {
            let answer = answer.await.map_err(|error| StoreError::Refused(error.to_string()))?;
            match answer {
                Ok(values) => grants.push(grant(&values)?),
                Err(error) => return Err(self.failed(&error)),
            }
        }
        Ok(grants)
    }

    /// Every host of a limit, as the ledger has it.
    ///
    /// # Errors
    ///
    /// When the store cannot be reached, or refuses.
    pub async fn hosts(&mut self, limit: &str) -> Result<Vec<HostShare>, StoreError> {
        let patience = self.patience;
        let mut connection = self.connect().await?;
        let ask = async {
            let [ledger, _] = self.keys(limit);
            let answer = connection.query(redis::cmd("HGETALL").arg(ledger)).await;
            let entries: BTreeMap<String, String> =
                answer.and_then(|value| Ok(redis::from_redis_value(value)?)).map_err(|error| self.failed(&error))?;
            Ok(entries.iter().filter_map(|(field, entry)| host_share(field, entry)).collect())
        };
        tokio::time::timeout(patience, ask).await.unwrap_or(Err(StoreError::Slow(patience)))
    }

    /// A limit's ledger and when its leases end. The braces keep the two on one node of a Cluster.
    fn keys(&self, limit: &str) -> [String; 2] {
        let tag = format!("weir:{{{}/{limit}}}", self.cluster.name);
        [format!("{tag}:ledger"), format!("{tag}:ends")]
    }

    fn failed(&mut self, error: &RedisError) -> StoreError {
        // A server that says no is there; anything else may be another server by now, or none.
        let says_no = matches!(error.kind(), ErrorKind::Server(kind) if kind != ServerErrorKind::ReadOnly);
        if !says_no {
            self.connection = None;
        }
        self.refused(error)
    }

    fn refused(&self, error: &RedisError) -> StoreError {
        let mut text = error.to_string();
        for url in &self.cluster.store {
            let address = url.reveal().split_once("://").map_or("", |(_, rest)| rest);
            if let Some((credentials, _)) = address.rsplit_once('@') {
                for secret in credentials.splitn(2, ':').chain([credentials]).filter(|secret| !secret.is_empty()) {
                    text = text.replace(secret, "*");
                }
            }
        }
        StoreError::Refused(text)
    }

    async fn connect(&mut self) -> Result<Connection, StoreError> {
        if let Some(connection) = &self.connection {
            return Ok(connection.clone());
        }
        let certificates = match &self.cluster.authorities {
            None => None,
            Some(path) => {
                let read = fs::read(path).map_err(|error| StoreError::Authorities { path: path.clone(), error })?;
                Some(TlsCertificates { client_tls: None, root_cert: Some(read) })
            }
        };
        // Names, certificates and the ways of a Cluster take longer than an answer; nobody waits for it but this.
        let patience = CONNECTING * self.patience;
        let open = tokio::time::timeout(patience, self.open(certificates));
        let connection = open.await.map_err(|_| StoreError::Slow(patience))?.map_err(|error| self.refused(&error))?;
        self.connection = Some(connection.clone());
        Ok(connection)
    }

    async fn open(&self, certificates: Option<TlsCertificates>) -> Result<Connection, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECTING * self.patience))
            .set_response_timeout(Some(self.patience));
        let urls: Vec<&str> = self.cluster.store.iter().map(|url| url.reveal()).collect();
        let Some(first) = urls.first() else {
            return Err(RedisError::from((ErrorKind::InvalidClientConfig, "there is no store")));
        };
        if let Some(master) = &self.cluster.sentinel {
            let mut sentinels = sentinels(&urls, master, certificates)?;
            let connection = sentinels.get_async_connection_with_config(&config).await?;
            return Ok(Connection::One(connection));
        }
        if urls.len() == 1 {
            let client = match &certificates {
                Some(certificates) if first.starts_with("rediss://") => {
                    Client::build_with_tls(*first, certificates.clone())?
                }
                _ => Client::open(*first)?,
            };
            let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
            if !is_cluster(&mut connection).await {
                return Ok(Connection::One(connection));
            }
        }
        let mut builder = ClusterClientBuilder::new(urls)
            .connection_timeout(CONNECTING * self.patience)
            .response_timeout(self.patience)
            .retries(1);
        if let Some(certificates) = certificates {
            builder = builder.certs(certificates);
        }
        Ok(Connection::Many(builder.build()?.get_async_connection().await?))
    }
}

/// Whether a server is a node of a Cluster. One that will not tell is taken for a server by itself.
async fn is_cluster(connection: &mut MultiplexedConnection) -> bool {
    let told: Result<String, RedisError> = redis::cmd("INFO").arg("cluster").query_async(connection).await;
    told.is_ok_and(|told| told.contains("cluster_enabled:1"))
}

/// Sentinels, and the master by the same credentials as they have.
fn sentinels(urls: &[&str], master: &str, certificates: Option<TlsCertificates>) -> Result<SentinelClient, RedisError> {
    let all: Vec<ConnectionInfo> = urls.iter().map(|url| url.into_connection_info()).collect::<Result<_, _>>()?;
    let addresses: Vec<ConnectionAddr> = all.iter().map(|info| info.addr().clone()).collect();
    let mut builder = SentinelClientBuilder::new(addresses, master, SentinelServerType::Master)?;
    if let Some(first) = all.first() {
        if let Some(user) = first.redis_settings().username() {
            builder = builder.set_client_to_redis_username(user).set_client_to_sentinel_username(user);
        }
        if let Some(password) = first.redis_settings().password() {
            builder = builder.set_client_to_redis_password(password).set_client_to_sentinel_password(password);
        }
        builder = builder.set_client_to_redis_db(first.redis_settings().db());
        if matches!(first.addr(), ConnectionAddr::TcpTls { .. }) {
            builder =
                builder.set_client_to_redis_tls_mode(TlsMode::Secure).set_client_to_sentinel_tls_mode(TlsMode::Secure);
            if let Some(certificates) = certificates {
                builder = builder
                    .set_client_to_redis_certificates(certificates.clone())
                    .set_client_to_sentinel_certificates(certificates);
            }
        }
    }
    builder.build()
}

async fn run(
    connection: &mut Connection,
    digest: &str,
    keys: &[String; 2],
    report: &Report,
) -> Result<Vec<i64>, RedisError> {
    let command = |name: &str, script: &str| {
        let mut command = redis::cmd(name);
        command.arg(script).arg(keys.len()).arg(keys.as_slice()).arg(&report.host);
        let numbers = [report.sequence, report.applied, report.demand, report.units, report.lease, report.epoch];
        command.arg(&numbers[..]).arg(u8::from(report.leaves));
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
        [share, hosts, epoch, is_quiet, held, demand, target, _] => {
            Ok(Some(Grant { share, hosts, epoch, is_quiet: is_quiet != 0, held, demand, target }))
        }
        _ => Err(StoreError::Foreign(format!("{values:?}"))),
    }
}

fn host_share(field: &str, entry: &str) -> Option<HostShare> {
    let mut numbers = entry.split(' ').map(str::parse);
    let (_, demand, _, share) = (numbers.next()?, numbers.next()?, numbers.next()?, numbers.next()?);
    Some(HostShare { host: field.strip_prefix("n:")?.to_owned(), share: share.ok()?, demand: demand.ok()? })
}
