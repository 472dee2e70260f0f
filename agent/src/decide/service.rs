//! The servers around an engine, on threads of their own: a decision never waits for what else the agent does.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use super::http::{self, Listener};
use super::question::{DecideError, Question};
use super::waiting::Decision;
use super::{Current, Engine, Moves, Now, grpc};
use crate::config::policy::{Decide, Endpoint};
use crate::unix_socket::{self, SocketFile};

/// Threads that answer.
const MOST_THREADS: usize = 4;
/// How often what has decayed is forgotten.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// How long the answers to those who waited may take to be sent when the agent ends.
const LAST_WORDS: Duration = Duration::from_millis(100);

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

/// Where questions are asked: the engine of this moment and its clock.
#[derive(Clone)]
pub struct Desk {
    current: Arc<Current>,
    now: Now,
}

impl Desk {
    /// For an engine, which another may take the place of.
    #[must_use]
    pub const fn new(current: Arc<Current>, now: Now) -> Self {
        Self { current, now }
    }

    /// Decides on a question. One that is refused and has a `wait` waits in line; drop the decision to leave it.
    ///
    /// # Errors
    ///
    /// When it cannot be understood; nothing is charged then.
    pub fn ask(&self, question: &Question) -> Result<Decision, DecideError> {
        let Some(first) = self.ask_each(std::slice::from_ref(question)).map_err(|(_, error)| error)?.pop() else {
            return Err(DecideError::Ending);
        };
        Ok(first)
    }

    /// Decides on many questions, each for itself.
    ///
    /// # Errors
    ///
    /// With the first that cannot be understood and its place; none is charged then.
    pub fn ask_each(&self, questions: &[Question]) -> Result<Vec<Decision>, (usize, DecideError)> {
        let engine = self.engine();
        if questions.iter().any(|question| question.wait.is_some()) {
            return engine.waiting().decide(&self.current, questions, self.now);
        }
        let answers = engine.decide_each(questions, (self.now)())?;
        Ok(answers.into_iter().map(Decision::Made).collect())
    }

    /// What decides at this moment.
    #[must_use]
    pub fn engine(&self) -> arc_swap::Guard<Arc<Engine>> {
        self.current.load()
    }

    /// The instant that decisions are made at.
    #[must_use]
    pub fn now(&self) -> u64 {
        (self.now)()
    }
}

/// Servers at work, until this is dropped.
pub struct Service {
    desk: Desk,
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
            desk: Desk::new(Arc::new(Current::from_pointee(engine)), now),
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
                threads.spawn(http::serve(listener, service.desk.clone()));
            }
            if let Some(address) = config.grpc {
                let fail = |source| ServiceError::Listen { key: "grpc", endpoint: address.to_string(), source };
                let (listener, address) = listen(address).map_err(fail)?;
                service.grpc = Some(address);
                threads.spawn(grpc::serve(listener, service.desk.clone()));
            }
            let desk = service.desk.clone();
            threads.spawn(async move {
                loop {
                    tokio::time::sleep(SWEEP_EVERY).await;
                    desk.engine().sweep(desk.now());
                }
            });
        }
        Ok(service)
    }

    /// Refuses all who wait, and gives their answers a moment to be sent: the agent ends.
    pub fn close(&self) {
        let engine = self.engine();
        if engine.waiting().close(&engine, self.now()) > 0 {
            std::thread::sleep(LAST_WORDS);
        }
    }

    /// What decides.
    #[must_use]
    pub fn engine(&self) -> Arc<Engine> {
        self.desk.current.load_full()
    }

    /// Has another engine decide from now on. What the one before still decides is charged in this one.
    pub fn replace(&self, engine: Engine, moves: Moves) {
        moves.carry_out(self.now());
        let waiting = Arc::clone(engine.waiting());
        waiting.replace(&self.desk.current, engine, self.now());
    }

    /// Whether applications can be answered: servers are started only for a config that has limits on requests.
    #[must_use]
    pub const fn is_listening(&self) -> bool {
        self.runtime.is_some()
    }

    /// What decides at each moment, for keeping.
    #[must_use]
    pub fn current(&self) -> Arc<Current> {
        Arc::clone(&self.desk.current)
    }

    /// Where questions are asked.
    #[must_use]
    pub const fn desk(&self) -> &Desk {
        &self.desk
    }

    /// The instant that decisions are made at.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.desk.now()
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
        self.close();
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
