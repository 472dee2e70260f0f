//! Maps that the agent makes for an array of maps, by calls that aya 0.14 has not.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use aya::maps::Map;
use bpf::syscall;

/// From `enum bpf_cmd` of Linux's uapi/linux/bpf.h.
const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_MAP_DELETE_ELEM: libc::c_long = 3;

/// The part of `union bpf_attr` for the creation of a map.
#[derive(Default)]
#[repr(C)]
pub(super) struct MapAttributes {
    pub(super) map_type: u32,
    pub(super) key_size: u32,
    pub(super) value_size: u32,
    pub(super) max_entries: u32,
    pub(super) map_flags: u32,
    pub(super) inner_map_fd: u32,
    pub(super) numa_node: u32,
    pub(super) map_name: [u8; 16],
    pub(super) map_ifindex: u32,
    pub(super) btf_fd: u32,
    pub(super) btf_key_type_id: u32,
    pub(super) btf_value_type_id: u32,
}

/// The part of `union bpf_attr` for an element.
#[repr(C)]
struct Element {
    map_fd: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl Element {
    /// The element at an index of an array of maps; `value` is the address of its value.
    fn new(outer: BorrowedFd<'_>, index: &u32, value: u64) -> Self {
        Self {
            map_fd: outer.as_raw_fd() as u32,
            _pad: 0,
            key: (&raw const *index) as u64,
            value,
            flags: 0,
        }
    }
}

/// Whether there was an element, by the result of a call for it.
fn exists(result: io::Result<i32>) -> io::Result<bool> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        result => result.map(|_| true),
    }
}

pub(super) fn create(mut attributes: MapAttributes) -> io::Result<OwnedFd> {
    // SAFETY: plain integers, for a command that returns a descriptor.
    unsafe { syscall::descriptor(BPF_MAP_CREATE, &mut attributes) }
}

/// The descriptor of an array of maps.
pub(super) fn outer(map: &Map) -> io::Result<BorrowedFd<'_>> {
    match map {
        Map::ArrayOfMaps(outer) => Ok(outer.fd().as_fd()),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Puts a map at an index of an array of maps. The call takes a grace period of the kernel, some 10 to 20 ms.
pub(super) fn set(outer: BorrowedFd<'_>, index: u32, map: BorrowedFd<'_>) -> io::Result<()> {
    let value = map.as_raw_fd() as u32;
    let mut element = Element::new(outer, &index, (&raw const value) as u64);
    // SAFETY: key and value are live, and as long as those of an array of maps.
    unsafe { syscall::call(BPF_MAP_UPDATE_ELEM, &mut element) }.map(drop)
}

/// Whether there is a map at an index of an array of maps.
pub(super) fn has(outer: BorrowedFd<'_>, index: u32) -> io::Result<bool> {
    // The kernel writes the map's ID.
    let mut id = 0u32;
    let mut element = Element::new(outer, &index, (&raw mut id) as u64);
    // SAFETY: key and value are live, and as long as those of an array of maps.
    exists(unsafe { syscall::call(BPF_MAP_LOOKUP_ELEM, &mut element) })
}

/// Takes the map at an index out of an array of maps; `false` if there was none. No program uses the map any more when the
/// call returns, which takes as long as [`set`].
pub(super) fn remove(outer: BorrowedFd<'_>, index: u32) -> io::Result<bool> {
    let mut element = Element::new(outer, &index, 0);
    // SAFETY: the key is live, and as long as the keys of an array.
    exists(unsafe { syscall::call(BPF_MAP_DELETE_ELEM, &mut element) })
}
