//! The interfaces that a config is for, as the host has them at this moment.

use std::io;

use crate::config::policy::Config;
use crate::datapath::topology::Placement;
use crate::datapath::{Interface, host_interfaces};
use crate::stacking;

/// The names of the interfaces on this host that a config names and that charge packets, in the config's order. At start,
/// on each reload and whenever the host changes, this alone decides.
///
/// # Errors
///
/// When the kernel does not list its interfaces.
pub fn interfaces(config: &Config) -> io::Result<Vec<String>> {
    let placements = stacking::placements(config)?.into_iter();
    Ok(placements.filter(Placement::enforces).map(|placement| placement.interface).collect())
}

/// The interfaces of these names, in their order. One that has just been removed is left out.
///
/// # Errors
///
/// When the kernel does not tell.
pub fn present(names: &[String]) -> io::Result<Vec<Interface>> {
    let mut found = host_interfaces()?;
    found.retain(|device| names.contains(&device.name));
    found.sort_by_key(|device| names.iter().position(|name| *name == device.name));
    Ok(found)
}

/// Names and patterns of a config that no interface of this host has.
///
/// # Errors
///
/// When the kernel does not tell.
pub fn missing(config: &Config) -> io::Result<Vec<String>> {
    Ok(missing_among(config, &names()?))
}

/// What an operator should know of them.
#[must_use]
pub fn missing_notes(config: &Config) -> Vec<String> {
    let names = match names() {
        Ok(names) => names,
        Err(error) => return vec![format!("reading this host's interfaces failed: {error}")],
    };
    let available = names.join(", ");
    let note =
        |name| format!("interface `{name}` not found (available: {available}); it will be attached when it appears");
    missing_among(config, &names).into_iter().map(note).collect()
}

fn missing_among(config: &Config, present: &[String]) -> Vec<String> {
    let patterns = config.agent.interfaces.iter();
    patterns.filter(|pattern| !present.iter().any(|name| pattern.matches(name))).map(ToString::to_string).collect()
}

fn names() -> io::Result<Vec<String>> {
    let mut names: Vec<String> = host_interfaces()?.into_iter().map(|device| device.name).collect();
    names.sort();
    Ok(names)
}
