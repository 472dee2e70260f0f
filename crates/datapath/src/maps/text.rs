//! Texts in kernel arrays: the length, then the bytes, in elements of [`TEXT_CHUNK`] bytes.

use std::borrow::BorrowMut;
use std::path::Path;

use aya::maps::{Array, Map, MapData};

use super::size::TEXT_CHUNK;
use crate::error::LoadError;

/// Bytes of the length.
const LENGTH: usize = size_of::<u64>();

/// The number of elements of a text's map.
pub(crate) fn chunks(text: &[u8]) -> u32 {
    (LENGTH + text.len()).div_ceil(TEXT_CHUNK) as u32
}

/// Writes a text into a map of sufficient size.
pub(crate) fn write(map: &mut Map, text: &[u8]) -> Result<(), LoadError> {
    fill(&mut Array::try_from(map)?, text)
}

/// Pins a text in a new map.
pub(crate) fn pin(path: &Path, text: &[u8]) -> Result<(), LoadError> {
    let mut array = Array::create(chunks(text), 0)?;
    fill(&mut array, text)?;
    array.pin(path).map_err(|error| LoadError::Pin {
        path: path.to_owned(),
        reason: error.to_string(),
    })
}

/// Reads a pinned text; `None` if there is none.
pub(crate) fn read(path: &Path) -> Option<Vec<u8>> {
    let array =
        Array::<_, [u8; TEXT_CHUNK]>::try_from(Map::Array(MapData::from_pin(path).ok()?)).ok()?;
    let mut bytes = Vec::new();
    for nth in 0..array.len() {
        bytes.extend(array.get(&nth, 0).ok()?);
    }
    let length = u64::from_le_bytes(bytes.get(..LENGTH)?.try_into().ok()?);
    Some(
        bytes
            .get(LENGTH..)?
            .get(..usize::try_from(length).ok()?)?
            .to_vec(),
    )
}

fn fill<T: BorrowMut<MapData>>(
    array: &mut Array<T, [u8; TEXT_CHUNK]>,
    text: &[u8],
) -> Result<(), LoadError> {
    let bytes = [(text.len() as u64).to_le_bytes().as_slice(), text].concat();
    for (nth, part) in (0u32..).zip(bytes.chunks(TEXT_CHUNK)) {
        let mut chunk = [0; TEXT_CHUNK];
        chunk[..part.len()].copy_from_slice(part);
        array.set(nth, chunk, 0)?;
    }
    Ok(())
}
