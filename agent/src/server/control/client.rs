//! The command line's side of the control socket.

use std::io::{self, BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::capture::CapturePart;
use api::request::Request;
use decide::Wait;
use host::PROGRAM;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::Response;
use crate::daemon::events::Event;

/// The timeout for a reply.
const PATIENCE: Duration = Duration::from_secs(10);
/// The timeout for a reply that follows a reload or many bans, or lists these, which takes a slow host longer.
const PATIENCE_WITH_CHANGES: Duration = Duration::from_secs(120);

/// A request failed.
#[derive(Debug, Error)]
pub enum ClientError {
    /// No agent listens.
    #[error("no agent replies on {}: start one ({PROGRAM} --config FILE), or name its socket with --control", .0.display())]
    NotRunning(PathBuf),
    /// No permission.
    #[error("the control socket {} may not be used by this user: run as root, or join the group weir", .0.display())]
    NotPermitted(PathBuf),
    /// The agent does not reply in time.
    #[error("the agent on {} did not reply within {}: it is stopped or overloaded; see its log (journalctl -u weir)", path.display(), config::human::time(*patience))]
    Silent {
        path: PathBuf,
        /// The timeout.
        patience: Duration,
    },
    /// The agent closed the connection.
    #[error("the agent on {} closed the connection without a reply: it is stopping or has just stopped; repeat the command", path.display())]
    Closed { path: PathBuf },
    /// The path is not a socket.
    #[error("{} is not a socket: name the agent's control socket with --control", .0.display())]
    NotASocket(PathBuf),
    /// The connection failed.
    #[error("communicating with the agent on {} failed: {source}", path.display())]
    Broken { path: PathBuf, source: io::Error },
    /// The agent closed the connection.
    #[error("the agent on {} closed the connection: it stopped, or is restarting", .0.display())]
    Gone(PathBuf),
    /// The agent refused the request.
    #[error("{0}")]
    Refused(String),
    /// The reply has an unexpected format.
    #[error(
        "the agent's reply has another format than this version expects: {0}; use the agent's own version of this command"
    )]
    Foreign(serde_json::Error),
}

impl ClientError {
    /// Whether the agent no longer runs.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        matches!(
            self,
            Self::NotRunning(_) | Self::Closed { .. } | Self::Gone(_)
        )
    }
}

/// A client of the running agent.
#[derive(Clone, Debug)]
pub struct Client {
    path: PathBuf,
}

