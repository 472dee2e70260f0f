//! The servers around an engine, on threads of their own: a decision never waits for what else the agent does.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::{Builder, Runtime};

use super::http::{self, Listener};
use super::{Current, Engine, Now, grpc};
use crate::config::policy::{Decide, Endpoint};

/// Threads that answer.
const MOST_THREADS: usize = 4;
/// How often what has decayed is forgotten.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// The unix socket is for the owner and the group, as the control socket is.
const MODE: u32 = 0o660;

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
    socket: Option<PathBuf>,
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
                        let listener = listen_unix(path).map_err(fail)?;
                        service.socket = Some(path.clone());
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

    /// Has another engine decide from now on; what is being decided is decided by the one before.
    pub fn replace(&self, engine: Engine) {
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
        if let Some(socket) = &self.socket {
            // If it is gone already, somebody else has tidied up.
            let _ = fs::remove_file(socket);
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok((TcpListener::from_std(listener)?, address))
}

/// Listens at `path`, in place of a socket that nobody answers on any more.
fn listen_unix(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AddrInUse, "somebody answers there")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)?,
        Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(MODE))?;
    Ok(listener)
}
