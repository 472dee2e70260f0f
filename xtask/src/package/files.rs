//! The generated files of a package: manual pages, completions, the schema, licenses and changes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::copyright;
use crate::process;
use crate::workspace::Workspace;

const SHELLS: [&str; 3] = ["bash", "fish", "zsh"];

/// Writes the generated files of a package for this target into a folder. `agent` is a program that runs here, of any
/// architecture's build: its pages and completions are the same.
/// `time` is the commit's, in seconds since 1970.
pub fn write(
    workspace: &Workspace,
    agent: &Path,
    target: &str,
    time: u64,
    folder: &Path,
) -> Result<()> {
    let write = |file: &str, text: &str| {
        fs::write(folder.join(file), text).with_context(|| format!("writing {file}"))
    };
    let print = |program: &Path, arguments: &[&str]| {
        process::capture(Command::new(program).args(arguments))
    };
    // Pages and completions have the name by which the program is called.
    let other_name = tempfile::tempdir().context("making a directory")?;
    let weir = other_name.path().join("weir");
    symlink(agent, &weir).with_context(|| format!("linking {}", weir.display()))?;
    for shell in SHELLS {
        let arguments = ["completions", shell];
        write(&format!("weir.{shell}"), &print(&weir, &arguments)?)?;
        write(&format!("agent.{shell}"), &print(agent, &arguments)?)?;
    }
    write("weir.1", &print(&weir, &["man"])?)?;
    write("limits.toml.5", &print(&weir, &["man", "limits.toml"])?)?;
    write("limits.schema.json", &print(&weir, &["schema"])?)?;
    write("copyright", &copyright::text(workspace, target)?)?;
    write("lintian-overrides", &lintian_overrides(workspace, target)?)?;
    write("changelog.Debian", &debian_changelog(time)?)?;
    let changes = workspace.root.join("CHANGELOG.md");
    fs::copy(&changes, folder.join("changelog")).context("copying CHANGELOG.md")?;
    // Debian's policy requires them to be compressed in this way.
    process::run(
        Command::new("gzip")
            .args(["-9", "--no-name", "--force"])
            .args(["weir.1", "limits.toml.5", "changelog.Debian", "changelog"])
            .current_dir(folder),
    )
}

/// The reports of lintian that are suppressed, with the reasons.
fn lintian_overrides(workspace: &Workspace, target: &str) -> Result<String> {
    let folder = workspace.root.join("packaging").join("debian");
    let of_static = target
        .ends_with("musl")
        .then_some("lintian-overrides.static");
    let names = std::iter::once("lintian-overrides").chain(of_static);
    names
        .map(|name| {
            let path = folder.join(name);
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
        })
        .collect()
}

/// Debian's own list of changes, of which the packages of this tree have one entry.
fn debian_changelog(time: u64) -> Result<String> {
    let date = process::capture(Command::new("date").args([
        "--utc",
        "--rfc-email",
        "--date",
        &format!("@{time}"),
    ]))?;
    Ok(format!(
        "weir ({VERSION}-1) unstable; urgency=medium\n\n  \
         * Version {VERSION}: changelog.gz lists what changed.\n\n \
         -- {MAINTAINER}  {date}",
    ))
}

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// As in agent/Cargo.toml.
const MAINTAINER: &str = "The Weir developers <weir@localhost>";
