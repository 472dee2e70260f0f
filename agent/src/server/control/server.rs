//! The server of the control socket.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::request::Request;
use host::clients::{Client, Places};
use host::descriptors::places;
use host::unix_socket::{self, SocketError, SocketFile};
use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::dispatch::{json, reply_to};
use super::follow;
use super::response::{LONGEST_CHANGE, LONGEST_REQUEST, Response};
use crate::ban_owner;
use crate::daemon::Agent;
use crate::daemon::events::Follower;
use crate::pcapng::Sample;

/// The timeout for a request, and for each part of its reply.
const PATIENCE: Duration = Duration::from_secs(5);
/// The timeout for the whole reply.
const LONGEST: Duration = Duration::from_secs(60);
/// The bytes of one part of a reply: a slow reader needs time for megabytes.
const PART: usize = 64 * 1024;
/// Concurrent requests of users other than root: a member of the group who sends requests without pause delays root and
/// the agent's own work by at most this many.
const OTHERS_AT_WORK: usize = 2;
/// The error for a request that panicked.
const FAILED: &str = "the request failed in the agent, which logged why: report it as a bug";

/// The socket cannot be created.
#[derive(Debug, Error)]
pub enum ServerError {
    /// Another agent listens on it.
    #[error("another agent is running with the control socket {}: stop it first, or set another [agent] control", .0.display())]
    Running(PathBuf),
    /// The path exists and is not a socket.
    #[error("{} exists and is not a socket: set another [agent] control", .0.display())]
    NotASocket(PathBuf),
    /// A system call failed.
    #[error("listening on the control socket {} failed: {source}; {}", path.display(), help(source))]
    Listen { path: PathBuf, source: io::Error },
}

fn help(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => {
            "run as root, or name a path that this user may write under [agent] control"
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "name a path that can be written under [agent] control"
        }
        io::ErrorKind::StorageFull => {
            "free some space there, or name another path under [agent] control"
        }
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
    /// Listens on `path`, replacing a socket without a listener.
    ///
    /// # Errors
    ///
    /// When another agent listens on it, or a system call fails.
    pub fn bind(path: &Path) -> Result<Self, ServerError> {
        let path = || path.to_owned();
        match unix_socket::listen(&path()) {
            Ok((listener, file)) => Ok(Self {
                listener,
                _file: file,
            }),
            Err(SocketError::Taken) => Err(ServerError::Running(path())),
            Err(SocketError::NotASocket) => Err(ServerError::NotASocket(path())),
            Err(SocketError::System(source)) => Err(ServerError::Listen {
                path: path(),
                source,
            }),
        }
    }

    /// Serves until it is dropped.
    pub async fn serve(&self, agent: Arc<Agent>) {
        let count = places().control;
        // Root's clients and all others have separate places, so that no user of the group can lock root out.
        let [for_root, for_others] = [(); 2].map(|()| Places::new(count));
        let for_waiting = Arc::new(Semaphore::new(count));
        let others_at_work = Arc::new(Semaphore::new(OTHERS_AT_WORK));
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let peer = Peer::of(&stream);
                    let places = if peer == Peer::Root {
                        &for_root
                    } else {
                        &for_others
                    };
                    // It waits for a client that makes room, never for one whose request is evaluated.
                    let place = places.take_unless_busy().await;
                    let (agent, for_waiting) = (Arc::clone(&agent), Arc::clone(&for_waiting));
                    let at_work = (peer == Peer::Other).then(|| Arc::clone(&others_at_work));
                    tokio::spawn(async move {
                        // Errors of one client concern no other.
                        let _ = match place {
                            Some(activity) => {
                                let client = Client::new(stream, activity);
                                answer(client, peer, agent, for_waiting, at_work).await
                            }
                            None => timeout(PATIENCE, send_away(stream, count))
                                .await
                                .unwrap_or(Ok(())),
                        };
                    });
                }
                // Most likely file descriptors are used up: wait and retry.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }
}

