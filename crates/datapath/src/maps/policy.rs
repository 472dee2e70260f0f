//! Writes a policy into the maps of its program, which evaluates no packet yet.

use aya::Ebpf;
use aya::maps::Array;
use common::rule::Rule;
use common::scope::ScopeSpans;
use common::settings::{Mark, PortSpans};

use super::access::{array_of, map_mut};
use super::prefixes;
use crate::compile::Image;
use crate::error::LoadError;

pub(crate) fn write(ebpf: &mut Ebpf, image: &Image) -> Result<(), LoadError> {
    let mut rules = Array::<_, Rule>::try_from(map_mut(ebpf, "RULES")?)?;
    for (row, rule) in (0u32..).zip(&image.rules) {
        rules.set(row, rule, 0)?;
    }
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
    prefixes::write(array_of(ebpf, "PREFIXES")?, &image.prefixes)
}
