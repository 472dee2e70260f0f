//! `tcp`: how near TCP comes to a limit on bytes, on each hook and beside nftables, tbf and htb.

use std::fs;
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};

use super::build::{self, Profile};
use super::{accuracy, setup};
use crate::tools::{Detail, Group};
use crate::workspace::Workspace;

/// Where the table stands, between two marks.
const DOCUMENT: &str = "docs/TCP.md";
const MARKS: [&str; 2] = ["<!-- tcp: begin -->\n", "<!-- tcp: end -->"];

/// Measures for some ten minutes, and writes down the table.
pub fn run() -> Result<()> {
    let workspace = Workspace::locate()?;
    let toolchain = setup::ensure(Group::Bench, Detail::Changes)?;
    // The kernel's programs are optimised in either profile, and the agent does nothing meanwhile.
    let built = build::all(&workspace, &toolchain, Profile::Debug)?;
    super::test::mount_bpffs();
    let mut bench = workspace.cargo();
    bench.args(["bench", "--locked", "--profile", "dev", "-p", "agent", "--bench", "tcp"]);
    bench.env("WEIR_EBPF_OBJECT", &built.object).env("WEIR_AGENT", &built.agent);
    let output = bench.stderr(Stdio::inherit()).output().context("starting `cargo bench`")?;
    let table = String::from_utf8(output.stdout).context("reading the table")?;
    print!("{table}");
    if !output.status.success() {
        bail!("`cargo bench` ended with {}", output.status);
    }
    let path = workspace.root.join(DOCUMENT);
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let text =
        accuracy::replaced(&text, &table, MARKS).with_context(|| format!("{DOCUMENT} has no place for the table"))?;
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}