impl Client {
    /// For the socket at `path`.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
        }
    }

    /// Whether an agent listens on the socket.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        UnixStream::connect(&self.path).is_ok()
    }

    /// Sends a request, and parses the reply as `T`.
    ///
    /// # Errors
    ///
    /// When no agent replies, or the reply is an error.
    pub fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T, ClientError> {
        document(&self.exchange(request)?)
    }

    /// Follows the events, starting with the last `last` remembered ones, until `take` breaks or the agent stops.
    /// Returns the break's value.
    ///
    /// # Errors
    ///
    /// When no agent replies, the reply is an error, or the agent stopped.
    pub fn follow<B>(
        &self,
        last: usize,
        take: impl FnMut(Event) -> ControlFlow<B>,
    ) -> Result<B, ClientError> {
        self.stream(&Request::Follow { last }, take)
    }

    /// Requests a stream of documents, until `take` breaks or the agent stops. Returns the break's value.
    ///
    /// # Errors
    ///
    /// When no agent replies, the reply is an error, or the agent stopped.
    pub fn stream<T: DeserializeOwned, B>(
        &self,
        request: &Request,
        mut take: impl FnMut(T) -> ControlFlow<B>,
    ) -> Result<B, ClientError> {
        let stream = self.send(request)?;
        // Without a timeout: there may be no event for hours.
        for line in BufReader::new(stream).lines() {
            let line = line.map_err(|error| self.broken(error, PATIENCE))?;
            if let ControlFlow::Break(end) = take(document(&line)?) {
                return Ok(end);
            }
        }
        Err(self.gone())
    }

    /// Starts a capture: the connection, and its parts.
    ///
    /// # Errors
    ///
    /// When no agent replies. The first part is the agent's error if it refuses.
    pub fn capture(
        &self,
        request: &Request,
    ) -> Result<
        (
            UnixStream,
            impl Iterator<Item = Result<CapturePart, ClientError>>,
        ),
        ClientError,
    > {
        let stream = self.send(request)?;
        let reader = stream
            .try_clone()
            .map_err(|error| self.broken(error, PATIENCE))?;
        let client = self.clone();
        let parts = BufReader::new(reader).lines().map(move |line| {
            let line = line.map_err(|error| client.broken(error, PATIENCE))?;
            document(&line)
        });
        Ok((stream, parts))
    }

    /// The agent's process as a descriptor that is readable once it has exited; `None` where the kernel provides none,
    /// as across PID namespaces.
    #[must_use]
    pub fn process(&self) -> Option<OwnedFd> {
        let stream = UnixStream::connect(&self.path).ok()?;
        let agent = rustix::net::sockopt::socket_peercred(&stream).ok()?;
        rustix::process::pidfd_open(agent.pid, rustix::process::PidfdFlags::empty()).ok()
    }

    /// The error for an agent that has stopped.
    #[must_use]
    pub fn gone(&self) -> ClientError {
        ClientError::Gone(self.path.clone())
    }

    fn broken(&self, source: io::Error, patience: Duration) -> ClientError {
        let path = self.path.clone();
        match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                ClientError::Silent { path, patience }
            }
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                ClientError::Closed { path }
            }
            _ => ClientError::Broken { path, source },
        }
    }

    fn exchange(&self, request: &Request) -> Result<String, ClientError> {
        let stream = self.send(request)?;
        let patience = match request {
            Request::Reload { .. } | Request::Try { .. } | Request::Compare { .. } => {
                PATIENCE_WITH_CHANGES
            }
            Request::Confirm | Request::Revert => PATIENCE_WITH_CHANGES,
            // A receiver may take a minute.
            Request::TestNotifications { .. } => PATIENCE_WITH_CHANGES,
            Request::Ban { .. } | Request::Unban { .. } | Request::UnbanAll | Request::Bans => {
                PATIENCE_WITH_CHANGES
            }
            Request::Allow { .. } | Request::Disallow { .. } => PATIENCE_WITH_CHANGES,
            // They scan the table of sources.
            Request::ResetPrefix { .. } | Request::ResetLimit { .. } | Request::ResetKey { .. } => {
                PATIENCE_WITH_CHANGES
            }
            Request::Decide { question } => {
                PATIENCE + question.wait.map(Wait::time).unwrap_or_default()
            }
            _ => PATIENCE,
        };
        let broken = |error| self.broken(error, patience);
        stream.set_read_timeout(Some(patience)).map_err(broken)?;
        let mut answer = String::new();
        BufReader::new(stream)
            .read_line(&mut answer)
            .map_err(broken)?;
        if answer.is_empty() {
            return Err(ClientError::Closed {
                path: self.path.clone(),
            });
        }
        Ok(answer)
    }

    /// Connects and sends a request; the caller sets the timeout and reads the reply.
    fn send(&self, request: &Request) -> Result<UnixStream, ClientError> {
        let path = || self.path.clone();
        let broken = |error| self.broken(error, PATIENCE);
        let mut stream = UnixStream::connect(&self.path).map_err(|error| match error.kind() {
            // A file that is not a socket fails like a socket without a listener.
            io::ErrorKind::ConnectionRefused if !is_socket(&self.path) => {
                ClientError::NotASocket(path())
            }
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                ClientError::NotRunning(path())
            }
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

/// The document of a reply.
fn document<T: DeserializeOwned>(line: &str) -> Result<T, ClientError> {
    match serde_json::from_str(line).map_err(ClientError::Foreign)? {
        Response::Ok(document) => serde_json::from_value(document).map_err(ClientError::Foreign),
        Response::Error(reason) => Err(ClientError::Refused(reason)),
    }
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    path.metadata()
        .is_ok_and(|metadata| metadata.file_type().is_socket())
}
