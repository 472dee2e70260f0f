//! `tcp`: measures how close TCP comes to a limit on bytes, on each hook and beside nftables, tbf and htb.

use anyhow::Result;

use super::build::{self, Profile};
use super::measured::{Place, measure};
use super::setup;
use crate::tools::{Detail, Group};
use crate::workspace::Workspace;

const PLACE: Place = Place {
    document: "docs/TCP.md",
    marks: ["<!-- tcp: begin -->\n", "<!-- tcp: end -->"],
};

/// Measures for some ten minutes, and writes the table.
pub fn run() -> Result<()> {
    let workspace = Workspace::locate()?;
    let toolchain = setup::ensure(Group::Bench, Detail::Changes)?;
    // The kernel programs are optimised in both profiles, and the agent is idle meanwhile.
    let built = build::all(&workspace, &toolchain, Profile::Debug)?;
    super::test::mount_bpffs();
    let mut bench = workspace.cargo();
    bench.args([
        "bench",
        "--locked",
        "--profile",
        "dev",
        "-p",
        "agent",
        "--bench",
        "tcp",
    ]);
    bench
        .env("WEIR_EBPF_OBJECT", &built.object)
        .env("WEIR_AGENT", &built.agent);
    measure(&workspace, bench, &PLACE)
}
