//! `accuracy`: measures how exactly agents with a real store enforce a common limit.

use anyhow::Result;

use super::build::{self, Profile};
use super::measured::{Place, measure};
use super::setup;
use crate::tools::{Detail, Group};
use crate::workspace::Workspace;

const PLACE: Place = Place {
    document: "docs/CLUSTER.md",
    marks: ["<!-- accuracy: begin -->\n", "<!-- accuracy: end -->"],
};

/// Measures for some five minutes, and writes the tables.
pub fn run() -> Result<()> {
    let workspace = Workspace::locate()?;
    let toolchain = setup::ensure(Group::Test, Detail::Changes)?;
    let built = build::all(&workspace, &toolchain, Profile::Release)?;
    let mut bench = workspace.cargo();
    bench
        .args(["bench", "--locked", "-p", "agent", "--bench", "cluster"])
        .env("WEIR_EBPF_OBJECT", &built.object);
    measure(&workspace, bench, &PLACE)
}