/// The client's user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// The superuser.
    Root,
    /// The user that runs the agent, if that is not root.
    Own,
    /// Another user with access to the socket.
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

    const fn follower(self) -> Follower {
        match self {
            Self::Root | Self::Own => Follower::Operator,
            Self::Other => Follower::Member,
        }
    }

    /// The longest request of this user, in bytes.
    const fn longest_request(self) -> u64 {
        match self {
            Self::Root | Self::Own => LONGEST_CHANGE,
            Self::Other => LONGEST_REQUEST,
        }
    }

    /// The request with what this user may cause: a user who may not ban has no source banned by `escalate`, either. A
    /// ban without an owner is this user's.
    fn restricted(self, mut request: Request) -> Request {
        match &mut request {
            Request::Decide { question } => {
                question.bans_nobody = self == Self::Other;
                question.forces_nothing = self == Self::Other;
            }
            Request::Ban { orders } => {
                for order in orders {
                    order.owner.get_or_insert_with(|| self.name());
                }
            }
            Request::Allow { owner, .. } => {
                owner.get_or_insert_with(|| self.name());
            }
            Request::Unban { user, .. } => {
                user.get_or_insert_with(|| self.name());
            }
            _ => {}
        }
        request
    }

    /// The owner of its bans. The database of users may be slow, so it is not asked.
    fn name(self) -> String {
        match self {
            Self::Root => ban_owner::ROOT.to_owned(),
            Self::Own | Self::Other => format!("uid {}", nix::unistd::geteuid()),
        }
    }

    /// Checks whether this user may make the request.
    fn check(self, request: &Request) -> Result<(), String> {
        if self == Self::Other && !request.only_asks() {
            return Err(
                "this command changes the agent's state, which requires root: run it with sudo"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

/// Rejects a client where requests of all others are being evaluated.
async fn send_away(mut stream: UnixStream, count: usize) -> io::Result<()> {
    let response = Response::Error(format!(
        "{count} clients are connected already: try again in a few seconds"
    ));
    let mut document = serde_json::to_vec(&response)?;
    document.push(b'\n');
    stream.write_all(&document).await
}

async fn answer(
    client: Client<UnixStream>,
    peer: Peer,
    agent: Arc<Agent>,
    for_waiting: Arc<Semaphore>,
    at_work: Option<Arc<Semaphore>>,
) -> io::Result<()> {
    let activity = client.activity();
    let (read, mut write) = tokio::io::split(client);
    let mut line = String::new();
    let longest = peer.longest_request();
    let mut read = BufReader::new(read.take(longest));
    timeout(PATIENCE, read.read_line(&mut line)).await??;
    if line.is_empty() {
        return Ok(());
    }
    activity.begin();
    let request = serde_json::from_str(&line).map(|request| peer.restricted(request));
    let response = match request {
        Ok(Request::Follow { last }) => match agent.follow(last, peer.follower()) {
            Ok(events) => {
                // Followers stay connected, and are counted separately.
                activity.leave();
                return follow::serve(read, write, events).await;
            }
            Err(reason) => Response::Error(reason),
        },
        Ok(request @ Request::Trace { source }) => {
            match peer.check(&request).and_then(|()| agent.trace(source)) {
                Ok(verdicts) => {
                    activity.leave();
                    return follow::serve(read, write, verdicts).await;
                }
                Err(reason) => Response::Error(reason),
            }
        }
        Ok(
            request @ Request::Capture {
                one_in,
                of,
                for_seconds,
            },
        ) => {
            let length = Duration::try_from_secs_f64(for_seconds).unwrap_or_default();
            // It may wait for a change of the policy.
            let start = move || {
                peer.check(&request)
                    .and_then(|()| agent.capture(Sample { one_in, of }, length))
            };
            match tokio::task::spawn_blocking(start).await {
                Ok(Ok(parts)) => {
                    activity.leave();
                    return follow::capture(read, write, parts).await;
                }
                Ok(Err(reason)) => Response::Error(reason),
                Err(_) => Response::Error(FAILED.to_owned()),
            }
        }
        Ok(Request::Decide { question }) if question.wait.is_some() => {
            activity.leave();
            match for_waiting.try_acquire() {
                Err(_) => Response::Error(
                    "too many requests wait on the control socket: use [decide] http".to_owned(),
                ),
                Ok(_place) => tokio::select! {
                    // Waiting clients send nothing more: readable means disconnected.
                    _ = read.read_u8() => return Ok(()),
                    answered = agent.wait(&question) => answered.and_then(json).map_or_else(Response::Error, Response::Ok),
                },
            }
        }
        Ok(request) => {
            // In the order of arrival.
            let _turn = match at_work {
                Some(at_work) => at_work.acquire_owned().await.ok(),
                None => None,
            };
            // On a blocking thread, so that slow work, such as a large reload, does not delay other clients.
            let work = move || {
                peer.check(&request)
                    .and_then(|()| reply_to(&agent, request))
            };
            match tokio::task::spawn_blocking(work).await {
                Ok(answered) => answered.map_or_else(Response::Error, Response::Ok),
                Err(_) => Response::Error(FAILED.to_owned()),
            }
        }
        Err(error) if line.len() as u64 >= longest => Response::Error(format!(
            "the request is longer than {longest} bytes: {error}"
        )),
        Err(error) => Response::Error(format!(
            "unknown request: {error}; use the agent's own version of this command"
        )),
    };
    let mut document = serde_json::to_vec(&response)?;
    document.push(b'\n');
    activity.reply();
    let hand_over = async {
        for part in document.chunks(PART) {
            timeout(PATIENCE, write.write_all(part)).await??;
        }
        Ok(())
    };
    timeout(LONGEST, hand_over).await?
}
