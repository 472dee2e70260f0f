//! `docs`: builds the book, and checks its links, configs, commands and names of tests.

use anyhow::{Context as _, Result, bail};

use super::build;
use super::setup;
use crate::cargo_tools::MDBOOK;
use crate::docs;
use crate::process;
use crate::tools::{Detail, Group};
use crate::workspace::Workspace;

/// Builds target/book; fails with all problems of its pages.
pub fn run() -> Result<()> {
    let workspace = Workspace::locate()?;
    let pages = docs::pages(&workspace)?;
    let mut problems = docs::check_links(&workspace.root, &pages);
    println!("docs: links of {} pages", pages.len());
    let (found, tests) = docs::check_tests(&workspace.root, &pages)?;
    problems.extend(found);
    println!("docs: {tests} names of tests");
    let toolchain = setup::ensure(Group::Build, Detail::Changes)?;
    // A small one of the tests: the agent is that of all.
    let agent = build::of_tests(&workspace, &toolchain, &["generator"])?
        .0
        .agent;
    let (found, configs) = docs::check_configs(&agent, &pages)?;
    problems.extend(found);
    println!("docs: {configs} configs");
    let (found, commands) = docs::check_commands(&agent, &workspace.root, &pages)?;
    problems.extend(found);
    println!("docs: {commands} commands");
    if !problems.is_empty() {
        bail!("in the pages:\n{}", problems.join("\n"));
    }
    let book = workspace.target.join("book");
    let mdbook = MDBOOK.ensure(Detail::Changes)?;
    let mut build = std::process::Command::new(mdbook);
    build
        .arg("build")
        .arg(workspace.root.join("docs"))
        .arg("--dest-dir")
        .arg(&book);
    process::run(&mut build).context("building the book")?;
    println!("built {}", book.join("index.html").display());
    Ok(())
}
