//! Writes a policy into the maps of its program.

use aya::Ebpf;
use aya::maps::Array;
use common::bank::Bank;
use common::scope::ScopeSpans;
use common::settings::{Mark, PortSpans};

use super::access::{array_of, map_mut};
use super::prefixes;
use super::rows::Rows;
use crate::compile::Image;
use crate::error::LoadError;

/// Writes what stays until the program is replaced; the program evaluates no packet yet.
pub(crate) fn write(ebpf: &mut Ebpf, image: &Image) -> Result<(), LoadError> {
    let mut marks = Array::<_, Mark>::try_from(map_mut(ebpf, "MARKS")?)?;
    for (row, mark) in (0u32..).zip(&image.marks) {
        marks.set(row, mark, 0)?;
    }
    let mut ports = Array::<_, PortSpans>::try_from(map_mut(ebpf, "PORTS")?)?;
    for (port, spans) in (0u32..).zip(&image.ports) {
        // Most ports have no specific limits and share one row's content; rows are initially zero.
        if *spans != PortSpans::default() {
            ports.set(port, spans, 0)?;
        }
    }
    let mut scopes = Array::<_, ScopeSpans>::try_from(map_mut(ebpf, "SCOPES")?)?;
    for (row, spans) in (0u32..).zip(&image.scopes) {
        scopes.set(row, spans, 0)?;
    }
    Ok(())
}

/// Writes the rules and prefixes into a bank that no packet uses; their roots are a part of the runtime settings.
pub(crate) fn write_bank(
    ebpf: &Ebpf,
    rows: &Rows,
    bank: Bank,
    lines_of_bank: u32,
    image: &Image,
) -> Result<(), LoadError> {
    rows.write(rows.first_of(bank), &image.rules);
    prefixes::write(
        array_of(ebpf, "PREFIXES")?,
        bank.first(lines_of_bank),
        &image.prefixes,
    )
}
