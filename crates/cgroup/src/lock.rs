//! One agent per parent of cgroups: a second one would end the groups of the first.

use std::fs::{self, File};
use std::path::PathBuf;

use nix::fcntl::{Flock, FlockArg};

use super::error::GroupsError;
use super::host_paths::Host;
use super::place::Manager;
use super::tree::{Cpuset, Tree};

/// The lock on the parent of Weir's cgroups, until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _held: Flock<File>,
}

impl Lock {
    /// Takes the lock. Where Weir creates cgroups, it is on the parent's directory, which is created: two agents with
    /// the same cgroups always share it. Where systemd creates them, it is a file named after the parent.
    ///
    /// # Errors
    ///
    /// When another agent has it, or the directory or file cannot be created.
    pub fn take(tree: &Tree, host: &Host) -> Result<Self, GroupsError> {
        let (path, file) = match host.manager {
            Manager::None => directory(tree)?,
            Manager::Systemd => named(tree, host)?,
        };
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(held) => Ok(Self { _held: held }),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Err(GroupsError::Locked {
                parent: tree.parent().to_owned(),
                path,
            }),
            Err((_, error)) => Err(GroupsError::read(&path, error.into())),
        }
    }
}

fn directory(tree: &Tree) -> Result<(PathBuf, File), GroupsError> {
    let root = tree
        .roots(Cpuset::Any)
        .into_iter()
        .next()
        .ok_or(GroupsError::NotMounted)?;
    let path = root.join(tree.parent());
    fs::create_dir_all(&path).map_err(|source| GroupsError::Make {
        path: path.clone(),
        source,
    })?;
    let file = File::open(&path).map_err(|source| GroupsError::read(&path, source))?;
    Ok((path, file))
}

fn named(tree: &Tree, host: &Host) -> Result<(PathBuf, File), GroupsError> {
    let path = host
        .locks
        .join(format!("groups-{}.lock", tree.parent().replace('/', "-")));
    let file = fs::create_dir_all(&host.locks).and_then(|()| File::create(&path));
    let file =
        file.map_err(|source| GroupsError::write(&path, "the lock of process groups", source))?;
    Ok((path, file))
}
