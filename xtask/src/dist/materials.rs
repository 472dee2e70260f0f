//! The software bill of materials: the crates of the agent for each target, and those of the kernel programs, in
//! CycloneDX's format.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::source::Source;
use super::target::Target;
use crate::cargo_tools::CYCLONEDX;
use crate::process;
use crate::tools::Detail;
use crate::workspace::{Workspace, host_cargo};

/// The name of the tool's files, which it puts beside each Cargo.toml.
const NAME: &str = "materials";

/// Writes the lists into a folder. The tool writes into the tree, which is a copy.
pub fn write(
    workspace: &Workspace,
    source: &Source,
    targets: &[&Target],
    version: &str,
    folder: &Path,
) -> Result<()> {
    let tool = CYCLONEDX.ensure(Detail::Changes)?;
    for target in targets {
        let mut list = Command::new(&tool);
        list.args([
            "cyclonedx",
            "--all",
            "--format",
            "json",
            "--spec-version",
            "1.5",
        ])
        .args([
            "--quiet",
            "--override-filename",
            NAME,
            "--target",
            target.triple,
        ])
        .current_dir(&workspace.root)
        .env("CARGO", host_cargo())
        .env("SOURCE_DATE_EPOCH", source.time.to_string());
        process::capture(&mut list)
            .with_context(|| format!("listing the crates for {}", target.triple))?;
        let title = target.title(version);
        place(
            workspace,
            "agent",
            &folder.join(format!("{title}.cdx.json")),
        )?;
    }
    let kernel = format!("weir-{version}-kernel-programs.cdx.json");
    place(workspace, "ebpf", &folder.join(kernel))
}

/// Moves a package's list, with names of this machine's folders replaced.
fn place(workspace: &Workspace, package: &str, to: &Path) -> Result<()> {
    let made = workspace
        .root
        .join(package)
        .join(NAME)
        .with_extension("json");
    let text = fs::read_to_string(&made).with_context(|| format!("reading {}", made.display()))?;
    let root = workspace.root.to_string_lossy();
    let text = text.replace(root.as_ref(), "/weir");
    ensure!(
        text.contains("CycloneDX"),
        "{} is no list in CycloneDX's format",
        made.display()
    );
    fs::write(to, text).with_context(|| format!("writing {}", to.display()))
}
