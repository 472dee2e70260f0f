//! Sockets in the file system: for the owner and the group `weir`, in place of a socket that nobody listens on.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::unistd::Gid;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use thiserror::Error;
use tokio::net::UnixListener;

/// Read and write for the owner and the group.
const MODE: u32 = 0o660;
/// The folder of a socket, if the agent makes it: for the owner, and to be passed through by the group.
const FOLDER_MODE: u32 = 0o750;
/// The group that may use the sockets, where the host has one.
const GROUP: &str = "weir";
/// How long another agent that starts at the same time is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// A socket that cannot be had.
#[derive(Debug, Error)]
pub enum SocketError {
    /// Another process listens there.
    #[error("another process listens there")]
    Taken,
    /// There is something else.
    #[error("there is a file that is not a socket")]
    NotASocket,
    /// The system refused.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<SocketError> for io::Error {
    fn from(error: SocketError) -> Self {
        match error {
            SocketError::System(error) => error,
            other => Self::new(io::ErrorKind::AddrInUse, other.to_string()),
        }
    }
}

/// A socket's file, removed when this is dropped, unless it is another process' by then.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// (device, inode).
    id: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if id(&self.path).is_ok_and(|id| id == self.id) {
            // If it is gone already, somebody else has tidied up.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn id(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Listens at `path`.
///
/// # Errors
///
/// When another process listens there, there is something that is not a socket, or the system refuses.
pub fn listen(path: &Path) -> Result<(UnixListener, SocketFile), SocketError> {
    let group = nix::unistd::Group::from_name(GROUP).ok().flatten().map(|group| group.gid);
    let folder = path.parent().unwrap_or(Path::new("/"));
    if !folder.exists() {
        // What lies there already is somebody's, who has decided who may come in.
        fs::create_dir_all(folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(FOLDER_MODE))?;
        give(folder, group)?;
    }
    // Of two agents that find the same dead socket, the second may not remove what the first has put in its place.
    let _one = lock(folder);
    if is_dead(path)? {
        fs::remove_file(path)?;
    }
    // Nobody else may open it before it is known who may.
    let mask = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o177));
    let listener = UnixListener::bind(path);
    nix::sys::stat::umask(mask);
    let listener = listener?;
    let file = SocketFile { id: id(path)?, path: path.to_owned() };
    give(path, group)?;
    fs::set_permissions(path, fs::Permissions::from_mode(MODE))?;
    Ok((listener, file))
}

/// Whether there is a socket that nobody listens on.
fn is_dead(path: &Path) -> Result<bool, SocketError> {
    let system = |errno: Errno| SocketError::System(errno.into());
    // Of a path that is too long, binding says so.
    let Ok(address) = SocketAddrUnix::new(path) else { return Ok(false) };
    // A listener whose queue is full would block the start for as long as it stands still.
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(system)?;
    match connect(&socket, &address) {
        Ok(()) | Err(Errno::AGAIN | Errno::INPROGRESS | Errno::PROTOTYPE) => Err(SocketError::Taken),
        // A file that is no socket is refused in the same way.
        Err(Errno::CONNREFUSED) if fs::symlink_metadata(path)?.file_type().is_socket() => Ok(true),
        Err(Errno::CONNREFUSED) => Err(SocketError::NotASocket),
        // Whatever it is, binding says why it cannot be had.
        Err(_) => Ok(false),
    }
}

/// The folder's lock, for as long as the result lives; none where it is not to be had.
fn lock(folder: &Path) -> Option<fs::File> {
    let folder = fs::File::open(folder).ok()?;
    let start = Instant::now();
    while let Err(Errno::AGAIN) = flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        if start.elapsed() > PATIENCE {
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Some(folder)
}

/// Gives a file to the group that may use the socket, where there is one.
fn give(path: &Path, group: Option<Gid>) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Listens once, from within a runtime as the agent does.
    fn try_listen(path: &Path) -> Result<(), SocketError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { listen(path).map(drop) })
    }

    #[test]
    fn only_a_dead_socket_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decide.sock");
        for content in ["somebody's", ""] {
            fs::write(&path, content).unwrap();
            assert!(matches!(try_listen(&path), Err(SocketError::NotASocket)));
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        fs::remove_file(&path).unwrap();
        // A link is not the socket that it names.
        let elsewhere = folder.path().join("elsewhere.sock");
        drop(std::os::unix::net::UnixListener::bind(&elsewhere).unwrap());
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert!(matches!(try_listen(&path), Err(SocketError::NotASocket)));
        assert!(elsewhere.exists());
        fs::remove_file(&path).unwrap();

        let alive = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(matches!(try_listen(&path), Err(SocketError::Taken)));
        // One that accepts nobody is alive, too.
        let full: Vec<_> = std::iter::from_fn(|| {
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
            connect(&socket, &SocketAddrUnix::new(&path).unwrap()).ok().map(|()| socket)
        })
        .collect();
        assert!(matches!(try_listen(&path), Err(SocketError::Taken)), "with {} clients waiting", full.len());
        drop((alive, full));
        try_listen(&path).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn another_process_socket_is_left_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decide.sock");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let ours = runtime.block_on(async { listen(&path).unwrap() });
        fs::rename(&path, folder.path().join("old.sock")).unwrap();
        let _theirs = std::os::unix::net::UnixListener::bind(&path).unwrap();
        drop(ours);
        assert!(path.exists());
    }
}
