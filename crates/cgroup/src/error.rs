//! Errors of process groups.

use std::io;
use std::path::{Path, PathBuf};

use api::group::Emergency;
use host::Damaged;
use thiserror::Error;

/// A group or a part of it cannot be enforced as configured. The rest is enforced.
#[derive(Debug, Error)]
pub enum GroupsError {
    #[error(
        "no cgroup file system is mounted: no process group is enforced; run mount -t cgroup2 cgroup2 /sys/fs/cgroup"
    )]
    NotMounted,
    /// The agent lacks a capability.
    #[error(
        "CAP_SYS_PTRACE is missing: programs of other users' processes are not seen, nor matched by exe; under systemd, run `systemctl daemon-reload && systemctl restart weir` as root, or link groups.conf for a config elsewhere (docs/SERVICE.md: Permissions)"
    )]
    ProgramsHidden,
    /// A file of an earlier agent cannot be used.
    #[error("{lost}: {damaged}")]
    Damaged {
        /// The consequence.
        lost: &'static str,
        damaged: Damaged,
    },
    /// A file cannot be read.
    #[error("reading {} failed: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A cgroup cannot be created.
    #[error("creating the cgroup {} failed: {source}{}", path.display(), help(source))]
    Make { path: PathBuf, source: io::Error },
    /// A cgroup cannot be removed.
    #[error("removing the cgroup {} failed: {source}", path.display())]
    Remove { path: PathBuf, source: io::Error },
    /// The kernel rejected a value.
    #[error("writing {value:?} to {} failed: {source}{}", path.display(), help(source))]
    Write {
        path: PathBuf,
        value: String,
        source: io::Error,
    },
    /// No hierarchy has the controller.
    #[error(
        "this host has no {controller} controller in any cgroup hierarchy: {what} is not enforced"
    )]
    NoController {
        controller: &'static str,
        /// The key that requires it.
        what: &'static str,
    },
    /// Cgroup v1 does not support it.
    #[error(
        "the {controller} controller is mounted as cgroup v1, which {cannot}; boot with systemd.unified_cgroup_hierarchy=1, or leave it out"
    )]
    OldVersion {
        controller: &'static str,
        cannot: &'static str,
    },
    /// The config requires more CPU time than the host has.
    #[error("cpu max {percent}% has no effect: this host's CPUs have {host}%; write less")]
    MoreThanHost {
        /// The configured share, in percent of one CPU.
        percent: f64,
        /// The host's total, in percent of one CPU.
        host: u64,
    },
    /// The disk does not exist.
    #[error("io device {} {reason}: name a block device as `lsblk --paths` shows it, or a path on one", path.display())]
    Device {
        /// The configured path.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The user does not exist.
    #[error(
        "unknown user {0:?} on this host: it matches no process; correct the name, or add the user"
    )]
    User(String),
    /// A file system hangs.
    #[error(
        "the file system of exe {} does not respond: only programs that run under this path match, and not those behind a symbolic link; check its mount", .0.display()
    )]
    Silent(PathBuf),
    /// The group does not exist.
    #[error("unknown group {name:?} (available: {present})")]
    NoGroup {
        /// The name in the request.
        name: String,
        /// The existing groups.
        present: String,
    },
    /// A cgroup contains the agent or the host's first process.
    #[error(
        "{} {path} is not supported: it contains {whom}; match units or a slice without it, or {}", verb(*what), instead(*what)
    )]
    Untouchable {
        path: String,
        /// The process.
        whom: &'static str,
        what: Emergency,
    },
    /// Another agent enforces process groups.
    #[error(
        "another agent enforces process groups below {} (lock on {}): stop it, or set [agent] cgroup to a name of this agent's own", parent, path.display()
    )]
    Locked {
        parent: String,
        /// The locked file.
        path: PathBuf,
    },
    /// The host refuses a thread.
    #[error("starting the thread {name} failed: {source}; it is tried again")]
    Thread {
        name: &'static str,
        source: io::Error,
    },
    /// The host refuses a thread that a command needs.
    #[error(
        "starting the thread {name} failed: {source}; try again once the host has free process IDs and memory"
    )]
    Refused {
        name: &'static str,
        source: io::Error,
    },
    /// A request to systemd failed.
    #[error("{what} through systemd failed: {reason}")]
    Systemd {
        /// The request.
        what: String,
        /// The error from systemd or D-Bus.
        reason: String,
    },
    /// Another program's limit on the cgroup differs.
    #[error(
        "{path}: {file} is {theirs} already, set by another program, and stays: {ours} is not enforced"
    )]
    SetByOthers {
        path: String,
        /// The limit's file or property.
        file: String,
        /// The other program's value.
        theirs: String,
        /// The group's value.
        ours: String,
    },
    /// A cgroup that its owner can change.
    #[error(
        "{path} belongs to user {user}, who can lift any limit on it: limit the slice or service above it instead"
    )]
    Delegated {
        path: String,
        /// The owner's user ID.
        user: u32,
    },
    /// A process cannot be moved back.
    #[error("process {pid} stays in {at}: {from}, where it came from, {reason}")]
    Stays {
        pid: u32,
        /// Its present cgroup.
        at: String,
        /// Its previous cgroup.
        from: String,
        reason: String,
    },
    /// The previous cgroup of a process is unknown.
    #[error(
        "process {pid} stays in {at}, without limits: no record has the cgroup that it came from; restart its service, or write {pid} to the cgroup.procs of another cgroup"
    )]
    NoOrigin {
        pid: u32,
        /// Its present cgroup.
        at: String,
    },
    /// The kernel programs of the groups failed.
    #[error("{what} failed: {reason}")]
    Kernel {
        /// The operation.
        what: String,
        /// The error from aya or the kernel.
        reason: String,
    },
}

