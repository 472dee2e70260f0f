//! Weir's kernel programs for open connections: each socket's state, and the sockets that exist already. A separate
//! object, since its maps outlive every policy with the same limits. All decisions are in `common`.
#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![expect(
    missing_docs,
    reason = "the entry points that aya's macros generate have none"
)]
#![expect(
    internal_features,
    reason = "the BPF target has no stable compare-and-swap; see atomics.rs"
)]

#[path = "../atomics.rs"]
#[expect(
    dead_code,
    reason = "connections need only some of the operations that limits on packets do"
)]
mod atomics;
#[path = "../cell.rs"]
mod cell;

use core::ffi::c_void;

use aya_ebpf::Global;
use aya_ebpf::bindings::{BPF_F_NO_PREALLOC, BPF_NOEXIST};
use aya_ebpf::btf_maps::{Array, HashMap, LruHashMap, PerCpuArray};
use aya_ebpf::helpers::bpf_probe_read_kernel;
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use aya_ebpf::macros::{btf_map, btf_tracepoint};
use aya_ebpf::programs::BtfTracePointContext;
use common::connections::{
    Addressed, Client, Connection, ConnectionSettings, MOST_STALE, Reservation, Stale, Tuple,
    establish, seen_at, window,
};
use common::key::Key;
use common::packet::Address;
use common::throttle::Cell;

use crate::cell::MapCell;

/// The constants of these programs; the agent writes them before they are verified.
#[unsafe(no_mangle)]
pub static CONNECTION_SETTINGS: Global<ConnectionSettings> = Global::new(ConnectionSettings::NONE);

/// Reads a field of the settings: a constant for the verifier.
macro_rules! setting {
    ($field:ident) => {{
        let settings = (&raw const CONNECTION_SETTINGS).cast::<ConnectionSettings>();
        // SAFETY: a field of an initialised static; the read is volatile since its value is that of load time.
        unsafe { (&raw const (*settings).$field).read_volatile() }
    }};
}

const ON_DEMAND: usize = BPF_F_NO_PREALLOC as usize;

/// The open connections of each key.
#[btf_map]
pub static OPEN: HashMap<Key, u64, 1, ON_DEMAND> = HashMap::new();

/// The reservations of each key.
#[btf_map]
pub static PENDING: LruHashMap<Key, u64, 1> = LruHashMap::new();

/// The keys of each reserved connection.
#[btf_map]
pub static RESERVED: LruHashMap<Tuple, Reservation, 1> = LruHashMap::new();

/// The reserved connection of each client.
#[btf_map]
pub static ADDRESSED: LruHashMap<Client, Addressed, 1> = LruHashMap::new();

/// The open connections, by the address of their socket.
#[btf_map]
pub static SOCKETS: HashMap<u64, Connection, 1, ON_DEMAND> = HashMap::new();

/// Connections that found no room.
#[btf_map]
pub static UNCOUNTED: PerCpuArray<u64, 1> = PerCpuArray::new();

/// The connections that [`weir_sockets`] removes once it has visited every socket.
#[btf_map]
pub static STALE: Array<Stale, { MOST_STALE as usize }> = Array::new();

/// Attempts to count down while other CPUs change the count. Then it is far from 0.
const TRIES: u32 = 16;

const ESTABLISHED: u32 = 1;
const SYN_RECEIVED: u32 = 3;
const TIME_WAIT: u32 = 6;
const CLOSE: u32 = 7;
const LISTEN: u32 = 10;
const NEW_SYN_RECEIVED: u32 = 12;
const IPV4: u16 = 2;
const IPV6: u16 = 10;

/// A socket's change of state. The kernel skips a tracing program that interrupts itself on the same CPU: a softirq
/// that interrupts the one of [`weir_socket`] finds that of [`weir_socket_too`] idle, or the reverse. Whatever one has
/// done, the other finds done.
#[btf_tracepoint(function = "inet_sock_set_state")]
pub fn weir_socket(context: BtfTracePointContext) -> i32 {
    change(&context)
}

/// See [`weir_socket`].
#[btf_tracepoint(function = "inet_sock_set_state")]
pub fn weir_socket_too(context: BtfTracePointContext) -> i32 {
    change(&context)
}

