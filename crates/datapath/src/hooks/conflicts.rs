//! Detects other agents: two agents on one interface would charge every packet twice.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use aya::programs::loaded_programs;
use bpf::DirectoryError;
use bpf::link::{self, Target};
use common::packet::Direction;
use nix::fcntl::{Flock, FlockArg};

use crate::devices::device;
use crate::devices::device::Interface;
use crate::error::{AttachError, LoadError};
use crate::hooks::attach::{RELEASE_POLL, RELEASE_TIMEOUT};
use crate::hooks::hook::{Hook, HookOf, has_tcx};
use crate::hooks::pins::{HookPins, PinDirectory};
use crate::hooks::traffic_control;

/// The prefix of the names of Weir's programs.
const OURS: &str = "weir_";

/// A lock on a directory of pins. The kernel releases it when the process ends.
#[derive(Debug)]
pub struct PinLock(#[expect(dead_code, reason = "held for what dropping it does")] Flock<File>);

impl PinDirectory {
    /// Locks the pins against other agents.
    ///
    /// # Errors
    ///
    /// When another agent has the lock.
    pub fn lock(&self) -> Result<PinLock, LoadError> {
        let path = self.path();
        let fail = |source| DirectoryError::Open {
            path: path.to_owned(),
            source,
        };
        let directory = File::open(path).map_err(fail)?;
        match Flock::lock(directory, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(PinLock(lock)),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Err(LoadError::InUse {
                path: path.to_owned(),
            }),
            Err((_, errno)) => Err(fail(errno.into()).into()),
        }
    }

    /// Checks that no Weir agent with other pins is attached to an interface.
    ///
    /// # Errors
    ///
    /// When one is.
    pub fn check_others(
        &self,
        device: &Interface,
        direction: Direction,
    ) -> Result<(), AttachError> {
        let deadline = Instant::now() + RELEASE_TIMEOUT;
        loop {
            match self.other(device.index, direction) {
                // The kernel may still be detaching it.
                Some(_) if Instant::now() < deadline => thread::sleep(RELEASE_POLL),
                Some(program) => {
                    return Err(AttachError::OtherWeir {
                        interface: device.name.clone(),
                        program,
                    });
                }
                None => return Ok(()),
            }
        }
    }

    fn other(&self, index: u32, direction: Direction) -> Option<String> {
        let present = programs_on(index, direction);
        if present.is_empty() {
            return None;
        }
        let own = self.hooks().programs();
        let left: Vec<u32> = present.into_iter().filter(|id| !own.contains(id)).collect();
        // Programs pinned in a directory beside ours are found by path, with fewer capabilities.
        if let Some(place) = self.pinned_beside(&left) {
            return Some(format!("pinned at {}", place.display()));
        }
        let of_none = traffic_control::filter(
            self,
            HookOf {
                hook: Hook::of(direction),
                index,
            },
        )
        .ok()
        .flatten();
        let is_others = |id: u32| left.contains(&id) && of_none != Some(id);
        loaded_programs()
            .filter_map(Result::ok)
            .filter(|program| is_others(program.id()))
            .filter_map(|program| program.name_as_str().map(str::to_owned))
            .find(|name| name.starts_with(OURS))
            .map(|name| format!("program {name}, with pins of its own"))
    }

    /// The directory beside this one with a pin of one of these programs.
    pub(crate) fn pinned_beside(&self, programs: &[u32]) -> Option<PathBuf> {
        let beside = self
            .path()
            .parent()
            .and_then(|parent| fs::read_dir(parent).ok())
            .into_iter()
            .flatten();
        let others = beside
            .filter_map(Result::ok)
            .map(|entry| entry.path())
            .filter(|path| path != self.path());
        others.into_iter().find(|path| {
            HookPins::at(path.clone())
                .programs()
                .iter()
                .any(|program| programs.contains(program))
        })
    }
}

/// The IDs of the programs on an interface.
fn programs_on(index: u32, direction: Direction) -> HashSet<u32> {
    let target = match direction {
        Direction::Ingress => Target::TcxIngress,
        Direction::Egress => Target::TcxEgress,
    };
    // If this fails, attaching reports the conflict.
    let mut programs: HashSet<u32> = match direction {
        Direction::Ingress => device::xdp_programs(index)
            .unwrap_or_default()
            .into_iter()
            .collect(),
        Direction::Egress => HashSet::new(),
    };
    if has_tcx() {
        programs.extend(link::chain(index, target).unwrap_or_default());
    } else {
        let filters = device::filters(index, direction).unwrap_or_default();
        programs.extend(filters.iter().filter_map(|filter| filter.program));
    }
    programs
}
