//! Reads and writes maps of the kernel in batches: `BPF_MAP_LOOKUP_BATCH` and `BPF_MAP_UPDATE_BATCH` (Linux 5.6; tries
//! have them later), which aya 0.14 lacks. Reading key by key takes two system calls each, and ends if the current key is
//! evicted.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use aya::Pod;
use bpf::syscall;

/// Entries per call. The kernel returns whole buckets, several at once.
const BATCH: usize = 4_096;
/// The same where there mostly are few: larger ones would be memory mapped and released at each call.
const SMALL_BATCH: usize = 512;
/// From `enum bpf_cmd` of Linux's uapi/linux/bpf.h.
const BPF_MAP_LOOKUP_BATCH: libc::c_long = 24;
const BPF_MAP_LOOKUP_AND_DELETE_BATCH: libc::c_long = 25;
const BPF_MAP_UPDATE_BATCH: libc::c_long = 26;

/// The part of `union bpf_attr` for batches.
#[repr(C)]
struct Attributes {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// Reads at most `most` entries of the map behind `map`, whose keys are `K` and whose values are `V`.
///
/// # Errors
///
/// The system's error; `ENOTSUPP` (524) or `EINVAL` where the kernel lacks the call.
///
/// # Panics
///
/// If a key is shorter than the kernel's cursor, 4 bytes.
pub(crate) fn entries<K: Pod + Default, V: Pod + Default>(
    map: BorrowedFd<'_>,
    most: usize,
) -> io::Result<Vec<(K, V)>> {
    read(BPF_MAP_LOOKUP_BATCH, BATCH, map, most)
}

/// Removes the entries of a hash map, and returns at most `most` of them.
///
/// # Errors
///
/// As [`entries`].
///
/// # Panics
///
/// As [`entries`].
pub(crate) fn take<K: Pod + Default, V: Pod + Default>(
    map: BorrowedFd<'_>,
    most: usize,
) -> io::Result<Vec<(K, V)>> {
    read(BPF_MAP_LOOKUP_AND_DELETE_BATCH, SMALL_BATCH, map, most)
}

fn read<K: Pod + Default, V: Pod + Default>(
    command: libc::c_long,
    batch: usize,
    map: BorrowedFd<'_>,
    most: usize,
) -> io::Result<Vec<(K, V)>> {
    assert!(size_of::<K>() >= 4);
    let mut found = Vec::new();
    let (mut keys, mut values) = (vec![K::default(); batch], vec![V::default(); batch]);
    // The kernel's cursor: for a hash map, a bucket's number.
    let mut cursor = [0u64; 2];
    let mut is_first = true;
    while found.len() < most {
        let mut attributes = Attributes {
            in_batch: if is_first {
                0
            } else {
                (&raw const cursor) as u64
            },
            out_batch: (&raw mut cursor) as u64,
            keys: keys.as_mut_ptr() as u64,
            values: values.as_mut_ptr() as u64,
            count: batch as u32,
            map_fd: map.as_raw_fd() as u32,
            elem_flags: 0,
            flags: 0,
        };
        // SAFETY: there is room for `count` keys and values, and for the cursor. Every bit pattern is a valid key and
        // value.
        let is_end = match unsafe { syscall::call(command, &mut attributes) } {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => return Err(error),
            result => result.is_err(),
        };
        let count = (attributes.count as usize)
            .min(batch)
            .min(most - found.len());
        found.extend(keys.iter().copied().zip(values.iter().copied()).take(count));
        if is_end {
            break;
        }
        is_first = false;
    }
    Ok(found)
}

/// Writes entries to the map behind `map`. After an error, some of them may be written.
///
/// # Errors
///
/// The system's error; `ENOTSUPP` (524) or `EINVAL` where the kernel lacks the call.
///
/// # Panics
///
/// If there are not as many values as keys.
pub(crate) fn update<K: Pod, V: Pod>(
    map: BorrowedFd<'_>,
    keys: &[K],
    values: &[V],
) -> io::Result<()> {
    assert_eq!(keys.len(), values.len());
    for (keys, values) in keys.chunks(BATCH).zip(values.chunks(BATCH)) {
        let mut attributes = Attributes {
            in_batch: 0,
            out_batch: 0,
            keys: keys.as_ptr() as u64,
            values: values.as_ptr() as u64,
            count: keys.len() as u32,
            map_fd: map.as_raw_fd() as u32,
            elem_flags: 0,
            flags: 0,
        };
        // SAFETY: `count` keys and values of the map's types are live; the kernel only reads them.
        unsafe { syscall::call(BPF_MAP_UPDATE_BATCH, &mut attributes)? };
    }
    Ok(())
}