#[inline(always)]
fn change(context: &BtfTracePointContext) -> i32 {
    let (socket, before, state): (*const c_void, u32, u32) =
        (context.arg(0), context.arg(1), context.arg(2));
    match state {
        // From another state, this host has opened the connection: its client's reservation is another's.
        ESTABLISHED => open(socket, before == SYN_RECEIVED),
        CLOSE => close(socket as u64),
        _ => {}
    }
    0
}

/// `struct bpf_iter__tcp`.
#[repr(C)]
pub struct TcpIteration {
    _meta: *const c_void,
    socket: *const c_void,
}

/// Each socket of a namespace, while the kernel holds its lock; at the end, the entries that are to be removed.
///
/// # Safety
///
/// The kernel passes a valid context.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/tcp")]
pub unsafe extern "C" fn weir_sockets(context: *mut TcpIteration) -> i32 {
    // SAFETY: as the caller promises.
    let socket = unsafe { (*context).socket };
    if socket.is_null() {
        remove_stale();
        return 0;
    }
    let Some(state) = read::<u8>(socket, setting!(state)) else {
        return 0;
    };
    match u32::from(state) {
        CLOSE | TIME_WAIT | LISTEN | NEW_SYN_RECEIVED => {}
        _ => open(socket, false),
    }
    0
}

/// Removes the connections in [`STALE`].
#[inline(always)]
fn remove_stale() {
    for nth in 0..MOST_STALE {
        let Some(stale) = STALE.get_ptr_mut(nth) else {
            return;
        };
        // SAFETY: a map's value, which the agent writes before the visit.
        let Stale {
            socket,
            since,
            seen,
            ..
        } = unsafe { *stale };
        if socket == 0 {
            return;
        }
        weir_remove(socket, since, seen);
    }
}

/// Removes a connection, unless another one has taken its place or its socket has been seen. A global function of
/// numbers, so that it is verified once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_remove(socket: u64, since: u64, seen: u32) -> u32 {
    let is_meant = SOCKETS.get_ptr_mut(socket).is_some_and(|entry| {
        // SAFETY: as in `open`.
        unsafe { (*entry).since == since && (*entry).seen == seen }
    });
    if is_meant {
        close(socket);
    }
    0
}

/// The reservation of a connection by its socket, and whether the socket has another address than the client's packets.
/// One that is `new` is also found by its client, which may have a translation in between.
#[inline(always)]
fn reservation(tuple: &Tuple, is_new: bool, now: u64) -> Option<(*mut Reservation, bool)> {
    if let Some(reserved) = RESERVED.get_ptr_mut(tuple) {
        return Some((reserved, false));
    }
    if !is_new {
        return None;
    }
    let client = &Client::of(tuple);
    // SAFETY: a copy of a map's value, which is replaced as a whole.
    let addressed = unsafe { *ADDRESSED.get_ptr_mut(client)? };
    let original = &addressed.original(client, window(now))?;
    Some((RESERVED.get_ptr_mut(original)?, true))
}

/// Counts a connection that has a reservation.
#[inline(always)]
fn open(socket: *const c_void, is_new: bool) {
    let address = &(socket as u64);
    let tuple = tuple(socket);
    // SAFETY: a helper without arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    if let Some(known) = SOCKETS.get_ptr_mut(address) {
        // SAFETY: a map's value; only the socket's own changes write it, and they hold its lock.
        let known = unsafe { &mut *known };
        if tuple == Some(known.tuple) {
            known.seen = seen_at(now);
            return;
        }
        // The end of an earlier connection, whose socket had this address, was missed.
        close(*address);
    }
    let Some(tuple) = &tuple else { return };
    let Some((reserved, is_translated)) = reservation(tuple, is_new, now) else {
        return;
    };
    let connection = &Connection {
        // SAFETY: a copy of a map's value; after it was inserted, only its window changes.
        reservation: unsafe { *reserved },
        tuple: *tuple,
        since: now,
        counted: 0,
        seen: seen_at(now),
    };
    if SOCKETS
        .insert(address, connection, BPF_NOEXIST.into())
        .is_err()
    {
        lost();
        return;
    }
    let Some(opened) = SOCKETS.get_ptr_mut(address) else {
        return;
    };
    if is_translated {
        // SAFETY: an aligned word of a map's value.
        unsafe {
            (&raw mut (*reserved).window)
                .write_volatile(Reservation::window_when_taken(window(now)));
        }
    } else {
        let _ = RESERVED.remove(tuple);
    }
    let Reservation {
        keys,
        count: of,
        window: made,
    } = &connection.reservation;
    for (nth, key) in keys.iter().enumerate() {
        if nth as u32 >= *of {
            break;
        }
        let pending = || PENDING.get_ptr_mut(key).map(MapCell);
        if establish(|| count_up(key), pending, *made, window(connection.since)) {
            // SAFETY: a map's value; only the socket's own changes write it, and they hold its lock.
            unsafe { (*opened).counted |= 1 << nth };
        } else {
            lost();
        }
    }
}

