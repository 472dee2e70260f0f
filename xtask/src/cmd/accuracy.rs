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
const MARKS: [&str; 2] = ["<!-- accuracy: begin -->\n", "<!-- accuracy: end -->"];

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
    let text = replaced(&text, &table, MARKS).with_context(|| format!("{DOCUMENT} has no place for the table"))?;
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}

/// The text with the table between the two marks.
pub(super) fn replaced(text: &str, table: &str, [begin, end]: [&str; 2]) -> Option<String> {
    let (before, rest) = text.split_once(begin)?;
    let (_, after) = rest.split_once(end)?;
    Some(format!("{before}{begin}{table}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_replaced_and_nothing_else() {
        let [begin, end] = MARKS;
        let text = format!("before\n{begin}old\n{end}\nafter\n");
        assert_eq!(replaced(&text, "new\n", MARKS), Some(format!("before\n{begin}new\n{end}\nafter\n")));
        assert_eq!(replaced("none", "new", MARKS), None);
    }
}
