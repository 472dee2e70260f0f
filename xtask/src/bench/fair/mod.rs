//! Fair limits, as measured by `agent/benches/fair`: table, aims, and the section of docs/guides/fair.md with its plots.

mod aims;
mod section;
mod tables;

use std::path::PathBuf;

pub use aims::aims;
pub use section::{MARKS, Section};
pub use tables::rows;

use crate::process;
use crate::python::ENVOY;

/// The file of runs over time, beside the figures.
pub const LINES: &str = "fair-lines.json";

/// How many there are if all are installed.
pub const PROGRAMS: usize = 2;

/// The programs that are measured if they are installed, with the variables that name them.
pub fn programs() -> Vec<(&'static str, PathBuf)> {
    let nginx = process::find("nginx").map(|program| ("WEIR_NGINX", program));
    let envoy = ENVOY.installed().or_else(|| process::find("envoy"));
    let envoy = envoy.map(|program| ("WEIR_ENVOY", program));
    nginx.into_iter().chain(envoy).collect()
}
