//! Directories of pins.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// A directory cannot be used for pins.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// It cannot be created or opened.
    #[error("creating or opening the directory {} for pins failed: {source}; run as root, with bpffs mounted: mount -t bpf bpf /sys/fs/bpf", path.display())]
    Open { path: PathBuf, source: io::Error },
    /// It is on another file system.
    #[error("{} is not in a BPF file system: run mount -t bpf bpf /sys/fs/bpf, or set [agent] pins to a directory in one", path.display())]
    NotBpffs { path: PathBuf },
}

/// Creates a directory within a directory of pins, with its parents, if it does not exist.
///
/// # Errors
///
/// When it cannot be created.
pub fn create_directory(path: &Path) -> Result<(), DirectoryError> {
    fs::create_dir_all(path).map_err(|source| DirectoryError::Open {
        path: path.to_owned(),
        source,
    })
}

/// Creates a directory for pins if it does not exist.
///
/// # Errors
///
/// When it cannot be created, or is not in a BPF file system.
pub fn open_directory(path: &Path) -> Result<(), DirectoryError> {
    create_directory(path)?;
    let statistics = nix::sys::statfs::statfs(path).map_err(|errno| DirectoryError::Open {
        path: path.to_owned(),
        source: errno.into(),
    })?;
    if statistics.filesystem_type() != nix::sys::statfs::BPF_FS_MAGIC {
        return Err(DirectoryError::NotBpffs {
            path: path.to_owned(),
        });
    }
    Ok(())
}
