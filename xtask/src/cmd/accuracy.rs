//! `accuracy`: measures how exactly agents with a real store enforce a common limit.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use super::build::{self, Profile};
use super::measured::{self, Place, measure};
use super::setup;
use crate::tools::{Detail, Group};
use crate::workspace::Workspace;

const DOCUMENT: &str = "docs/CLUSTER.md";
const LOADS: Place = Place {
    document: DOCUMENT,
    marks: ["<!-- accuracy: begin -->\n", "<!-- accuracy: end -->"],
};
const EVENTS: Place = Place {
    document: DOCUMENT,
    marks: ["<!-- events: begin -->\n", "<!-- events: end -->"],
};
/// The beginning of a line that a test prints for the table of events (`testbed::fleet::passed_during`).
const DURING: &str = "passed during an event: ";

/// Measures for some ten minutes, and writes the tables.
pub fn run() -> Result<()> {
    let workspace = Workspace::locate()?;
    let toolchain = setup::ensure(Group::Test, Detail::Changes)?;
    let built = build::all(&workspace, &toolchain, Profile::Release)?;
    let mut bench = workspace.cargo();
    bench
        .args(["bench", "--locked", "-p", "agent", "--bench", "cluster"])
        .env("WEIR_EBPF_OBJECT", &built.object);
    measure(&workspace, bench, &LOADS)?;
    let tests = build::tests(&workspace, &built.object, &["cluster"])?;
    let program = tests.first().context("finding the tests of clusters")?;
    let output = Command::new(&program.path)
        // The figures are of one fleet at a time.
        .args(["--test-threads", "1"])
        .env("WEIR_AGENT", &built.agent)
        .stderr(Stdio::inherit())
        .output()
        .context("starting the tests of clusters")?;
    let said = String::from_utf8(output.stdout).context("reading the table of events")?;
    ensure!(
        output.status.success(),
        "the tests of clusters ended with {}:\n{said}",
        output.status
    );
    let table = events(&said);
    print!("{table}");
    measured::write(&workspace, &table, &EVENTS)
}

/// The table of events, from what the tests print.
fn events(said: &str) -> String {
    let rows = said.lines().filter_map(|line| line.split_once(DURING));
    let mut rows: Vec<&str> = rows.map(|(_, row)| row).collect();
    rows.sort_unstable();
    let head = "| event | passed | limit |\n|---|---|---|\n";
    rows.iter()
        .fold(head.to_owned(), |table, row| table + row + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_rows_of_tests() {
        let said = "test a ... passed during an event: | b | 2 | 1 |\nok\npassed during an event: | a | 1 | 1 |\nother\n";
        assert!(events(said).ends_with("|---|\n| a | 1 | 1 |\n| b | 2 | 1 |\n"));
    }
}
