//! Two agents on one interface would hold every packet twice: the second one finds the first, and leaves it alone.

use std::collections::HashSet;
use std::fs::{self, File};
use std::thread;
use std::time::Instant;

use aya::programs::{SchedClassifier, TcAttachType, loaded_programs};
use common::packet::Direction;
use nix::fcntl::{Flock, FlockArg};

use super::error::{AttachError, LoadError};
use super::interface::{A_MOMENT, LETTING_GO, found};
use super::pins::PinDirectory;
use super::{device, table, traffic_control};

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
    /// When one does, or there is no such interface.
    pub fn check_others(&self, interface: &str, direction: Direction) -> Result<(), AttachError> {
        let (index, _) = found(interface)?;
        let deadline = Instant::now() + LETTING_GO;
        loop {
            match self.other(interface, index, direction) {
                // One that was detached a moment ago may still be letting go.
                Some(_) if Instant::now() < deadline => thread::sleep(A_MOMENT),
                Some(program) => return Err(AttachError::OtherWeir { interface: interface.to_owned(), program }),
                None => return Ok(()),
            }
        }
    }

    fn other(&self, interface: &str, index: u32, direction: Direction) -> Option<String> {
        let present = programs_on(interface, index, direction);
        if present.is_empty() {
            return None;
        }
        let own: HashSet<u32> = self
            .hooks()
            .iter()
            .filter(|hook| hook.interface == interface && hook.hook.direction() == direction)
            .filter_map(table::program_at)
            .collect();
        let is_others = |id: u32| present.contains(&id) && !own.contains(&id);
        // Those that are pinned beside us tell more, and can be asked with fewer capabilities.
        let beside = self.path().parent().and_then(|parent| fs::read_dir(parent).ok()).into_iter().flatten();
        let beside = beside.filter_map(Result::ok).filter(|entry| entry.path() != self.path());
        for entry in beside {
            let hooks = Self::at(entry.path()).hooks();
            let of_interface = hooks.iter().filter(|hook| hook.interface == interface);
            if of_interface.filter_map(table::program_at).any(is_others) {
                return Some(format!("pinned at {}", entry.path().display()));
            }
        }
        loaded_programs()
            .filter_map(Result::ok)
            .filter(|program| is_others(program.id()))
            .filter_map(|program| program.name_as_str().map(str::to_owned))
            .find(|name| name.starts_with(OURS))
            .map(|name| format!("program {name}, with pins of its own"))
    }
}

/// The programs that see the packets of an interface, by their numbers.
fn programs_on(interface: &str, index: u32, direction: Direction) -> HashSet<u32> {
    let side = match direction {
        Direction::Ingress => TcAttachType::Ingress,
        Direction::Egress => TcAttachType::Egress,
    };
    // What cannot be asked is found out when attaching fails.
    let mut programs: HashSet<u32> = match direction {
        Direction::Ingress => device::xdp_programs(index).unwrap_or_default().into_iter().collect(),
        Direction::Egress => HashSet::new(),
    };
    if !traffic_control::has_tcx() {
        programs.extend(device::filter_programs(index, direction).unwrap_or_default());
    } else if let Ok((_, chain)) = SchedClassifier::query_tcx(interface, side) {
        programs.extend(chain.iter().map(aya::programs::ProgramInfo::id));
    }
    programs
}
