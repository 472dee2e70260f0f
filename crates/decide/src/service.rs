//! The servers of an engine, on separate threads: decisions never wait for the agent's other work.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use config::policy::{Decide, Endpoint};
use fair::Loads;
use host::unix_socket::{self, SocketFile};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use super::build::Moves;
use super::engine::{Current, Engine, Now};
use super::engine_handle::EngineHandle;
use super::grpc;
use super::http::{self, Listener};

/// Threads that serve requests.
const MOST_THREADS: usize = 4;
/// The interval at which decayed keys are removed.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// The time for sending replies to waiting requests when the agent stops.
const CLOSE_GRACE_PERIOD: Duration = Duration::from_millis(100);

/// A server that cannot be started.
#[derive(Debug, Error)]
pub enum ServiceError {
    /// The system has no threads.
    #[error("starting the threads that serve applications failed: {0}")]
    Threads(io::Error),
    /// The address is in use.
    #[error("listening on {endpoint} for applications ([decide] {key}) failed: {source}")]
    Listen {
        /// The key of the config.
        key: &'static str,
        /// The address as text.
        endpoint: String,
        source: io::Error,
    },
}

/// Running servers; dropping this stops them.
pub struct Service {
    handle: EngineHandle,
    loads: Arc<Loads>,
    http: Option<Endpoint>,
    grpc: Option<SocketAddr>,
    /// Whether requests are processed.
    serves: watch::Sender<bool>,
    /// Removed when this is dropped.
    socket: Option<SocketFile>,
    runtime: Option<Runtime>,
}

impl Service {
    /// Listens on the configured addresses and serves requests.
    ///
    /// # Errors
    ///
    /// When it cannot listen on an address.
    pub fn start(config: &Decide, engine: Engine, now: Now) -> Result<Self, ServiceError> {
        let service = Self::listen(config, engine, now)?;
        service.serve();
        Ok(service)
    }

    /// Listens on the configured addresses. Requests wait until [`Self::serve`].
    ///
    /// # Errors
    ///
    /// When it cannot listen on an address.
    pub fn listen(config: &Decide, engine: Engine, now: Now) -> Result<Self, ServiceError> {
        let (serves, begun) = watch::channel(false);
        let mut service = Self {
            handle: EngineHandle::new(Arc::new(Current::from_pointee(engine)), now),
            loads: Arc::default(),
            http: None,
            grpc: None,
            serves,
            socket: None,
            runtime: None,
        };
        if !config.has_questions() {
            return Ok(service);
        }
        let count = std::thread::available_parallelism()
            .map_or(1, usize::from)
            .min(MOST_THREADS);
        let runtime = Builder::new_multi_thread()
            .worker_threads(count)
            .thread_name("weir-decide")
            .enable_all()
            .build()
            .map_err(ServiceError::Threads)?;
        let threads = runtime.handle().clone();
        // From here on, dropping the service ends the runtime without waiting, also after an error below.
        service.runtime = Some(runtime);
        {
            let _inside = threads.enter();
            if let Some(endpoint) = &config.http {
                let fail = |source| ServiceError::Listen {
                    key: "http",
                    endpoint: endpoint.to_string(),
                    source,
                };
                let (listener, at) = match endpoint {
                    Endpoint::Tcp(address) => {
                        let (listener, address) = listen("http", *address).map_err(fail)?;
                        (Listener::Tcp(listener), Endpoint::Tcp(address))
                    }
                    Endpoint::Unix(path) => {
                        let (listener, socket) = unix_socket::listen(path)
                            .map_err(io::Error::from)
                            .map_err(fail)?;
                        service.socket = Some(socket);
                        (Listener::Unix(listener), endpoint.clone())
                    }
                };
                service.http = Some(at);
                let loads = Arc::clone(&service.loads);
                let server = http::serve(listener, service.handle.clone(), loads);
                threads.spawn(after(begun.clone(), server));
            }
            if let Some(address) = config.grpc {
                let fail = |source| ServiceError::Listen {
                    key: "grpc",
                    endpoint: address.to_string(),
                    source,
                };
                let (listener, address) = listen("grpc", address).map_err(fail)?;
                service.grpc = Some(address);
                let server = grpc::serve(listener, service.handle.clone());
                threads.spawn(after(begun, server));
            }
            threads.spawn(expire(service.handle.clone()));
            let handle = service.handle.clone();
            threads.spawn(async move {
                loop {
                    tokio::time::sleep(SWEEP_EVERY).await;
                    handle.engine().sweep(handle.now());
                }
            });
        }
        Ok(service)
    }