/// Counts down for a connection that was counted.
#[inline(always)]
fn close(socket: u64) {
    let address = &socket;
    let Some(opened) = SOCKETS.get_ptr_mut(address) else {
        return;
    };
    // SAFETY: as in `open`. A copy, since the value is gone after its removal.
    let Connection {
        reservation,
        counted,
        ..
    } = &unsafe { *opened };
    if SOCKETS.remove(address).is_err() {
        return;
    }
    for (nth, key) in reservation.keys.iter().enumerate() {
        if nth as u32 >= reservation.count {
            break;
        }
        if counted & 1 << nth != 0 {
            count_down(key);
        }
    }
}

/// Adds one to the open connections of a key; `false` if it finds no room.
#[inline(always)]
fn count_up(key: &Key) -> bool {
    let open = OPEN.get_ptr_mut(key).or_else(|| {
        // Another CPU may have been first, and its value is kept.
        let _ = OPEN.insert(key, 0, BPF_NOEXIST.into());
        OPEN.get_ptr_mut(key)
    });
    let Some(open) = open else { return false };
    // SAFETY: a word of a map's value.
    unsafe { atomics::add(open, 1) };
    true
}

/// Takes one from the open connections of a key. Never below 0, which would be more than any limit: the agent removes keys
/// without connections, and may remove one that has just been counted.
#[inline(always)]
fn count_down(key: &Key) {
    let Some(open) = OPEN.get_ptr_mut(key).map(MapCell) else {
        return;
    };
    for _ in 0..TRIES {
        let before = open.load();
        if before == 0 || open.compare_exchange(before, before - 1) == before {
            return;
        }
    }
    // SAFETY: a word of a map's value.
    unsafe { atomics::add(open.0, u64::MAX) };
}

#[inline(always)]
fn lost() {
    if let Some(uncounted) = UNCOUNTED.get_ptr_mut(0) {
        // SAFETY: this CPU's own value.
        unsafe { *uncounted += 1 };
    }
}

/// The addresses and ports of a socket of TCP in the agent's namespace.
#[inline(always)]
fn tuple(socket: *const c_void) -> Option<Tuple> {
    let net: u64 = read(socket, setting!(net))?;
    let number: u32 = read(net as *const c_void, setting!(namespace_number))?;
    if number != setting!(namespace) {
        return None;
    }
    let remote_port: u16 = read(socket, setting!(remote_port))?;
    let local_port: u16 = read(socket, setting!(local_port))?;
    let (remote, local) = match read::<u16>(socket, setting!(family))? {
        IPV4 => (
            Address::from_ipv4_memory(read(socket, setting!(remote_ipv4))?),
            Address::from_ipv4_memory(read(socket, setting!(local_ipv4))?),
        ),
        IPV6 => (
            ipv6(read(socket, setting!(remote_ipv6))?),
            ipv6(read(socket, setting!(local_ipv6))?),
        ),
        _ => return None,
    };
    Some(Tuple {
        remote: [remote.hi, remote.lo],
        local: [local.hi, local.lo],
        remote_port: u32::from(u16::from_be(remote_port)),
        local_port: u32::from(local_port),
    })
}

#[inline(always)]
fn ipv6([hi, lo]: [u64; 2]) -> Address {
    Address { hi, lo }
}

/// A field of a structure of the kernel.
#[inline(always)]
fn read<T>(structure: *const c_void, offset: u32) -> Option<T> {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(structure.cast::<u8>().add(offset as usize).cast::<T>()) }.ok()
}

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The kernel restricts GPL-only helpers to programs with a compatible licence.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
