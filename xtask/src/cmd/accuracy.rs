//! `accuracy`: agents on a real store, and how near to their one limit they stay together.

use std::fs;
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};

use super::build::{self, Profile};
use super::setup;
use crate::tools::{Detail, Group};
use crate::workspace::Workspace;

/// Where the table stands, between two marks.
const DOCUMENT: &str = "docs/CLUSTER.md";
const BEGIN: &str = "<!-- accuracy: begin -->\n";
const END: &str = "<!-- accuracy: end -->";

/// Measures for some five minutes, and writes down what came out.
pub fn run() -> Result<()> {
    let workspace = Workspace::locate()?;
    let toolchain = setup::ensure(Group::Test, Detail::Changes)?;
    let built = build::all(&workspace, &toolchain, Profile::Release)?;
    let mut bench = workspace.cargo();
    bench.args(["bench", "--locked", "-p", "agent", "--bench", "cluster"]).env("WEIR_EBPF_OBJECT", &built.object);
    let output = bench.stderr(Stdio::inherit()).output().context("starting `cargo bench`")?;
    let table = String::from_utf8(output.stdout).context("reading the table")?;
    print!("{table}");
    if !output.status.success() {
        bail!("`cargo bench` ended with {}", output.status);
    }
    let path = workspace.root.join(DOCUMENT);
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let text = replaced(&text, &table).with_context(|| format!("{DOCUMENT} has no place for the table"))?;
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}

fn replaced(text: &str, table: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{table}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_replaced_and_nothing_else() {
        let text = format!("before\n{BEGIN}old\n{END}\nafter\n");
        assert_eq!(replaced(&text, "new\n"), Some(format!("before\n{BEGIN}new\n{END}\nafter\n")));
        assert_eq!(replaced("none", "new"), None);
    }
}
