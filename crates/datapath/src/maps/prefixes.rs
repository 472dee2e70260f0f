//! Writes the search trees over prefixes through shared memory, which saves a system call for each line.

use std::os::fd::{AsFd, AsRawFd};

use aya::maps::MapData;
use common::prefix::{LINE_WORDS, Line};
use memmap2::MmapOptions;

use crate::error::LoadError;

/// Writes all lines into a map of sufficient size that no program uses yet.
pub(crate) fn write(map: &MapData, lines: &[Line]) -> Result<(), LoadError> {
    if lines.is_empty() {
        return Ok(());
    }
    let memory =
        MmapOptions::new().len(size_of_val(lines)).map_raw(map.fd().as_fd().as_raw_fd()).map_err(LoadError::Mmap)?;
    for (nth, line) in lines.iter().enumerate() {
        // SAFETY: within the mapping, which is page-aligned; nothing else reads or writes it yet.
        unsafe { memory.as_mut_ptr().cast::<[u64; LINE_WORDS]>().add(nth).write(line.0) };
    }
    Ok(())
}
