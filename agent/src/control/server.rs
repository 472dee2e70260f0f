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
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{LONGEST_REQUEST, Request, Response};

/// Who may talk at the same time; more wait.
const CLIENTS: usize = 32;
/// How long a client may take to ask, and to take each part of its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// An answer is handed over in parts of so many bytes: one of megabytes takes a slow reader its time.
const PART: usize = 64 * 1024;
/// Read and write for the owner and the group.
const MODE: u32 = 0o660;
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
}

/// The socket cannot be had.
#[derive(Debug, Error)]
pub enum ServerError {
    /// Another agent answers there.
    #[error("another agent is running: it answers on {}; stop it first, or name another socket under [agent] control", .0.display())]
    Running(PathBuf),
    /// The system refused.
    #[error("listening on the control socket {} failed: {source}", path.display())]
    Listen {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
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
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(fail)?;
        }
        match std::os::unix::net::UnixStream::connect(path) {
            Ok(_) => return Err(ServerError::Running(path.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path).map_err(fail)?,
            Err(_) => {}
        }
        let listener = UnixListener::bind(path).map_err(fail)?;
        fs::set_permissions(path, fs::Permissions::from_mode(MODE)).map_err(fail)?;
        if let Ok(Some(group)) = nix::unistd::Group::from_name(GROUP) {
            nix::unistd::chown(path, None, Some(group.gid)).map_err(|errno| fail(errno.into()))?;
        }
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Answers until it is dropped.
    pub async fn serve(&self, handler: Arc<impl Handler>) {
        let places = Arc::new(Semaphore::new(CLIENTS));
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let handler = Arc::clone(&handler);
                    tokio::spawn(async move {
                        // A client that went away or dawdled is its own loss.
                        let _ = answer(stream, handler).await;
                        drop(place);
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

async fn answer(stream: UnixStream, handler: Arc<impl Handler>) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    timeout(PATIENCE, BufReader::new(read.take(LONGEST_REQUEST)).read_line(&mut line)).await??;
    if line.is_empty() {
        return Ok(());
    }
    let response = match serde_json::from_str::<Request>(&line) {
        // Off the runtime: what takes long, as a reload of a large config does, holds up nobody else.
        Ok(request) => match tokio::task::spawn_blocking(move || handler.handle(request)).await {
            Ok(answer) => answer.map_or_else(Response::Error, Response::Ok),
            Err(_) => Response::Error("the request failed in the agent: please report it".to_owned()),
        },
        Err(error) if line.len() as u64 >= LONGEST_REQUEST => {
            Response::Error(format!("the request is longer than {LONGEST_REQUEST} bytes: {error}"))
        }
        Err(error) => Response::Error(format!("the request is not one this agent knows: {error}")),
    };
    let mut document = serde_json::to_vec(&response)?;
    document.push(b'\n');
    for part in document.chunks(PART) {
        timeout(PATIENCE, write.write_all(part)).await??;
    }
    Ok(())
}
