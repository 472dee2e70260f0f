//! Attaching by traffic control: TCX on Linux 6.6 and newer, before that a filter of the clsact queueing discipline.
//!
//! A TCX link is pinned like one of XDP. A filter stays when the agent ends. Its name contains the directory of pins,
//! so that the next agent and `weir detach` find it without a pin.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use aya::programs::tc::{TcError, qdisc_add_clsact};
use bpf::link;
use common::packet::Direction;
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{
    TcAttribute, TcBpfFlags, TcFilterBpfOption, TcHandle, TcMessage, TcOption,
};

use crate::devices::device::{self, Filter};
use crate::devices::netlink::execute;
use crate::error::errno;
use crate::hooks::hook::{Hook, HookOf, has_tcx};
use crate::hooks::pins::PinDirectory;

/// The priority and handle of Weir's filter, before all others of a device.
const PRIORITY: u16 = 1;
const HANDLE: TcHandle = TcHandle {
    major: 0x7765,
    minor: 0x6972,
};
/// `ETH_P_ALL`, in network byte order.
const ALL_PROTOCOLS: u16 = 3u16.to_be();
/// The prefix of the names of Weir's filters; older versions used the program's name, `weir_tc` or `weir_tc_ip`.
const NAME: &str = "weir ";

fn name(pins: &PinDirectory) -> String {
    // The kernel takes 255 bytes; a longer path is identified by its end.
    let path = pins.path().to_string_lossy();
    let start = path
        .char_indices()
        .map(|(at, _)| at)
        .find(|at| path.len() - at <= 240)
        .unwrap_or(0);
    format!("{NAME}{}", &path[start..])
}

pub(crate) fn is_at_our_place(filter: &Filter) -> bool {
    (filter.handle, filter.priority) == (HANDLE, PRIORITY)
}

/// The ID of the program of Weir's filter on a hook; `None` without such a filter.
///
/// # Errors
///
/// When netlink fails.
pub fn filter(pins: &PinDirectory, of: HookOf) -> io::Result<Option<u32>> {
    let known = pinned_program(pins, of);
    let ours = name(pins);
    let filters = device::filters(of.index, of.hook.direction())?;
    let Some(found) = filters.into_iter().find(is_at_our_place) else {
        return Ok(None);
    };
    // The filter of an older version that was killed before it pinned it.
    let is_left_behind = || {
        let is_of_old_version = matches!(found.name.as_str(), "weir_tc" | "weir_tc_ip");
        is_of_old_version
            && found
                .program
                .is_some_and(|program| pins.pinned_beside(&[program]).is_none())
    };
    let is_ours =
        found.name == ours || known.is_some() && found.program == known || is_left_behind();
    Ok(found.program.filter(|_| is_ours))
}

fn pinned_program(pins: &PinDirectory, of: HookOf) -> Option<u32> {
    link::program_id(link::open(&pins.hooks().program(of)).ok()?.as_fd()).ok()
}

/// Attaches a program as Weir's filter, and replaces the previous one atomically.
///
/// # Errors
///
/// When the kernel rejects it, or a filter of another program has its handle (`EEXIST`).
pub fn put_filter(pins: &PinDirectory, of: HookOf, program: BorrowedFd<'_>) -> io::Result<()> {
    let interface = nix::net::if_::if_indextoname(of.index)?
        .to_string_lossy()
        .into_owned();
    match qdisc_add_clsact(&interface) {
        // Another program or an earlier agent added it.
        Ok(()) | Err(TcError::AlreadyAttached) => {}
        Err(error) if errno(&error) == Some(libc::EEXIST) => {}
        Err(error) => {
            return Err(
                errno(&error).map_or_else(|| io::Error::other(error), io::Error::from_raw_os_error)
            );
        }
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
    execute(RouteNetlinkMessage::NewTrafficFilter(message), flags)
}

/// Removes Weir's filter, with this name or this program, from a hook, if it exists.
pub fn remove_filter(pins: &PinDirectory, of: HookOf, program: Option<BorrowedFd<'_>>) {
    let program = program.and_then(|program| link::program_id(program).ok());
    let ours = name(pins);
    let is_ours = |filter: &Filter| {
        is_at_our_place(filter)
            && (filter.name == ours || program.is_some() && filter.program == program)
    };
    if device::filters(of.index, of.hook.direction())
        .unwrap_or_default()
        .iter()
        .any(is_ours)
    {
        let _ = execute(
            RouteNetlinkMessage::DelTrafficFilter(message(of)),
            NLM_F_REQUEST | NLM_F_ACK,
        );
    }
}

/// Removes Weir's filters from every interface, including those without a pin.
pub fn remove_strays(pins: &PinDirectory) {
    if has_tcx() {
        return;
    }
    for device in device::interfaces().unwrap_or_default() {
        for hook in [Hook::TcIngress, Hook::TcEgress] {
            remove_filter(
                pins,
                HookOf {
                    hook,
                    index: device.index,
                },
                None,
            );
        }
    }
}

/// The interface with a filter of the pinned program.
pub fn interface_of(pin: &Path, direction: Direction) -> Option<u32> {
    let program = link::program_id(link::open(pin).ok()?.as_fd()).ok()?;
    let has_it = |index: u32| {
        let filters = device::filters(index, direction).unwrap_or_default();
        filters
            .iter()
            .any(|filter| is_at_our_place(filter) && filter.program == Some(program))
    };
    device::interfaces()
        .ok()?
        .into_iter()
        .map(|device| device.index)
        .find(|index| has_it(*index))
}

fn message(of: HookOf) -> TcMessage {
    let mut message = TcMessage::with_index(of.index as i32);
    message.header.handle = HANDLE;
    message.header.parent = device::side(of.hook.direction());
    message.header.info = u32::from(PRIORITY) << 16 | u32::from(ALL_PROTOCOLS);
    message
}
