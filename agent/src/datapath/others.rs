//! Two agents on one interface would hold every packet twice: the second one finds the first, and leaves it alone.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use aya::programs::loaded_programs;
use common::packet::Direction;
use nix::fcntl::{Flock, FlockArg};

use super::device::Interface;
use super::error::{AttachError, LoadError};
use super::interface::{A_MOMENT, LETTING_GO};
use super::pins::{Hook, HookOf, HookPins, PinDirectory};
use super::{device, traffic_control};
use crate::link::{self, Target};

/// What the programs of every Weir are called.
const OURS: &str = "weir_";

/// Holds a directory of pins for as long as it lives, and no longer than the agent, however that ends.
#[derive(Debug)]
pub struct PinLock(#[expect(dead_code, reason = "held for what dropping it does")] Flock<File>);

impl PinDirectory {
    /// Makes sure that no other agent is running on these pins.
    ///
    /// # Errors
    ///
    /// When one is.
    pub fn lock(&self) -> Result<PinLock, LoadError> {
        let path = self.path();
        let directory = File::open(path).map_err(|source| LoadError::PinDirectory { path: path.to_owned(), source })?;
        match Flock::lock(directory, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(PinLock(lock)),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Err(LoadError::InUse { path: path.to_owned() }),
            Err((_, errno)) => Err(LoadError::PinDirectory { path: path.to_owned(), source: errno.into() }),
        }
    }

    /// Makes sure that no Weir with other pins holds the packets of an interface.
    ///
    /// # Errors
    ///
    /// When one does.
    pub fn check_others(&self, device: &Interface, direction: Direction) -> Result<(), AttachError> {
        let deadline = Instant::now() + LETTING_GO;
        loop {
            match self.other(device.index, direction) {
                // One that was detached a moment ago may still be letting go.
                Some(_) if Instant::now() < deadline => thread::sleep(A_MOMENT),
                Some(program) => return Err(AttachError::OtherWeir { interface: device.name.clone(), program }),
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
        // Those that are pinned beside us tell more, and can be asked with fewer capabilities.
        if let Some(place) = self.pinned_beside(&left) {
            return Some(format!("pinned at {}", place.display()));
        }
        let of_none = traffic_control::filter(self, HookOf { hook: Hook::of(direction), index }).ok().flatten();
        let is_others = |id: u32| left.contains(&id) && of_none != Some(id);
        loaded_programs()
            .filter_map(Result::ok)
            .filter(|program| is_others(program.id()))
            .filter_map(|program| program.name_as_str().map(str::to_owned))
            .find(|name| name.starts_with(OURS))
            .map(|name| format!("program {name}, with pins of its own"))
    }

    /// The directory beside this one that has one of these programs pinned.
    pub(super) fn pinned_beside(&self, programs: &[u32]) -> Option<PathBuf> {
        let beside = self.path().parent().and_then(|parent| fs::read_dir(parent).ok()).into_iter().flatten();
        let others = beside.filter_map(Result::ok).map(|entry| entry.path()).filter(|path| path != self.path());
        others
            .into_iter()
            .find(|path| HookPins::at(path.clone()).programs().iter().any(|program| programs.contains(program)))
    }
}

/// The programs that see the packets of an interface, by their numbers.
fn programs_on(index: u32, direction: Direction) -> HashSet<u32> {
    let target = match direction {
        Direction::Ingress => Target::TcxIngress,
        Direction::Egress => Target::TcxEgress,
    };
    // What cannot be asked is found out when attaching fails.
    let mut programs: HashSet<u32> = match direction {
        Direction::Ingress => device::xdp_programs(index).unwrap_or_default().into_iter().collect(),
        Direction::Egress => HashSet::new(),
    };
    if traffic_control::has_tcx() {
        programs.extend(link::chain(index, target).unwrap_or_default());
    } else {
        let filters = device::filters(index, direction).unwrap_or_default();
        programs.extend(filters.iter().filter_map(|filter| filter.program));
    }
    programs
}
