//! Maps that the agent makes for an array of maps. aya 0.14 makes none whose descriptor can be mapped into memory, none
//! of rings, and removes none.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use aya::maps::Map;
use bpf::syscall;

/// From `enum bpf_cmd` of Linux's uapi/linux/bpf.h.
const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_DELETE_ELEM: libc::c_long = 3;

/// The part of `union bpf_attr` for the creation of a map.
#[derive(Default)]
#[repr(C)]
pub(super) struct Attributes {
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

/// The part of `union bpf_attr` for the removal of an element.
#[repr(C)]
struct Element {
    map_fd: u32,
    _pad: u32,
    key: u64,
}

pub(super) fn create(mut attributes: Attributes) -> io::Result<OwnedFd> {
    // SAFETY: plain integers, for a command that returns a descriptor.
    unsafe { syscall::descriptor(BPF_MAP_CREATE, &mut attributes) }
}

/// Takes the map at an index out of an array of maps; `false` if there was none.
pub(super) fn remove(outer: &Map, index: u32) -> io::Result<bool> {
    let Map::ArrayOfMaps(outer) = outer else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let mut element = Element {
        map_fd: outer.fd().as_fd().as_raw_fd() as u32,
        _pad: 0,
        key: (&raw const index) as u64,
    };
    // SAFETY: the key is live, and as long as the keys of an array.
    match unsafe { syscall::call(BPF_MAP_DELETE_ELEM, &mut element) } {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
        Ok(_) => Ok(true),
    }
}
