//! Unix sockets for the owner and the group `weir`. A socket without a listener is replaced.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::unistd::Gid;
use rustix::fs::{FlockOperation, Mode, fchmod, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use thiserror::Error;
use tokio::net::UnixListener;

/// Read and write for the owner and the group.
const MODE: u32 = 0o660;
/// The mode of the socket's directory, if the agent creates it: the group may only traverse it.
const FOLDER_MODE: u32 = 0o750;
/// Waiting connections: as many as the host's net.core.somaxconn allows, as in the standard library.
const BACKLOG: i32 = -1;
/// The group that may use the sockets, if the host has it.
const GROUP: &str = "weir";
/// How long to wait for another agent that starts at the same time.
const PATIENCE: Duration = Duration::from_secs(1);

/// A socket could not be created.
#[derive(Debug, Error)]
pub enum SocketError {
    /// Another process listens on it.
    #[error("another process listens on it")]
    Taken,
    /// The path exists and is not a socket.
    #[error("the path exists and is not a socket")]
    NotASocket,
    /// A system call failed.
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

/// A socket's file. It is removed on drop, unless another process has replaced it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// (device, inode).
    id: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if id(&self.path).is_ok_and(|id| id == self.id) {
            // The file is missing if another process has removed it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn id(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Listens on `path`.
///
/// # Errors
///
/// When another process listens on it, the path exists and is not a socket, or a system call fails.
pub fn listen(path: &Path) -> Result<(UnixListener, SocketFile), SocketError> {
    let group = nix::unistd::Group::from_name(GROUP)
        .ok()
        .flatten()
        .map(|group| group.gid);
    let folder = path.parent().unwrap_or(Path::new("/"));
    if !folder.exists() {
        // An existing directory keeps its mode: its owner has decided on access.
        fs::create_dir_all(folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(FOLDER_MODE))?;
        give(folder, group)?;
    }
    // If two agents find the same dead socket, the second must not remove the first one's new socket.
    let _one = lock(folder);
    if is_dead(path)? {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::from_std(bind(path)?)?;
    let file = SocketFile {
        id: id(path)?,
        path: path.to_owned(),
    };
    give(path, group)?;
    fs::set_permissions(path, fs::Permissions::from_mode(MODE))?;
    Ok((listener, file))
}

/// Binds a listener that does not block, for the owner alone until its mode and group are set. Linux takes the file's mode
/// from the socket's; the umask is that of all threads.
fn bind(path: &Path) -> io::Result<net::UnixListener> {
    let address = SocketAddrUnix::new(path)
        .map_err(|errno| io::Error::new(io::ErrorKind::InvalidInput, io::Error::from(errno)))?;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Whether the path is a socket without a listener.
fn is_dead(path: &Path) -> Result<bool, SocketError> {
    let system = |errno: Errno| SocketError::System(errno.into());
    // `bind` reports a path that is too long.
    let Ok(address) = SocketAddrUnix::new(path) else {
        return Ok(false);
    };
    // A listener with a full queue would block the start.
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(system)?;
    match connect(&socket, &address) {
        Ok(()) | Err(Errno::AGAIN | Errno::INPROGRESS | Errno::PROTOTYPE) => {
            Err(SocketError::Taken)
        }
        // A file that is not a socket is refused likewise.
        Err(Errno::CONNREFUSED) if fs::symlink_metadata(path)?.file_type().is_socket() => Ok(true),
        Err(Errno::CONNREFUSED) => Err(SocketError::NotASocket),
        // `bind` reports the reason.
        Err(_) => Ok(false),
    }
}

/// Locks the folder until the result is dropped; `None` if it cannot be locked.
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

/// Changes a file's group to the one that may use the socket, if there is one.
fn give(path: &Path, group: Option<Gid>) -> io::Result<()> {
    let Some(group) = group else { return Ok(()) };
    match nix::unistd::chown(path, None, Some(group)) {
        // Without CAP_CHOWN and membership in the group, only root can use the socket, which is safe.
        Err(nix::errno::Errno::EPERM) => {
            tracing::warn!(
                "{} cannot be given to the group {GROUP}, so that only root may use it: add the group to those \
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
    use rustix::net::Shutdown;

    use super::*;

    /// Listens once, within a runtime like the agent's.
    fn try_listen(path: &Path) -> Result<(), SocketError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async { listen(path).map(drop) })
    }

    /// Ends a listener. A process that another test starts may have a copy of it until it runs its program.
    fn end(listener: net::UnixListener) {
        rustix::net::shutdown(&listener, Shutdown::Both).unwrap();
        drop(listener);
    }

    #[test]
    fn a_socket_is_for_its_owner_until_it_is_given() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decide.sock");
        let mode = || fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o777;
        let listener = bind(&path).unwrap();
        assert_eq!(mode(), 0o600);
        end(listener);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let _listener = runtime.block_on(async { listen(&path).unwrap() });
        assert_eq!(mode(), MODE);
        net::UnixStream::connect(&path).unwrap();
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
        // A symbolic link is not the socket that it points to.
        let elsewhere = folder.path().join("elsewhere.sock");
        end(net::UnixListener::bind(&elsewhere).unwrap());
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert!(matches!(try_listen(&path), Err(SocketError::NotASocket)));
        assert!(elsewhere.exists());
        fs::remove_file(&path).unwrap();

        let alive = net::UnixListener::bind(&path).unwrap();
        assert!(matches!(try_listen(&path), Err(SocketError::Taken)));
        // A listener that accepts no connection is alive, too.
        let full: Vec<_> = std::iter::from_fn(|| {
            let socket = socket_with(
                AddressFamily::UNIX,
                SocketType::STREAM,
                SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
                None,
            )
            .unwrap();
            connect(&socket, &SocketAddrUnix::new(&path).unwrap())
                .ok()
                .map(|()| socket)
        })
        .collect();
        assert!(
            matches!(try_listen(&path), Err(SocketError::Taken)),
            "with {} clients waiting",
            full.len()
        );
        end(alive);
        try_listen(&path).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn another_process_socket_is_left_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decide.sock");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let ours = runtime.block_on(async { listen(&path).unwrap() });
        fs::rename(&path, folder.path().join("old.sock")).unwrap();
        let _theirs = net::UnixListener::bind(&path).unwrap();
        drop(ours);
        assert!(path.exists());
    }
}
