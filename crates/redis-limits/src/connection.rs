//! The store's address, and a connection that is renewed after errors.

use std::time::Duration;

use redis::{FromRedisValue, RedisError, ScriptInvocation};
use thiserror::Error;

#[cfg(feature = "cluster")]
use crate::redirection;

/// Why a call returned no verdict.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The address is invalid.
    #[error("invalid store address {address:?}: {error}; write it like redis://127.0.0.1:6379")]
    Address { address: String, error: RedisError },
    /// The crate was built without its feature `tls`.
    #[error(
        "the store address {address:?} requires TLS: build the crate `redis-limits` with its feature `tls`"
    )]
    NoTls { address: String },
    /// The store is unreachable or did not reply in time.
    #[error("the store at {address} is unavailable: {error}")]
    Away {
        /// The store's address.
        address: String,
        error: RedisError,
    },
    /// The store replied with an error.
    #[error("the store at {address} refused the request: {error}")]
    Refused {
        /// The store's address.
        address: String,
        /// The error that the store reported.
        error: RedisError,
    },
}

#[derive(Clone)]
enum Client {
    Single(redis::Client),
    #[cfg(feature = "cluster")]
    Cluster(redis::cluster::ClusterClient),
}

/// The store's address and timeout.
#[derive(Clone)]
pub struct Store {
    client: Client,
    address: String,
    timeout: Duration,
}

impl Store {
    /// One Redis or Valkey, such as `redis://:password@127.0.0.1:6379/0` or `unix:///run/redis.sock`; with the feature
    /// `tls` also `rediss://`. `timeout` applies to connecting, including name resolution, and to each call.
    ///
    /// # Errors
    ///
    /// When `address` is invalid.
    pub fn single(address: &str, timeout: Duration) -> Result<Self, StoreError> {
        provide_tls(&[address])?;
        let client = redis::Client::open(address).map_err(|error| StoreError::Address {
            address: without_password(address),
            error,
        })?;
        Ok(Self {
            client: Client::Single(client),
            address: without_password(address),
            timeout,
        })
    }

    /// A Redis Cluster, by some of its nodes. A call that is redirected waits up to `timeout` for each of at most three
    /// nodes.
    ///
    /// # Errors
    ///
    /// When one of `addresses` is invalid.
    #[cfg(feature = "cluster")]
    pub fn cluster(addresses: &[&str], timeout: Duration) -> Result<Self, StoreError> {
        provide_tls(addresses)?;
        let listed = addresses
            .iter()
            .map(|address| without_password(address))
            .collect::<Vec<_>>()
            .join(", ");
        let client = redis::cluster::ClusterClientBuilder::new(addresses.iter().copied())
            .connection_timeout(timeout)
            .response_timeout(timeout)
            // A repeated call may be charged twice. `redirection` repeats calls that no node has run.
            .retries(0)
            .build()
            .map_err(|error| StoreError::Address {
                address: listed.clone(),
                error,
            })?;
        Ok(Self {
            client: Client::Cluster(client),
            address: listed,
            timeout,
        })
    }

    fn connect(&self) -> Result<Connection, RedisError> {
        // A timeout of 0 would be none to the system.
        let timeout = self.timeout.max(Duration::from_millis(1));
        match &self.client {
            Client::Single(client) => {
                let connection = client.get_connection_with_timeout(timeout)?;
                connection.set_read_timeout(Some(timeout))?;
                connection.set_write_timeout(Some(timeout))?;
                Ok(Connection::Single(connection))
            }
            #[cfg(feature = "cluster")]
            Client::Cluster(client) => {
                let connection = client.get_connection()?;
                connection.set_read_timeout(Some(timeout))?;
                connection.set_write_timeout(Some(timeout))?;
                Ok(Connection::Cluster(Box::new(connection)))
            }
        }
    }
}

/// Checks that TLS is available for addresses that require it.
fn provide_tls(addresses: &[&str]) -> Result<(), StoreError> {
    let Some(_address) = addresses
        .iter()
        .find(|address| address.starts_with("rediss:") || address.starts_with("valkeys:"))
    else {
        return Ok(());
    };
    #[cfg(feature = "tls")]
    {
        // An existing provider stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Ok(())
    }
    #[cfg(not(feature = "tls"))]
    Err(StoreError::NoTls {
        address: without_password(_address),
    })
}

/// The address without its password, for messages.
fn without_password(address: &str) -> String {
    match (address.split_once("://"), address.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, place))) => format!("{scheme}://{place}"),
        _ => address.to_owned(),
    }
}

enum Connection {
    Single(redis::Connection),
    #[cfg(feature = "cluster")]
    Cluster(Box<redis::cluster::ClusterConnection>),
}

impl Connection {
    /// The script's result, and whether the connection stays valid for the next call.
    fn invoke<T: FromRedisValue>(
        &mut self,
        call: &ScriptInvocation<'_>,
    ) -> Result<(T, bool), RedisError> {
        match self {
            Self::Single(connection) => Ok((call.invoke(connection)?, true)),
            #[cfg(feature = "cluster")]
            Self::Cluster(connection) => redirection::invoke(connection, call),
        }
    }
}

/// A connection, renewed after it was lost.
pub(crate) struct Link {
    store: Store,
    connection: Option<Connection>,
}

impl Link {
    pub(crate) fn new(store: Store) -> Self {
        Self {
            store,
            connection: None,
        }
    }

    /// Calls a script by its digest, and loads it first if the store does not have it.
    pub(crate) fn invoke<T: FromRedisValue>(
        &mut self,
        call: &ScriptInvocation<'_>,
    ) -> Result<T, StoreError> {
        let away = |error| StoreError::Away {
            address: self.store.address.clone(),
            error,
        };
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.store.connect().map_err(away)?,
        };
        match connection.invoke(call) {
            Ok((answer, is_valid)) => {
                self.connection = Some(connection).filter(|_| is_valid);
                Ok(answer)
            }
            // The reply may still arrive and would be taken for the next call's: close this connection. The call is not
            // repeated, since it may have been charged.
            Err(error)
                if error.is_io_error() || error.is_timeout() || error.is_connection_dropped() =>
            {
                Err(away(error))
            }
            Err(error) => Err(StoreError::Refused {
                address: self.store.address.clone(),
                error,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_error_has_the_password() {
        assert_eq!(
            without_password("redis://user:p@ss@host:1/0"),
            "redis://host:1/0"
        );
        assert_eq!(without_password("redis://host:1"), "redis://host:1");
        assert_eq!(without_password("host"), "host");
    }

    #[test]
    fn invalid_addresses_are_errors() {
        let Err(error) = Store::single("here", Duration::from_secs(1)) else {
            panic!("taken")
        };
        assert!(
            error.to_string().contains("redis://127.0.0.1:6379"),
            "{error}"
        );
    }
}
