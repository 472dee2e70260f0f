//! The store: where it is, and a connection that is made anew when it was lost.

use std::time::Duration;

use redis::{ConnectionLike, FromRedisValue, RedisError, ScriptInvocation};
use thiserror::Error;

/// Why there is no verdict.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The address is none.
    #[error("{address:?} is no address of a store, such as redis://127.0.0.1:6379: {error}")]
    Address {
        /// What was given.
        address: String,
        /// Why it is none.
        error: RedisError,
    },
    /// The crate was built without its feature `tls`.
    #[error("{address:?} wants TLS: build the crate `store` with its feature `tls`")]
    NoTls {
        /// What was given.
        address: String,
    },
    /// It cannot be reached, or did not answer in time.
    #[error("the store at {address} does not answer: {error}")]
    Away {
        /// Where it should be.
        address: String,
        /// What happened.
        error: RedisError,
    },
    /// It answered, but with an error.
    #[error("the store at {address} refuses: {error}")]
    Refused {
        /// Where it is.
        address: String,
        /// What it said.
        error: RedisError,
    },
}

#[derive(Clone)]
enum Client {
    Single(redis::Client),
    #[cfg(feature = "cluster")]
    Cluster(redis::cluster::ClusterClient),
}

/// Where the store is, and how long to wait for it.
#[derive(Clone)]
pub struct Store {
    client: Client,
    address: String,
    timeout: Duration,
}

impl Store {
    /// One Redis or Valkey, such as `redis://:password@127.0.0.1:6379/0` or `unix:///run/redis.sock`; with the feature
    /// `tls` also `rediss://`. Connecting and each question wait for at most `timeout`, in which the name of a host has
    /// to be looked up before.
    ///
    /// # Errors
    ///
    /// When `address` is none.
    pub fn single(address: &str, timeout: Duration) -> Result<Self, StoreError> {
        provide_tls(&[address])?;
        let client = redis::Client::open(address)
            .map_err(|error| StoreError::Address { address: without_password(address), error })?;
        Ok(Self { client: Client::Single(client), address: without_password(address), timeout })
    }

    /// A Redis Cluster, by some of its nodes. A question that is sent on from node to node waits for `timeout` at each of
    /// at most three.
    ///
    /// # Errors
    ///
    /// When one of `addresses` is none.
    #[cfg(feature = "cluster")]
    pub fn cluster(addresses: &[&str], timeout: Duration) -> Result<Self, StoreError> {
        provide_tls(addresses)?;
        let listed = addresses.iter().map(|address| without_password(address)).collect::<Vec<_>>().join(", ");
        let client = redis::cluster::ClusterClientBuilder::new(addresses.iter().copied())
            .connection_timeout(timeout)
            .response_timeout(timeout)
            .retries(2)
            .build()
            .map_err(|error| StoreError::Address { address: listed.clone(), error })?;
        Ok(Self { client: Client::Cluster(client), address: listed, timeout })
    }

    fn connect(&self) -> Result<Box<dyn ConnectionLike + Send>, RedisError> {
        // A timeout of 0 would be none to the system.
        let timeout = self.timeout.max(Duration::from_millis(1));
        match &self.client {
            Client::Single(client) => {
                let connection = client.get_connection_with_timeout(timeout)?;
                connection.set_read_timeout(Some(timeout))?;
                connection.set_write_timeout(Some(timeout))?;
                Ok(Box::new(connection))
            }
            #[cfg(feature = "cluster")]
            Client::Cluster(client) => {
                let connection = client.get_connection()?;
                connection.set_read_timeout(Some(timeout))?;
                connection.set_write_timeout(Some(timeout))?;
                Ok(Box::new(connection))
            }
        }
    }
}

/// Sees that there is TLS for the addresses that want it.
fn provide_tls(addresses: &[&str]) -> Result<(), StoreError> {
    let Some(_address) =
        addresses.iter().find(|address| address.starts_with("rediss:") || address.starts_with("valkeys:"))
    else {
        return Ok(());
    };
    #[cfg(feature = "tls")]
    {
        // Whoever chose one before is right.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Ok(())
    }
    #[cfg(not(feature = "tls"))]
    Err(StoreError::NoTls { address: without_password(_address) })
}

/// An address as it may be told to others.
fn without_password(address: &str) -> String {
    match (address.split_once("://"), address.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, place))) => format!("{scheme}://{place}"),
        _ => address.to_owned(),
    }
}

/// A connection while there is one.
pub(crate) struct Link {
    store: Store,
    connection: Option<Box<dyn ConnectionLike + Send>>,
}

impl Link {
    pub(crate) fn new(store: Store) -> Self {
        Self { store, connection: None }
    }

    /// Calls a script by its digest, and sends it first if the store does not have it.
    pub(crate) fn invoke<T: FromRedisValue>(&mut self, call: &ScriptInvocation<'_>) -> Result<T, StoreError> {
        let away = |error| StoreError::Away { address: self.store.address.clone(), error };
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.store.connect().map_err(away)?,
        };
        match call.invoke(&mut *connection) {
            Ok(answer) => {
                self.connection = Some(connection);
                Ok(answer)
            }
            // The answer may come yet, and would be taken for that to the next question: this connection is over. What
            // was asked is not asked again, since it may have been charged.
            Err(error) if error.is_io_error() || error.is_timeout() || error.is_connection_dropped() => {
                Err(away(error))
            }
            Err(error) => Err(StoreError::Refused { address: self.store.address.clone(), error }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_told() {
        assert_eq!(without_password("redis://user:p@ss@host:1/0"), "redis://host:1/0");
        assert_eq!(without_password("redis://host:1"), "redis://host:1");
        assert_eq!(without_password("host"), "host");
    }

    #[test]
    fn what_is_no_address_is_said_to_be_none() {
        let Err(error) = Store::single("here", Duration::from_secs(1)) else { panic!("taken") };
        assert!(error.to_string().contains("redis://127.0.0.1:6379"), "{error}");
    }
}
