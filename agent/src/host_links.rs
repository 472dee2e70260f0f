//! The interfaces that a config is for, as the host has them at this moment.

use std::io;

use crate::config::policy::Config;
use crate::datapath::{Interface, host_interfaces};
use crate::stacking;

/// The names of the interfaces on this host that a config names and that charge packets, in the config's order. At start, on each reload and
/// whenever the host changes, this alone decides.
///
/// # Errors
///
/// When the kernel does not tell which interfaces there are.
pub fn interfaces(config: &Config) -> io::Result<Vec<String>> {
    let present = names()?;
    let mut interfaces = Vec::new();
    for pattern in &config.agent.interfaces {
        for name in present.iter().filter(|name| pattern.matches(name)) {
            if !interfaces.contains(name) {
                interfaces.push(name.clone());
            }
        }
    }
    stacking::charging(&interfaces)
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
    let present = names()?;
    let patterns = config.agent.interfaces.iter();
    Ok(patterns.filter(|pattern| !present.iter().any(|name| pattern.matches(name))).map(ToString::to_string).collect())
}

/// What an operator should know of them.
#[must_use]
pub fn missing_notes(config: &Config) -> Vec<String> {
    let note = |available: &str, name: String| {
        format!("interface `{name}` not found (available: {available}); it will be attached when it appears")
    };
    match (missing(config), names()) {
        (Ok(missing), Ok(names)) => {
            let available = names.join(", ");
            missing.into_iter().map(|name| note(&available, name)).collect()
        }
        (Err(error), _) | (_, Err(error)) => vec![format!("reading this host's interfaces failed: {error}")],
    }
}

fn names() -> io::Result<Vec<String>> {
    let mut names: Vec<String> = host_interfaces()?.into_iter().map(|device| device.name).collect();
    names.sort();
    Ok(names)
}
