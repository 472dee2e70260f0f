//! Checks that the tests which promises name exist.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use super::page::Page;
use crate::process;

/// The pages whose names of tests are checked.
const PAGES: [&str; 2] = ["ARCHITECTURE.md", "docs/operations/threat-model.md"];
/// A name in backticks with so many underscores is a test's.
const UNDERSCORES: usize = 4;

/// The tests that no source file has, a line each, and the number of those that exist.
///
/// # Errors
///
/// When the source files cannot be listed.
pub fn check(root: &Path, pages: &[Page]) -> Result<(Vec<String>, usize)> {
    let mut list = Command::new("git");
    list.current_dir(root).args([
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "*.rs",
    ]);
    let sources: Vec<String> = process::capture(&mut list)
        .context("listing the source files")?
        .lines()
        .filter_map(|path| fs::read_to_string(root.join(path)).ok())
        .collect();
    let mut existing = 0;
    let mut missing = Vec::new();
    for page in pages
        .iter()
        .filter(|page| PAGES.iter().any(|path| page.path == Path::new(path)))
    {
        for name in names(&page.text) {
            if sources.iter().any(|source| source.contains(name)) {
                existing += 1;
            } else {
                missing.push(format!("{}: no test `{name}`", page.path.display()));
            }
        }
    }
    Ok((missing, existing))
}

/// The names of tests in a page.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2).filter(|code| {
        code.matches('_').count() >= UNDERSCORES
            && code
                .chars()
                .all(|letter| letter.is_ascii_lowercase() || "0123456789_{}".contains(letter))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tests_are_found_and_other_code_is_not() {
        let text =
            "| `no_ban_applies_to_the_host` | `max_sources`, `A_B_C_D_E` | `a_{b}_is_as_c_says` |";
        assert_eq!(
            names(text).collect::<Vec<_>>(),
            ["no_ban_applies_to_the_host", "a_{b}_is_as_c_says"]
        );
    }
}
