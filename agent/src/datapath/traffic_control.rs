//! Attaching by traffic control: TCX on Linux 6.6 and newer, before that a filter of the clsact queueing discipline.
//!
//! A TCX link is pinned like one of XDP. A filter stays by itself when the agent is gone. It carries the directory of pins
//! in its name, so that the next agent, and `agent detach`, find it without a pin too.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use aya::programs::tc::{TcError, qdisc_add_clsact};
use aya::util::KernelVersion;
use common::packet::Direction;
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcBpfFlags, TcFilterBpfOption, TcHandle, TcMessage, TcOption};

use super::device::{self, Filter};
use super::error::errno;
use super::pins::{Hook, HookOf, PinDirectory};
use crate::link;

/// Where our filter is among those of a device: before all others, by a handle of our own.
const PRIORITY: u16 = 1;
const HANDLE: TcHandle = TcHandle { major: 0x7765, minor: 0x6972 };
/// `ETH_P_ALL`, in network byte order.
const ALL_PROTOCOLS: u16 = 3u16.to_be();
/// How the name of our filters begins; older versions left it at the program's, `weir_tc` or `weir_tc_ip`.
const NAME: &str = "weir ";

/// Whether this kernel has TCX links (commit e420bed02507, Linux 6.6).
pub fn has_tcx() -> bool {
    KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(6, 6, 0))
}

fn name(pins: &PinDirectory) -> String {
    // The kernel takes 255 bytes; a longer path is told apart by its end.
    let path = pins.path().to_string_lossy();
    let start = path.char_indices().map(|(at, _)| at).find(|at| path.len() - at <= 240).unwrap_or(0);
    format!("{NAME}{}", &path[start..])
}

fn is_at_our_place(filter: &Filter) -> bool {
    (filter.handle, filter.priority) == (HANDLE, PRIORITY)
}

/// The program of our filter on a hook, by its number; `None` if there is no filter of ours.
///
/// # Errors
///
/// When the kernel does not tell.
pub fn filter(pins: &PinDirectory, of: HookOf) -> io::Result<Option<u32>> {
    let known = pinned_program(pins, of);
    let ours = name(pins);
    let filters = device::filters(of.index, of.hook.direction())?;
    let Some(found) = filters.into_iter().find(is_at_our_place) else { return Ok(None) };
    // One of an older version, which was killed before it had pinned it.
    let is_left_behind = || {
        let is_of_old_version = matches!(found.name.as_str(), "weir_tc" | "weir_tc_ip");
        is_of_old_version && found.program.is_some_and(|program| pins.pinned_beside(&[program]).is_none())
    };
    let is_ours = found.name == ours || known.is_some() && found.program == known || is_left_behind();
    Ok(found.program.filter(|_| is_ours))
}

fn pinned_program(pins: &PinDirectory, of: HookOf) -> Option<u32> {
    link::program_id(link::open(&pins.hooks().program(of)).ok()?.as_fd()).ok()
}

/// Puts a program on a hook as our filter: in place of the one that is there, in one step for packets, or as a new one.
///
/// # Errors
///
/// When the kernel refuses, or the place is taken by a filter that is not ours (`EEXIST`).
pub fn put_filter(pins: &PinDirectory, of: HookOf, program: BorrowedFd<'_>) -> io::Result<()> {
    let interface = nix::net::if_::if_indextoname(of.index)?.to_string_lossy().into_owned();
    match qdisc_add_clsact(&interface) {
        // Somebody, or an earlier agent, has added it: it is there for all.
        Ok(()) | Err(TcError::AlreadyAttached) => {}
        Err(error) if errno(&error) == Some(libc::EEXIST) => {}
        Err(error) => return Err(errno(&error).map_or_else(|| io::Error::other(error), io::Error::from_raw_os_error)),
    }
    let flags = match filter(pins, of)? {
        Some(_) => NLM_F_REPLACE,
        None => NLM_F_EXCL,
    };
    let mut message = message(of);
    message.attributes = vec![
        TcAttribute::Kind("bpf".to_owned()),
        TcAttribute::Options(vec![
            TcOption::Bpf(TcFilterBpfOption::ProgFd(program.as_raw_fd() as u32)),
            TcOption::Bpf(TcFilterBpfOption::ProgName(name(pins))),
            TcOption::Bpf(TcFilterBpfOption::Flags(TcBpfFlags::DirectAction)),
        ]),
    ];
    let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | flags;
    device::order(RouteNetlinkMessage::NewTrafficFilter(message), flags)
}

/// Takes our filter off a hook: the one of this name, or of this program. One that is not there is no failure.
pub fn remove_filter(pins: &PinDirectory, of: HookOf, program: Option<BorrowedFd<'_>>) {
    let program = program.and_then(|program| link::program_id(program).ok());
    let ours = name(pins);
    let is_ours = |filter: &Filter| {
        is_at_our_place(filter) && (filter.name == ours || program.is_some() && filter.program == program)
    };
    if device::filters(of.index, of.hook.direction()).unwrap_or_default().iter().any(is_ours) {
        let _ = device::order(RouteNetlinkMessage::DelTrafficFilter(message(of)), NLM_F_REQUEST | NLM_F_ACK);
    }
}

/// Takes our filters off every interface, also those that nothing is pinned for.
pub fn remove_strays(pins: &PinDirectory) {
    if has_tcx() {
        return;
    }
    for device in device::interfaces().unwrap_or_default() {
        for hook in [Hook::TcIngress, Hook::TcEgress] {
            remove_filter(pins, HookOf { hook, index: device.index }, None);
        }
    }
}

/// The interface with a filter of the program that is pinned here.
pub fn interface_of(pin: &Path, direction: Direction) -> Option<u32> {
    let program = link::program_id(link::open(pin).ok()?.as_fd()).ok()?;
    let has_it = |index: u32| {
        let filters = device::filters(index, direction).unwrap_or_default();
        filters.iter().any(|filter| is_at_our_place(filter) && filter.program == Some(program))
    };
    device::interfaces().ok()?.into_iter().map(|device| device.index).find(|index| has_it(*index))
}

fn message(of: HookOf) -> TcMessage {
    let mut message = TcMessage::with_index(of.index as i32);
    message.header.handle = HANDLE;
    message.header.parent = device::side(of.hook.direction());
    message.header.info = u32::from(PRIORITY) << 16 | u32::from(ALL_PROTOCOLS);
    message
}