    /// Processes requests from now on.
    pub fn serve(&self) {
        self.serves.send_replace(true);
    }

    /// Refuses all waiting requests and sends their replies, before the agent stops.
    pub fn close(&self) {
        let engine = self.engine();
        if engine.waiting().close(&engine, self.now()) > 0 {
            std::thread::sleep(CLOSE_GRACE_PERIOD);
        }
    }

    /// The current engine.
    #[must_use]
    pub fn engine(&self) -> Arc<Engine> {
        self.handle.current().load_full()
    }

    /// Replaces the engine. Decisions that the previous one still makes are charged in the new one.
    pub fn replace(&self, engine: Engine, moves: Moves) {
        moves.carry_out(self.now());
        let waiting = Arc::clone(engine.waiting());
        waiting.replace(self.handle.current(), engine, self.now());
    }

    /// The loads that services report.
    #[must_use]
    pub const fn loads(&self) -> &Arc<Loads> {
        &self.loads
    }

    /// Whether servers run: only a config with limits on requests, or with loads, starts them.
    #[must_use]
    pub const fn is_listening(&self) -> bool {
        self.runtime.is_some()
    }

    /// The slot that has the current engine.
    #[must_use]
    pub fn current(&self) -> Arc<Current> {
        Arc::clone(self.handle.current())
    }

    #[must_use]
    pub const fn handle(&self) -> &EngineHandle {
        &self.handle
    }

    /// The instant for decisions, in nanoseconds.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.handle.now()
    }

    /// The addresses as text.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        let http = self
            .http
            .iter()
            .map(|endpoint| format!("over HTTP on {endpoint}"));
        http.chain(
            self.grpc
                .iter()
                .map(|address| format!("over gRPC on {address}")),
        )
        .collect()
    }

    /// The address for HTTP; with a configured port 0, the one that the system chose.
    #[must_use]
    pub fn http(&self) -> Option<&Endpoint> {
        self.http.as_ref()
    }

    /// The address for gRPC.
    #[must_use]
    pub fn grpc(&self) -> Option<SocketAddr> {
        self.grpc
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.close();
        if let Some(runtime) = self.runtime.take() {
            // Replies in progress are dropped: the agent stops.
            runtime.shutdown_background();
        }
    }
}

/// Runs a server once requests are processed.
async fn after(mut begun: watch::Receiver<bool>, server: impl Future<Output = ()>) {
    if begun.wait_for(|begun| *begun).await.is_ok() {
        server.await;
    }
}

/// Settles reservations when their time is over.
async fn expire(handle: EngineHandle) {
    let reservations = handle.engine().reservations();
    loop {
        let due = reservations.next_due();
        let changed = reservations.changed.notified();
        if due == u64::MAX {
            changed.await;
            continue;
        }
        let time = Duration::from_nanos(due.saturating_sub(handle.now()));
        tokio::select! {
            () = tokio::time::sleep(time) => handle.engine().expire(handle.now()),
            () = changed => {}
        }
    }
}

fn listen(key: &str, address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let host::Listener { socket, is_present } = host::Listener::bind(address)?;
    if !is_present {
        tracing::warn!(
            "[decide] {key}: {} is not an address of this host yet: no client reaches it until then",
            address.ip()
        );
    }
    socket.set_nonblocking(true)?;
    let address = socket.local_addr()?;
    Ok((TcpListener::from_std(socket)?, address))
}
