//! cargo-deny, as a part of `lint`: checks dependencies.

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

/// Licenses, sources and bans always; advisories if their database is reachable.
pub fn run(workspace: &Workspace) -> Result<()> {
    let program = DENY.ensure(Detail::Changes)?;
    println!(
        "lint: licenses, sources and bans of what others have written, with {}",
        program.display()
    );
    let deny = |checks: &[&str]| {
        let mut deny = Command::new(&program);
        deny.current_dir(&workspace.root)
            .args(["--locked", "--log-level", "error", "check"])
            .args(checks);
        deny
    };
    process::run(&mut deny(&["bans", "licenses", "sources"]))
        .context("licenses, sources and bans: see deny.toml")?;
    let output = deny(&["advisories"])
        .output()
        .with_context(|| format!("starting {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        println!("lint: no advisory is on what others have written");
    } else if UNREACHABLE.iter().any(|words| said.contains(words)) {
        println!(
            "lint: advisories were NOT checked: their database cannot be reached from this machine"
        );
    } else {
        bail!("advisories: see deny.toml\n{said}");
    }
    Ok(())
}
