//! The project's Markdown.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::process;
use crate::workspace::Workspace;

/// A page: its path relative to the root, and its text.
pub struct Page {
    pub path: PathBuf,
    pub text: String,
}

/// All Markdown files in git.
pub fn pages(workspace: &Workspace) -> Result<Vec<Page>> {
    let mut list = Command::new("git");
    list.current_dir(&workspace.root).args([
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "*.md",
    ]);
    let page = |path: &str| {
        let text = fs::read_to_string(workspace.root.join(path))
            .with_context(|| format!("reading {path}"))?;
        Ok(Page {
            path: Path::new(path).to_owned(),
            text,
        })
    };
    process::capture(&mut list)
        .context("listing the pages")?
        .lines()
        .map(page)
        .collect()
}