const fn verb(what: Emergency) -> &'static str {
    match what {
        Emergency::Freeze => "freezing",
        Emergency::Thaw => "thawing",
        Emergency::Kill => "killing",
    }
}

/// The command for single units.
const fn instead(what: Emergency) -> &'static str {
    match what {
        Emergency::Freeze => "run `systemctl freeze UNIT` for single units",
        Emergency::Thaw => "run `systemctl thaw UNIT` for single units",
        Emergency::Kill => "run `systemctl kill --signal=KILL UNIT` for single units",
    }
}

/// The usual fix for this error.
fn help(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EROFS) => {
            "; it is read-only: remount it writable, or under systemd permit groups (docs/SERVICE.md: Permissions)"
        }
        Some(libc::EACCES | libc::EPERM) => {
            "; run as root, under systemd with CAP_DAC_OVERRIDE (docs/SERVICE.md)"
        }
        Some(libc::EOPNOTSUPP) => "; processes lie in an inner cgroup: move them out of it",
        Some(libc::EBUSY) => {
            "; processes lie in an inner cgroup, or another hierarchy has the controller"
        }
        Some(libc::EINVAL) => "; the kernel rejects this value",
        Some(libc::ENODEV) => "; the kernel does not throttle this device",
        Some(libc::ENOENT) => "; this kernel, or this cgroup, has no such file",
        _ => "",
    }
}

impl GroupsError {
    /// The records of an earlier agent, if they can be used; else none, and the error with its consequence.
    pub(super) fn or_damaged<T: Default>(
        saved: Result<Option<T>, Damaged>,
        lost: &'static str,
    ) -> (T, Option<Self>) {
        match saved {
            Ok(saved) => (saved.unwrap_or_default(), None),
            Err(damaged) => (T::default(), Some(Self::Damaged { lost, damaged })),
        }
    }

    /// The same error without the value, so that one cause for many processes gives one note.
    pub(super) fn without_value(self) -> Self {
        match self {
            Self::Write { path, source, .. } => Self::Write {
                path,
                value: "a process".to_owned(),
                source,
            },
            other => other,
        }
    }

    /// Whether it keeps the limit in this file of a cgroup from being set.
    pub(super) fn keeps(&self, limit: &str) -> bool {
        match self {
            Self::Delegated { .. } | Self::Systemd { .. } => true,
            Self::SetByOthers { file, .. } => file == limit,
            Self::Read { path, .. } | Self::Write { path, .. } => path.ends_with(limit),
            _ => false,
        }
    }

    /// Whether systemd replied that it has no such unit.
    pub(super) fn is_no_such_unit(&self) -> bool {
        // The second if it disappears meanwhile.
        const NAMES: [&str; 2] = [
            "(org.freedesktop.systemd1.NoSuchUnit)",
            "(org.freedesktop.DBus.Error.UnknownObject)",
        ];
        match self {
            Self::Systemd { reason, .. } => NAMES.iter().any(|name| reason.ends_with(name)),
            _ => false,
        }
    }

    /// Reading `path` failed.
    pub(super) fn read(path: &Path, source: io::Error) -> Self {
        Self::Read {
            path: path.to_owned(),
            source,
        }
    }

    /// Writing `value` to `path` failed.
    pub(super) fn write(path: &Path, value: &str, source: io::Error) -> Self {
        Self::Write {
            path: path.to_owned(),
            value: value.to_owned(),
            source,
        }
    }
}
