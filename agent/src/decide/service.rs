//! The servers around an engine, on threads of their own: a decision never waits for what else the agent does.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use super::http::{self, Listener};
use super::{Current, Engine, Moves, Now, grpc};
use crate::config::policy::{Decide, Endpoint};
use crate::unix_socket::{self, SocketFile};

/// Threads that answer.
const MOST_THREADS: usize = 4;
/// How often what has decayed is forgotten.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// A server that cannot be had.
#[derive(Debug, Error)]
pub enum ServiceError {
    /// The system has no threads to give.
    #[error("starting the threads that answer applications failed: {0}")]
    Threads(io::Error),
    /// The address is taken, or not ours.
    #[error("listening on {endpoint} for applications ([decide] {key}) failed: {source}")]
    Listen {
        /// Which key of the config.
        key: &'static str,
        /// Where.
        endpoint: String,
        /// Why.
        source: io::Error,
    },
}

/// Servers at work, until this is dropped.
pub struct Service {
    engine: Arc<Current>,
    now: Now,
    http: Option<Endpoint>,
    grpc: Option<SocketAddr>,
    /// Removed with the service.
    socket: Option<SocketFile>,
    runtime: Option<Runtime>,
}

impl Service {
    /// Listens where the config says, and answers from then on.
    ///
    /// # Errors
    ///
    /// When it cannot listen there.
    pub fn start(config: &Decide, engine: Engine, now: Now) -> Result<Self, ServiceError> {
        let mut service = Self {
            engine: Arc::new(Current::from_pointee(engine)),
            now,
            http: None,
            grpc: None,
            socket: None,
            runtime: None,
        };
        if config.limits.is_empty() {
            return Ok(service);
        }
        let count = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
        let runtime = Builder::new_multi_thread()
            .worker_threads(count)
            .thread_name("weir-decide")
            .enable_all()
            .build()
            .map_err(ServiceError::Threads)?;
        let threads = runtime.handle().clone();
        // From here on it ends with the service, without waiting, also when something below fails.
        service.runtime = Some(runtime);
        {
            let _inside = threads.enter();
            if let Some(endpoint) = &config.http {
                let fail = |source| ServiceError::Listen { key: "http", endpoint: endpoint.to_string(), source };
                let (listener, at) = match endpoint {
                    Endpoint::Tcp(address) => {
                        let (listener, address) = listen(*address).map_err(fail)?;
                        (Listener::Tcp(listener), Endpoint::Tcp(address))
                    }
                    Endpoint::Unix(path) => {
                        let (listener, socket) = unix_socket::listen(path).map_err(io::Error::from).map_err(fail)?;
                        service.socket = Some(socket);
                        (Listener::Unix(listener), endpoint.clone())
                    }
                };
                service.http = Some(at);
                threads.spawn(http::serve(listener, Arc::clone(&service.engine), now));
            }
            if let Some(address) = config.grpc {
                let fail = |source| ServiceError::Listen { key: "grpc", endpoint: address.to_string(), source };
                let (listener, address) = listen(address).map_err(fail)?;
                service.grpc = Some(address);
                threads.spawn(grpc::serve(listener, Arc::clone(&service.engine), now));
            }
            let engine = Arc::clone(&service.engine);
            threads.spawn(async move {
                loop {
                    tokio::time::sleep(SWEEP_EVERY).await;
                    engine.load().sweep(now());
                }
            });
        }
        Ok(service)
    }

    /// What decides.
    #[must_use]
    pub fn engine(&self) -> Arc<Engine> {
        self.engine.load_full()
    }

    /// Has another engine decide from now on. What the one before still decides is charged in this one.
    pub fn replace(&self, engine: Engine, moves: Moves) {
        moves.carry_out(self.now());
        self.engine.store(Arc::new(engine));
    }

    /// Whether applications can be answered: servers are started only for a config that has limits on requests.
    #[must_use]
    pub const fn is_listening(&self) -> bool {
        self.runtime.is_some()
    }

    /// What decides at each moment, for keeping.
    #[must_use]
    pub fn current(&self) -> Arc<Current> {
        Arc::clone(&self.engine)
    }

    /// The instant that decisions are made at.
    #[must_use]
    pub fn now(&self) -> u64 {
        (self.now)()
    }

    /// Where applications are answered, in words.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        let http = self.http.iter().map(|endpoint| format!("over HTTP on {endpoint}"));
        http.chain(self.grpc.iter().map(|address| format!("over gRPC on {address}"))).collect()
    }

    /// Where HTTP is answered; the port is the one that the system chose if the config has 0.
    #[must_use]
    pub fn http(&self) -> Option<&Endpoint> {
        self.http.as_ref()
    }

    /// Where gRPC is answered.
    #[must_use]
    pub fn grpc(&self) -> Option<SocketAddr> {
        self.grpc
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // What is being answered is answered by nobody any more: the agent is going.
            runtime.shutdown_background();
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok((TcpListener::from_std(listener)?, address))
}
