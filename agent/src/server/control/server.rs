//! The server of the control socket. Documents are serialised only here.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::request::Request;
use config::policy::Prefix;
use host::clients::{Client, Places};
use host::descriptors::places;
use host::unix_socket::{self, SocketError, SocketFile};
use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::peer::Peer;
use super::{Response, follow};
use crate::daemon::reload::{AllowanceTerms, Cause};
use crate::daemon::{Agent, AgentDocuments, text, whose};
use crate::pcapng::Sample;
use crate::stats::Extent;

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

/// Carries out a request; returns the document for the client, or the error.
fn reply_to(agent: &Agent, request: Request) -> Result<serde_json::Value, String> {
    match request {
        Request::Status => json(agent.status(Extent::Whole)?),
        Request::Limits => json(agent.limits(Extent::Whole)?),
        Request::Top => json(agent.top()?),
        Request::HeavyPrefixes { share } => json(agent.prefixes.summary(share)?),
        Request::View { query } => json(agent.view(&query)?),
        Request::Show { source } => json(agent.show(source.to_canonical())?),
        Request::TestNotifications { name } => json(agent.notifier().test(name.as_deref())?),
        Request::Reset { source, limit } => {
            json(agent.reset(&Prefix::of_address(source.to_canonical()), limit.as_deref())?)
        }
        Request::ResetPrefix { prefix, limit } => {
            let prefix = config::prefix::parse(&prefix).map_err(text)?;
            json(agent.reset(&prefix, limit.as_deref())?)
        }
        Request::ResetLimit { limit } => json(agent.reset_limit(&limit)?),
        Request::ResetKey { key, limit } => json(agent.reset_key(&key, limit.as_deref())?),
        Request::ResetCounters => json(agent.reset_counters()?),
        Request::Ban { orders } => json(agent.order_bans(&orders)?),
        Request::Unban {
            cidrs,
            owner,
            user,
            all,
        } => json(agent.unban(&cidrs, &whose(owner.as_deref(), user.as_deref(), all)?)?),
        Request::UnbanAll => json(agent.unban_all()?),
        Request::Allow {
            cidrs,
            for_seconds,
            times,
            reason,
            owner,
        } => {
            let terms = AllowanceTerms {
                for_seconds,
                times,
                reason,
                owner,
            };
            json(agent.allow(&cidrs, terms)?)
        }
        Request::Disallow { cidrs } => json(agent.disallow(&cidrs)?),
        Request::Allowances => json(agent.changing().live().allowances()),
        Request::Bans => json(agent.bans()?),
        Request::Decide { question } => {
            let requests = agent.requests();
            let answer = requests.engine().decide(&question, requests.now());
            json(answer.map_err(text)?)
        }
        Request::Reload { operator, file } => {
            let other = file.and_then(|named| agent.other_file(&named));
            json(other.unwrap_or_else(|| agent.reload(Cause::Command, operator)))
        }
        Request::Try {
            file,
            text,
            for_seconds,
            operator,
        } => {
            let time = Duration::try_from_secs_f64(for_seconds).unwrap_or_default();
            json(agent.try_config(&file, text, time, operator))
        }
        Request::Compare {
            file,
            text,
            operator,
        } => json(agent.compare(file.as_deref(), text, operator)),
        Request::Confirm => json(agent.confirm()?),
        Request::Revert => json(agent.revert()),
        Request::Record { for_seconds } => json(agent.record(for_seconds)?),
        Request::StopRecording => json(agent.recorder().stop()?),
        Request::Recording => json(agent.recorder().status()),
        Request::Events => {
            let events = agent.events().recent();
            json(events.iter().map(|event| &**event).collect::<Vec<_>>())
        }
        Request::Follow { .. } | Request::Trace { .. } | Request::Capture { .. } => Err(
            "events, verdicts and captures are followed line by line, which needs another connection"
                .to_owned(),
        ),
        Request::Groups => json(agent.groups()),
        Request::Usage { group, from, to } => {
            let (group, from, to) = (group.as_deref(), from.as_deref(), to.as_deref());
            json(agent.groups.usage(group, from, to))
        }
        Request::Emergency { group, what } => json(agent.groups.emergency(group, what)?),
    }
}

/// Serialises a document.
fn json(document: impl serde::Serialize) -> Result<serde_json::Value, String> {
    serde_json::to_value(document).map_err(text)
}
