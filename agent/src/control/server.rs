//! The agent's side of the control socket.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::events::Subscription;

use super::follow;
use super::{LONGEST_CHANGE, LONGEST_REQUEST, Request, Response};

/// How many of root's clients, and how many of all others together, may talk at the same time; more are sent away. Each
/// has places of its own, so that no user of the group can keep root out.
const CLIENTS: usize = 128;
/// How long a client may take to ask, and to take each part of its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it may take to take all of its answer.
const LONGEST: Duration = Duration::from_secs(60);
/// An answer is handed over in parts of so many bytes: one of megabytes takes a slow reader its time.
const PART: usize = 64 * 1024;
/// Read and write for the owner and the group.
const MODE: u32 = 0o660;
/// The folder of the socket, if the agent makes it: for the owner, and to be passed through by the group.
const FOLDER_MODE: u32 = 0o750;
/// The group that may use the socket, where the host has one.
const GROUP: &str = "weir";

/// Answers requests: the document, or a reason.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request.
    ///
    /// # Errors
    ///
    /// With what to tell the client.
    fn handle(&self, request: Request) -> Result<serde_json::Value, String>;
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
    path: PathBuf,
}

impl Server {
    /// Listens at `path`, in place of a socket that nobody answers on any more.
    ///
    /// # Errors
    ///
    /// When another agent answers there, or the system refuses.
    pub fn bind(path: &Path) -> Result<Self, ServerError> {
        let fail = |source| ServerError::Listen { path: path.to_owned(), source };
        let group = nix::unistd::Group::from_name(GROUP).ok().flatten().map(|group| group.gid);
        if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
            // What lies there already is somebody's, who has decided who may come in.
            fs::create_dir_all(folder).map_err(fail)?;
            fs::set_permissions(folder, fs::Permissions::from_mode(FOLDER_MODE)).map_err(fail)?;
            give(folder, group).map_err(fail)?;
        }
        match std::os::unix::net::UnixStream::connect(path) {
            Ok(_) => return Err(ServerError::Running(path.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => remove_dead(path)?,
            Err(_) => {}
        }
        // Nobody else may open it before it is known who may.
        let mask = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o177));
        let listener = UnixListener::bind(path);
        nix::sys::stat::umask(mask);
        let listener = listener.map_err(fail)?;
        give(path, group).map_err(fail)?;
        fs::set_permissions(path, fs::Permissions::from_mode(MODE)).map_err(fail)?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Answers until it is dropped.
    pub async fn serve(&self, handler: Arc<impl Handler>) {
        let [for_root, for_others] = [(); 2].map(|()| Arc::new(Semaphore::new(CLIENTS)));
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let peer = Peer::of(&stream);
                    let places = if peer == Peer::Root { &for_root } else { &for_others };
                    let place = Arc::clone(places).try_acquire_owned();
                    let handler = Arc::clone(&handler);
                    tokio::spawn(async move {
                        // A client that went away or dawdled is its own loss.
                        let _ = match place {
                            Ok(place) => answer(stream, peer, handler, place).await,
                            Err(_) => timeout(PATIENCE, send_away(stream)).await.unwrap_or(Ok(())),
                        };
                    });
                }
                // Out of file descriptors, most likely: there will be some again.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // If it is gone already, somebody else has tidied up.
        let _ = fs::remove_file(&self.path);
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

/// Removes a socket that nobody listens on any more; what is something else is somebody's.
fn remove_dead(path: &Path) -> Result<(), ServerError> {
    use std::os::unix::fs::FileTypeExt as _;
    let fail = |source| ServerError::Listen { path: path.to_owned(), source };
    if !fs::symlink_metadata(path).map_err(fail)?.file_type().is_socket() {
        return Err(ServerError::NotASocket(path.to_owned()));
    }
    fs::remove_file(path).map_err(fail)
}

/// Gives a file to the group that may use the socket, where there is one.
fn give(path: &Path, group: Option<nix::unistd::Gid>) -> io::Result<()> {
    let Some(group) = group else { return Ok(()) };
    match nix::unistd::chown(path, None, Some(group)) {
        // Without CAP_CHOWN, and not of the group: then it is for root alone, which is safe.
        Err(nix::errno::Errno::EPERM) => {
            eprintln!(
                "warning: {} cannot be given to the group {GROUP}, so that only root may use it: add the group to those \
                 the agent runs with (SupplementaryGroups={GROUP} in the unit)",
                path.display()
            );
            Ok(())
        }
        result => result.map_err(io::Error::from),
    }
}

/// There is no place for one more.
async fn send_away(mut stream: UnixStream) -> io::Result<()> {
    let response = Response::Error(format!("{CLIENTS} clients are being answered already: try again in a few seconds"));
    let mut document = serde_json::to_vec(&response)?;
    document.push(b'\n');
    stream.write_all(&document).await
}

async fn answer(
    stream: UnixStream,
    peer: Peer,
    handler: Arc<impl Handler>,
    place: OwnedSemaphorePermit,
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
