//! Maps of a loaded object, by name.

use aya::Ebpf;
use aya::maps::{Map, MapData, MapError};

use crate::error::LoadError;

pub(crate) fn map<'e>(ebpf: &'e Ebpf, name: &'static str) -> Result<&'e Map, LoadError> {
    ebpf.map(name).ok_or(LoadError::ForeignObject)
}

pub(crate) fn map_mut<'e>(
    ebpf: &'e mut Ebpf,
    name: &'static str,
) -> Result<&'e mut Map, LoadError> {
    ebpf.map_mut(name).ok_or(LoadError::ForeignObject)
}

/// Treats a missing element as removed. aya reports it as a failed system call.
pub(crate) fn unless_missing(removed: Result<(), MapError>) -> Result<(), MapError> {
    match removed {
        Err(MapError::SyscallError(error))
            if error.io_error.raw_os_error() == Some(libc::ENOENT) =>
        {
            Ok(())
        }
        other => other,
    }
}

/// The map data of an array, whose file descriptor can be mapped into memory.
pub(crate) fn array_of<'e>(ebpf: &'e Ebpf, name: &'static str) -> Result<&'e MapData, LoadError> {
    match map(ebpf, name)? {
        Map::Array(data) => Ok(data),
        _ => Err(LoadError::ForeignObject),
    }
}
