//! cargo-deny, as a part of `lint`: checks dependencies.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::cargo_tools::DENY;
use crate::process;
use crate::tools::Detail;
use crate::workspace::Workspace;

/// The error if the advisory database is not reachable.
const UNREACHABLE: [&str; 2] = [
    "failed to fetch advisory database",
    "failed to load advisory database",
];

/// The workspaces: `crates/fuzz` is one of its own.
const MANIFESTS: [&str; 2] = ["Cargo.toml", "crates/fuzz/Cargo.toml"];

/// Licenses, sources and bans always; advisories if their database is reachable.
pub fn run(workspace: &Workspace) -> Result<()> {
    let program = DENY.ensure(Detail::Changes)?;
    println!(
        "lint: licenses, sources and bans of what others have written, with {}",
        program.display()
    );
    MANIFESTS
        .iter()
        .try_for_each(|manifest| check(&program, workspace, manifest))
}

/// Checks the dependencies of one workspace.
fn check(program: &Path, workspace: &Workspace, manifest: &str) -> Result<()> {
    let deny = |checks: &[&str]| {
        let mut deny = Command::new(program);
        deny.current_dir(&workspace.root)
            .args(["--manifest-path", manifest])
            .args(["--locked", "--log-level", "error", "check"])
            .args(checks);
        deny
    };
    process::run(&mut deny(&["bans", "licenses", "sources"]))
        .with_context(|| format!("licenses, sources and bans of {manifest}: see deny.toml"))?;
    let output = deny(&["advisories"])
        .output()
        .with_context(|| format!("starting {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        println!("lint: no advisory is on what {manifest} takes from others");
    } else if UNREACHABLE.iter().any(|words| said.contains(words)) {
        println!(
            "lint: advisories were NOT checked: their database cannot be reached from this machine"
        );
    } else {
        bail!("advisories of {manifest}: see deny.toml\n{said}");
    }
    Ok(())
}
