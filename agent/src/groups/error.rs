//! What can go wrong between a group and its cgroup, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// A group, or a part of it, that is not as the config wants it. Its other parts stand.
#[derive(Debug, Error)]
pub enum GroupsError {
    /// No cgroup file system.
    #[error(
        "no cgroup file system is mounted, so no process group is held to anything: mount one (mount -t cgroup2 cgroup2 /sys/fs/cgroup)"
    )]
    NotMounted,
    /// No mount table.
    #[error("reading {} failed: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A cgroup cannot be made.
    #[error("making the cgroup {} failed: {source}{}", path.display(), help(source))]
    Make {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A cgroup cannot be removed.
    #[error("removing the cgroup {} failed: {source}", path.display())]
    Remove {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel refused a value.
    #[error("writing {value:?} to {} failed: {source}{}", path.display(), help(source))]
    Write {
        /// Which file.
        path: PathBuf,
        /// What.
        value: String,
        /// Why.
        source: io::Error,
    },
    /// A controller is nowhere.
    #[error("this host has no {controller} controller in any cgroup hierarchy: {what} is not held")]
    NoController {
        /// Which.
        controller: &'static str,
        /// What wanted it.
        what: &'static str,
    },
    /// Version 1 of cgroups cannot.
    #[error(
        "the {controller} controller is mounted as cgroup v1, which {cannot}: boot with systemd.unified_cgroup_hierarchy=1, or leave it out"
    )]
    OldVersion {
        /// Which.
        controller: &'static str,
        /// What it cannot.
        cannot: &'static str,
    },
    /// More than the host has.
    #[error("cpu max {percent}% is more than the {host}% that this host's CPUs have: it cannot hold anybody")]
    MoreThanHost {
        /// What is wanted.
        percent: f64,
        /// What there is.
        host: u64,
    },
    /// No such disk.
    #[error("io device {} {reason}: name a block device as `lsblk --paths` shows it, or a path on one", path.display())]
    Device {
        /// What was named.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// No such user.
    #[error("there is no user {0:?} on this host: it matches no process")]
    User(String),
    /// No such group.
    #[error("there is no group {name:?}; there {present}")]
    NoGroup {
        /// What was asked for.
        name: String,
        /// What there is.
        present: String,
    },
    /// The kernel programs of the groups.
    #[error("{what} failed: {reason}")]
    Kernel {
        /// What was tried.
        what: String,
        /// What aya or the kernel said.
        reason: String,
    },
}

/// What usually helps.
fn help(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EROFS) => "; it is mounted read-only: remount it writable",
        Some(libc::EACCES | libc::EPERM) => "; run as root, in a cgroup that is delegated to the agent (Delegate=yes)",
        Some(libc::EOPNOTSUPP) => "; processes lie in an inner cgroup: move them out of it",
        Some(libc::EBUSY) => "; processes lie in an inner cgroup, or another hierarchy has the controller",
        Some(libc::EINVAL) => "; the kernel does not take this value",
        Some(libc::ENODEV) => "; the kernel does not throttle this device",
        Some(libc::ENOENT) => "; this kernel, or this cgroup, has no such file",
        _ => "",
    }
}

impl GroupsError {
    /// The same without the value, so that one fault that befalls many processes is one note.
    pub(super) fn without_value(self) -> Self {
        match self {
            Self::Write { path, source, .. } => Self::Write { path, value: "a process".to_owned(), source },
            other => other,
        }
    }

    /// Reading `path` failed.
    pub(super) fn read(path: &Path, source: io::Error) -> Self {
        Self::Read { path: path.to_owned(), source }
    }

    /// Writing `value` to `path` failed.
    pub(super) fn write(path: &Path, value: &str, source: io::Error) -> Self {
        Self::Write { path: path.to_owned(), value: value.to_owned(), source }
    }
}
