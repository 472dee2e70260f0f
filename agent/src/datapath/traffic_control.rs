//! Attaching by traffic control: TCX on Linux 6.6 and newer, before that a filter of the clsact queueing discipline.
//!
//! A TCX link is pinned like one of XDP. A filter stays by itself when the agent is gone; the program pinned beside it
//! tells the next agent, and `agent detach`, that it is ours.

use std::path::Path;

use aya::pin::PinError;
use aya::programs::links::{FdLink, LinkError, LinkOrder, PinnedLink};
use aya::programs::tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcError, TcHandle, qdisc_add_clsact};
use aya::programs::{ProgramError, SchedClassifier, TcAttachType};
use aya::util::KernelVersion;
use common::packet::Direction;
use thiserror::Error;

use super::error::errno;
use crate::link;

/// Where our filter is among those of a device: before all others, by a handle of our own.
const PRIORITY: u16 = 1;
const HANDLE: TcHandle = TcHandle::new(0x7765, 0x6972);

/// What keeps a program attached.
#[derive(Debug)]
pub enum TcHold {
    /// A TCX link.
    Link(FdLink),
    /// A filter, which needs nobody to keep it.
    Filter,
}

/// Whether this kernel has TCX links (commit e420bed02507, Linux 6.6).
pub fn has_tcx() -> bool {
    KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(6, 6, 0))
}

const fn side(direction: Direction) -> TcAttachType {
    match direction {
        Direction::Ingress => TcAttachType::Ingress,
        Direction::Egress => TcAttachType::Egress,
    }
}

/// Attaching failed.
#[derive(Debug, Error)]
pub enum TcAttachError {
    /// The kernel refused.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The filter cannot be made known to the next agent.
    #[error("pinning its program failed: {0}")]
    Pin(#[from] PinError),
    /// The kernel did not hand over the link.
    #[error(transparent)]
    Link(#[from] LinkError),
}

impl From<TcError> for TcAttachError {
    fn from(error: TcError) -> Self {
        Self::Program(error.into())
    }
}

/// Attaches `program` in place of what an earlier agent pinned at `pin`. Returns what holds it, and whether it is new.
pub fn attach(
    program: &mut SchedClassifier,
    interface: &str,
    direction: Direction,
    pin: &Path,
) -> Result<(TcHold, bool), TcAttachError> {
    if has_tcx() {
        attach_link(program, interface, direction, pin)
    } else {
        attach_filter(program, interface, direction, pin)
    }
}

fn attach_link(
    program: &mut SchedClassifier,
    interface: &str,
    direction: Direction,
    pin: &Path,
) -> Result<(TcHold, bool), TcAttachError> {
    if let Some(link) = take_over(program, pin) {
        return Ok((TcHold::Link(link), false));
    }
    // What comes in is held before others look at it, what goes out after they have changed it.
    let order = match direction {
        Direction::Ingress => LinkOrder::first(),
        Direction::Egress => LinkOrder::last(),
    };
    let id = program.attach_with_options(interface, side(direction), TcAttachOptions::TcxOrder(order))?;
    let link = FdLink::try_from(program.take_link(id)?)?;
    Ok((TcHold::Link(link), true))
}

fn take_over(program: &mut SchedClassifier, pin: &Path) -> Option<FdLink> {
    let link = PinnedLink::from_pin(pin).ok()?;
    let link = SchedClassifierLink::try_from(FdLink::from(link)).ok()?;
    let link = program.attach_to_link(link).and_then(|id| program.take_link(id)).ok();
    if link.is_none() {
        // The device it was for is gone, and with it the link: its name is free for a new one.
        let _ = link::release(pin);
    }
    FdLink::try_from(link?).ok()
}

fn attach_filter(
    program: &mut SchedClassifier,
    interface: &str,
    direction: Direction,
    pin: &Path,
) -> Result<(TcHold, bool), TcAttachError> {
    match qdisc_add_clsact(interface) {
        // Somebody, or an earlier agent, has added it: it is there for all.
        Ok(()) | Err(TcError::AlreadyAttached) => {}
        Err(error) if errno(&error) == Some(libc::EEXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let replaced = if pin.exists() {
        let known = SchedClassifierLink::attached(interface, side(direction), PRIORITY, HANDLE, None).ok();
        let _ = std::fs::remove_file(pin);
        known.and_then(|link| program.attach_to_link(link).ok())
    } else {
        None
    };
    let is_new = replaced.is_none();
    let id = match replaced {
        Some(id) => id,
        None => {
            let options = NlOptions { priority: PRIORITY, handle: HANDLE, classid: None };
            program.attach_with_options(interface, side(direction), TcAttachOptions::Netlink(options))?
        }
    };
    // Dropping it would take the filter off.
    std::mem::forget(program.take_link(id)?);
    program.pin(pin)?;
    Ok((TcHold::Filter, is_new))
}

/// Takes our filter off a device. One that is not there any more, with or without its device, is no failure.
pub fn remove_filter(interface: &str, direction: Direction) {
    if let Ok(link) = SchedClassifierLink::attached(interface, side(direction), PRIORITY, HANDLE, None) {
        drop(link);
    }
}
