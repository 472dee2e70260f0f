//! The agent's side of the control socket.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::decide::Question;
use crate::descriptors::places;
use crate::events::Subscription;
use crate::unix_socket::{self, SocketError, SocketFile};

use super::follow;
use super::{LONGEST_CHANGE, LONGEST_REQUEST, Request, Response};

/// How long a client may take to ask, and to take each part of its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it may take to take all of its answer.
const LONGEST: Duration = Duration::from_secs(60);
/// An answer is handed over in parts of so many bytes: one of megabytes takes a slow reader its time.
const PART: usize = 64 * 1024;

/// Answers requests: the document, or a reason.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request.
    ///
    /// # Errors
    ///
    /// With what to tell the client.
    fn handle(&self, request: Request) -> Result<serde_json::Value, String>;
    /// Decides on a question that may wait in line; it leaves the line when this is dropped.
    ///
    /// # Errors
    ///
    /// With what to tell the client.
    fn wait(&self, _question: &Question) -> impl Future<Output = Result<serde_json::Value, String>> + Send {
        std::future::ready(Err("this agent decides nothing".to_owned()))
    }
    /// What one follower of the events gets, the last `last` of those that are remembered first.
    ///
    /// # Errors
    ///
    /// With what to tell the client.
    fn follow(&self, _last: usize) -> Result<Subscription, String> {
        Err("this agent tells of no events".to_owned())
    }
}

/// The socket cannot be had.
#[derive(Debug, Error)]
pub enum ServerError {
    /// Another agent answers there.
    #[error("another agent is running: it answers on {}; stop it first, or name another socket under [agent] control", .0.display())]
    Running(PathBuf),
    /// There is something else.
    #[error("{} is there already, and is no socket: name another path under [agent] control", .0.display())]
    NotASocket(PathBuf),
    /// The system refused.
    #[error("listening on the control socket {} failed: {source}; {}", path.display(), help(source))]
    Listen {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn help(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => "run as root, or name a path that this user may write under [agent] control",
        io::ErrorKind::ReadOnlyFilesystem => "name a path that can be written under [agent] control",
        io::ErrorKind::StorageFull => "make room there, or name another path under [agent] control",
        io::ErrorKind::InvalidInput => {
            "a socket's path has 107 bytes at most: name a shorter one under [agent] control"
        }
        _ => "name another path under [agent] control",
    }
}

/// A listening control socket, removed when it is dropped.
pub struct Server {
    listener: UnixListener,
    _file: SocketFile,
}

impl Server {
    /// Listens at `path`, in place of a socket that nobody answers on any more.
    ///
    /// # Errors
    ///
    /// When another agent answers there, or the system refuses.
    pub fn bind(path: &Path) -> Result<Self, ServerError> {
        let path = || path.to_owned();
        match unix_socket::listen(&path()) {
            Ok((listener, file)) => Ok(Self { listener, _file: file }),
            Err(SocketError::Taken) => Err(ServerError::Running(path())),
            Err(SocketError::NotASocket) => Err(ServerError::NotASocket(path())),
            Err(SocketError::System(source)) => Err(ServerError::Listen { path: path(), source }),
        }
    }

    /// Answers until it is dropped.
    pub async fn serve(&self, handler: Arc<impl Handler>) {
        let count = places().control;
        // Root's clients and all others together have places of their own, so that no user of the group can keep root out.
        let [for_root, for_others, for_waiting] = [(); 3].map(|()| Arc::new(Semaphore::new(count)));
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let peer = Peer::of(&stream);
                    let places = if peer == Peer::Root { &for_root } else { &for_others };
                    let place = Arc::clone(places).try_acquire_owned();
                    let (handler, for_waiting) = (Arc::clone(&handler), Arc::clone(&for_waiting));
                    tokio::spawn(async move {
                        // A client that went away or dawdled is its own loss.
                        let _ = match place {
                            Ok(place) => answer(stream, peer, handler, place, for_waiting).await,
                            Err(_) => timeout(PATIENCE, send_away(stream, count)).await.unwrap_or(Ok(())),
                        };
                    });
                }
                // Out of file descriptors, most likely: there will be some again.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// The superuser.
    Root,
    /// The user that the agent runs as, if that is not root.
    Own,
    /// Somebody else whom the socket lets in.
    Other,
}

impl Peer {
    fn of(stream: &UnixStream) -> Self {
        match stream.peer_cred() {
            Ok(peer) if peer.uid() == 0 => Self::Root,
            Ok(peer) if peer.uid() == nix::unistd::geteuid().as_raw() => Self::Own,
            _ => Self::Other,
        }
    }

    /// How many bytes a request of this one may have.
    const fn longest_request(self) -> u64 {
        match self {
            Self::Root | Self::Own => LONGEST_CHANGE,
            Self::Other => LONGEST_REQUEST,
        }
    }

    /// Whether a request is for this one to make.
    fn check(self, request: &Request) -> Result<(), String> {
        if self == Self::Other && !request.only_asks() {
            return Err("this changes what is in force, which is for root: run it as root (sudo agent …)".to_owned());
        }
        Ok(())
    }
}

/// There is no place for one more.
async fn send_away(mut stream: UnixStream, count: usize) -> io::Result<()> {
    let response = Response::Error(format!("{count} clients are being answered already: try again in a few seconds"));
    let mut document = serde_json::to_vec(&response)?;
    document.push(b'\n');
    stream.write_all(&document).await
}

async fn answer(
    stream: UnixStream,
    peer: Peer,
    handler: Arc<impl Handler>,
    place: OwnedSemaphorePermit,
    for_waiting: Arc<Semaphore>,
) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let longest = peer.longest_request();
    let mut read = BufReader::new(read.take(longest));
    timeout(PATIENCE, read.read_line(&mut line)).await??;
    if line.is_empty() {
        return Ok(());
    }
    let response = match serde_json::from_str::<Request>(&line) {
        Ok(Request::Follow { last }) => match handler.follow(last) {
            Ok(events) => {
                // Followers stay, and are counted by themselves: they take nobody's place.
                drop(place);
                return follow::serve(read, write, events).await;
            }
            Err(reason) => Response::Error(reason),
        },
        Ok(Request::Decide { question }) if question.wait.is_some() => {
            drop(place);
            match for_waiting.try_acquire() {
                Err(_) => {
                    Response::Error("too many wait on the control socket already: ask over [decide] http".to_owned())
                }
                Ok(_place) => tokio::select! {
                    // Who waits has nothing more to say: what can be read is its end.
                    _ = read.read_u8() => return Ok(()),
                    answered = handler.wait(&question) => answered.map_or_else(Response::Error, Response::Ok),
                },
            }
        }
        Ok(request) => {
            // Off the runtime: what takes long, as a reload of a large config does, holds up nobody else.
            let work = move || peer.check(&request).and_then(|()| handler.handle(request));
            match tokio::task::spawn_blocking(work).await {
                Ok(answered) => answered.map_or_else(Response::Error, Response::Ok),
                Err(_) => Response::Error("the request failed in the agent: please report it".to_owned()),
            }
        }
        Err(error) if line.len() as u64 >= longest => {
            Response::Error(format!("the request is longer than {longest} bytes: {error}"))
        }
        Err(error) => Response::Error(format!("the request is not one this agent knows: {error}")),
    };
    let mut document = serde_json::to_vec(&response)?;
    document.push(b'\n');
    let hand_over = async {
        for part in document.chunks(PART) {
            timeout(PATIENCE, write.write_all(part)).await??;
        }
        Ok(())
    };
    timeout(LONGEST, hand_over).await?
}
