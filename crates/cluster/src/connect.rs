//! Connections to the store: one server, a Cluster, or the master that Sentinels name.
//!
//! Nothing is cached: each connection is opened when it is needed and replaced after an error, so that it reaches a
//! store that has restarted or moved.

use std::sync::Arc;
use std::time::Duration;

use config::policy::Cluster;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo, RedisError, TlsCertificates, TlsMode, Value,
};

use super::error::StoreError;

/// The largest file of authorities: a system's has some 220 KiB.
const LONGEST_AUTHORITIES: u64 = 4 << 20;

/// A connection. Clones share it and send requests concurrently.
#[derive(Clone)]
pub enum Connection {
    /// One server, and its identity.
    One(MultiplexedConnection, Option<Arc<str>>),
    /// The nodes of a Cluster.
    Many(ClusterConnection),
}

impl Connection {
    pub(super) async fn query(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        match self {
            Self::One(connection, _) => connection.req_packed_command(command).await,
            Self::Many(connection) => connection.req_packed_command(command).await,
        }
        .and_then(Value::extract_error)
    }

    /// Whether an error affects all requests on it. The nodes of a Cluster fail separately.
    pub(super) const fn is_one(&self) -> bool {
        matches!(self, Self::One(..))
    }

    /// The server's identity: its `run_id`, and `master_replid`, which changes at a promotion. `None` for the nodes of a
    /// Cluster, and for a server that does not report them.
    pub(super) fn server(&self) -> Option<&Arc<str>> {
        match self {
            Self::One(_, server) => server.as_ref(),
            Self::Many(_) => None,
        }
    }
}

/// How long connecting takes at most, and a request.
#[derive(Clone, Copy)]
pub(super) struct Timeouts {
    pub connect: Duration,
    pub request: Duration,
}

/// Connects.
pub(super) async fn connect(
    cluster: &Cluster,
    timeouts: Timeouts,
) -> Result<Connection, StoreError> {
    let certificates = match &cluster.authorities {
        None => None,
        Some(path) => {
            let read = host::read::read(path, LONGEST_AUTHORITIES)
                .map_err(|error| StoreError::Authorities(Arc::new(error)))?;
            Some(TlsCertificates {
                client_tls: None,
                root_cert: Some(read),
            })
        }
    };
    let open = tokio::time::timeout(timeouts.connect, open(cluster, timeouts, certificates));
    open.await
        .map_err(|_| StoreError::Slow(timeouts.connect))?
        .map_err(|error| StoreError::of(cluster, &error))
}

async fn open(
    cluster: &Cluster,
    timeouts: Timeouts,
    certificates: Option<TlsCertificates>,
) -> Result<Connection, RedisError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(timeouts.connect))
        .set_response_timeout(Some(timeouts.request));
    let urls: Vec<&str> = cluster.store.iter().map(|url| url.reveal()).collect();
    let Some(first) = urls.first() else {
        return Err(RedisError::from((
            ErrorKind::InvalidClientConfig,
            "no store is configured",
        )));
    };
    if let Some(master) = &cluster.sentinel {
        let mut sentinels = sentinels(&urls, master, certificates)?;
        let mut connection = sentinels.get_async_connection_with_config(&config).await?;
        let server = server(&info(&mut connection).await);
        return Ok(Connection::One(connection, server));
    }
    if urls.len() == 1 {
        let client = match &certificates {
            Some(certificates) if first.starts_with("rediss://") => {
                Client::build_with_tls(*first, certificates.clone())?
            }
            _ => Client::open(*first)?,
        };
        let mut connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        let info = info(&mut connection).await;
        if !info.contains("cluster_enabled:1") {
            return Ok(Connection::One(connection, server(&info)));
        }
    }
    let mut builder = ClusterClientBuilder::new(urls)
        .connection_timeout(timeouts.connect)
        .response_timeout(timeouts.request)
        .retries(1);
    if let Some(certificates) = certificates {
        builder = builder.certs(certificates);
    }
    Ok(Connection::Many(
        builder.build()?.get_async_connection().await?,
    ))
}

/// The server's report about itself. One that refuses it counts as a single, unknown server.
async fn info(connection: &mut MultiplexedConnection) -> String {
    let info: Result<String, RedisError> = redis::cmd("INFO").query_async(connection).await;
    info.unwrap_or_default()
}

fn server(info: &str) -> Option<Arc<str>> {
    let value = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
    let (run, history) = (value("run_id:")?, value("master_replid:")?);
    Some(format!("{run} {history}").into())
}

/// Sentinels, and the master with the same credentials.
fn sentinels(
    urls: &[&str],
    master: &str,
    certificates: Option<TlsCertificates>,
) -> Result<SentinelClient, RedisError> {
    let all: Vec<ConnectionInfo> = urls
        .iter()
        .map(|url| url.into_connection_info())
        .collect::<Result<_, _>>()?;
    let addresses: Vec<ConnectionAddr> = all.iter().map(|info| info.addr().clone()).collect();
    let mut builder = SentinelClientBuilder::new(addresses, master, SentinelServerType::Master)?;
    if let Some(first) = all.first() {
        if let Some(user) = first.redis_settings().username() {
            builder = builder
                .set_client_to_redis_username(user)
                .set_client_to_sentinel_username(user);
        }
        if let Some(password) = first.redis_settings().password() {
            builder = builder
                .set_client_to_redis_password(password)
                .set_client_to_sentinel_password(password);
        }
        builder = builder.set_client_to_redis_db(first.redis_settings().db());
        if matches!(first.addr(), ConnectionAddr::TcpTls { .. }) {
            builder = builder
                .set_client_to_redis_tls_mode(TlsMode::Secure)
                .set_client_to_sentinel_tls_mode(TlsMode::Secure);
            if let Some(certificates) = certificates {
                builder = builder
                    .set_client_to_redis_certificates(certificates.clone())
                    .set_client_to_sentinel_certificates(certificates);
            }
        }
    }
    builder.build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promoted_or_restarted_server_is_another_one() {
        let report = |run: &str, history: &str| {
            format!(
                "# Server\r\nredis_version:7.0.15\r\nrun_id:{run}\r\n# Replication\r\nrole:master\r\n\
                 master_replid:{history}\r\nmaster_replid2:0\r\n"
            )
        };
        let first = server(&report("a", "1"));
        assert_eq!(first.as_deref(), Some("a 1"));
        assert_eq!(first, server(&report("a", "1")));
        assert_ne!(first, server(&report("b", "1")), "restarted");
        assert_ne!(first, server(&report("a", "2")), "promoted");
        assert_eq!(server(""), None, "a server that reports nothing");
    }
}
