//! The command line's side of the control socket.

use std::io::{self, BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use thiserror::Error;

use super::{Request, Response};
use crate::decide::Wait;
use crate::events::Event;

/// How long to wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long, where the answer comes when another config or many bans are in effect: they take a slow host its time.
const PATIENCE_WITH_CHANGES: Duration = Duration::from_secs(120);

/// No answer, or one that is an error.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Nobody answers.
    #[error("no agent answers on {}: start one (agent --config FILE), or name its socket with --control", .0.display())]
    NotRunning(PathBuf),
    /// No permission.
    #[error("the control socket {} may not be used by this user: run as root, or join the group weir", .0.display())]
    NotPermitted(PathBuf),
    /// Somebody is there and says nothing.
    #[error("the agent on {} does not answer within {} s: it is stopped or very busy; see what its service says", path.display(), patience.as_secs())]
    Silent {
        /// Which socket.
        path: PathBuf,
        /// How long it was waited for.
        patience: Duration,
    },
    /// It went away.
    #[error("the agent on {} closed the connection without an answer: it is ending or has just ended", path.display())]
    Closed {
        /// Which socket.
        path: PathBuf,
    },
    /// There is something else.
    #[error("{} is not a control socket: name the agent's with --control", .0.display())]
    NotASocket(PathBuf),
    /// It broke off.
    #[error("talking to the agent on {} failed: {source}", path.display())]
    Broken {
        /// Which socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It closed the connection.
    #[error("the agent on {} has gone: it ended, or is restarting", .0.display())]
    Gone(PathBuf),
    /// The agent said no.
    #[error("{0}")]
    Refused(String),
    /// It said something else.
    #[error("the agent's answer is not what this version understands: {0}")]
    Foreign(serde_json::Error),
}

impl ClientError {
    /// Whether there is no agent any more.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        matches!(self, Self::NotRunning(_) | Self::Closed { .. } | Self::Gone(_))
    }
}

/// A way to ask the running agent.
#[derive(Clone, Debug)]
pub struct Client {
    path: PathBuf,
}

impl Client {
    /// For the socket at `path`.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Whether an agent listens on the socket.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        UnixStream::connect(&self.path).is_ok()
    }

    /// Asks, and reads the answer as `T`.
    ///
    /// # Errors
    ///
    /// When nobody answers, or the answer is an error.
    pub fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T, ClientError> {
        match self.exchange(request)? {
            Response::Ok(document) => serde_json::from_value(document).map_err(ClientError::Foreign),
            Response::Error(reason) => Err(ClientError::Refused(reason)),
        }
    }

    /// Follows the events, the last `last` of those that are remembered first, until `take` breaks it off or the agent
    /// goes. Returns what `take` broke off with.
    ///
    /// # Errors
    ///
    /// When nobody answers, the answer is an error, or the agent went.
    pub fn follow<B>(&self, last: usize, mut take: impl FnMut(Event) -> ControlFlow<B>) -> Result<B, ClientError> {
        let stream = self.send(&Request::Follow { last })?;
        // It waits without end: nothing may happen for hours.
        for line in BufReader::new(stream).lines() {
            let line = line.map_err(|error| self.broken(error, PATIENCE))?;
            let event = match serde_json::from_str(&line).map_err(ClientError::Foreign)? {
                Response::Ok(document) => serde_json::from_value(document).map_err(ClientError::Foreign)?,
                Response::Error(reason) => return Err(ClientError::Refused(reason)),
            };
            if let ControlFlow::Break(end) = take(event) {
                return Ok(end);
            }
        }
        Err(self.gone())
    }

    /// The agent's process, as a descriptor that is readable once it has exited; `None` where the kernel names none, as
    /// from another PID namespace.
    #[must_use]
    pub fn process(&self) -> Option<OwnedFd> {
        let stream = UnixStream::connect(&self.path).ok()?;
        let agent = rustix::net::sockopt::socket_peercred(&stream).ok()?;
        rustix::process::pidfd_open(agent.pid, rustix::process::PidfdFlags::empty()).ok()
    }

    /// The agent is gone.
    #[must_use]
    pub fn gone(&self) -> ClientError {
        ClientError::Gone(self.path.clone())
    }

    fn broken(&self, source: io::Error, patience: Duration) -> ClientError {
        let path = self.path.clone();
        match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ClientError::Silent { path, patience },
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ClientError::Closed { path },
            _ => ClientError::Broken { path, source },
        }
    }

    fn exchange(&self, request: &Request) -> Result<Response, ClientError> {
        let stream = self.send(request)?;
        let patience = match request {
            Request::Reload { .. } | Request::Try { .. } | Request::Compare => PATIENCE_WITH_CHANGES,
            Request::Confirm | Request::Revert => PATIENCE_WITH_CHANGES,
            Request::Ban { .. } | Request::Unban { .. } | Request::UnbanAll => PATIENCE_WITH_CHANGES,
            Request::Decide { question } => PATIENCE + question.wait.map(Wait::time).unwrap_or_default(),
            _ => PATIENCE,
        };
        let broken = |error| self.broken(error, patience);
        stream.set_read_timeout(Some(patience)).map_err(broken)?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).map_err(broken)?;
        if answer.is_empty() {
            return Err(ClientError::Closed { path: self.path.clone() });
        }
        serde_json::from_str(&answer).map_err(ClientError::Foreign)
    }

    /// Connects and asks; what the stream has to read is the answer, for which the caller says how long to wait.
    fn send(&self, request: &Request) -> Result<UnixStream, ClientError> {
        let path = || self.path.clone();
        let broken = |error| self.broken(error, PATIENCE);
        let mut stream = UnixStream::connect(&self.path).map_err(|error| match error.kind() {
            // What is no socket is refused in the same way as a socket that nobody listens on.
            io::ErrorKind::ConnectionRefused if !is_socket(&self.path) => ClientError::NotASocket(path()),
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ClientError::NotRunning(path()),
            io::ErrorKind::PermissionDenied => ClientError::NotPermitted(path()),
            _ => broken(error),
        })?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(broken)?;
        let mut line = serde_json::to_vec(request).map_err(ClientError::Foreign)?;
        line.push(b'\n');
        stream.write_all(&line).map_err(broken)?;
        Ok(stream)
    }
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    path.metadata().is_ok_and(|metadata| metadata.file_type().is_socket())
}
