//! Writes the search trees over prefixes through shared memory, which saves a system call for each line.

use std::os::fd::{AsFd, AsRawFd};

use aya::maps::MapData;
use common::prefix::{LINE_WORDS, Line};
use memmap2::MmapOptions;

use crate::error::LoadError;

/// Writes all lines into a map of sufficient size, from the line `first` on; no program reads these lines meanwhile.
pub(crate) fn write(map: &MapData, first: u32, lines: &[Line]) -> Result<(), LoadError> {
    if lines.is_empty() {
        return Ok(());
    }
    let first = first as usize;
    let memory = MmapOptions::new()
        .len((first + lines.len()) * size_of::<Line>())
        .map_raw(map.fd().as_fd().as_raw_fd())
        .map_err(LoadError::Mmap)?;
    for (nth, line) in (first..).zip(lines) {
        // SAFETY: within the mapping, which is page-aligned; nothing else reads or writes these lines.
        unsafe {
            memory
                .as_mut_ptr()
                .cast::<[u64; LINE_WORDS]>()
                .add(nth)
                .write(line.0);
        };
    }
    Ok(())
}
