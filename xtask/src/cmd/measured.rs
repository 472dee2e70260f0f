//! Tables in documents that a benchmark prints.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::workspace::Workspace;

/// The location of a table.
pub struct Place {
    pub document: &'static str,
    /// The marks before and after it.
    pub marks: [&'static str; 2],
}

/// Runs a benchmark, and writes its table into the document.
pub fn measure(workspace: &Workspace, mut bench: Command, place: &Place) -> Result<()> {
    let output = bench
        .stderr(Stdio::inherit())
        .output()
        .context("starting `cargo bench`")?;
    let table = String::from_utf8(output.stdout).context("reading the table")?;
    print!("{table}");
    if !output.status.success() {
        bail!("`cargo bench` ended with {}", output.status);
    }
    write(workspace, &table, place)
}

/// Writes a table into its document.
pub fn write(workspace: &Workspace, table: &str, place: &Place) -> Result<()> {
    let path = workspace.root.join(place.document);
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let text = replaced(&text, table, place.marks)
        .with_context(|| format!("{} has no place for the table", place.document))?;
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}

/// Replaces the text between the two marks by the table.
pub(super) fn replaced(text: &str, table: &str, [begin, end]: [&str; 2]) -> Option<String> {
    let (before, rest) = text.split_once(begin)?;
    let (_, after) = rest.split_once(end)?;
    Some(format!("{before}{begin}{table}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: [&str; 2] = ["<!-- begin -->\n", "<!-- end -->"];

    #[test]
    fn the_table_is_replaced_and_nothing_else() {
        let [begin, end] = MARKS;
        let text = format!("before\n{begin}old\n{end}\nafter\n");
        assert_eq!(
            replaced(&text, "new\n", MARKS),
            Some(format!("before\n{begin}new\n{end}\nafter\n"))
        );
        assert_eq!(replaced("none", "new", MARKS), None);
    }
}
