//! Examinations of packages by their distributions' programs. Errors and warnings fail.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::root::said;
use crate::process;
use crate::workspace::Workspace;

/// Examines a Debian package by Debian's policy.
pub fn deb(package: &Path) -> Result<()> {
    let arguments = [
        "--pedantic",
        "--allow-root",
        "--tag-display-limit",
        "0",
        "--fail-on",
        "error,warning",
    ];
    let printed = examine("lintian", &arguments, package, "debian/lintian-overrides")?;
    print!("{printed}");
    Ok(())
}

/// Examines an RPM package; what does not apply is in packaging/rpm/rpmlint.toml.
pub fn rpm(workspace: &Workspace, package: &Path) -> Result<()> {
    let config = workspace.root.join("packaging/rpm/rpmlint.toml");
    let config = config.to_string_lossy();
    let arguments = ["--strict", "--config", &config];
    examine("rpmlint", &arguments, package, "rpm/rpmlint.toml")?;
    Ok(())
}

/// Returns what the program prints.
fn examine(name: &str, arguments: &[&str], package: &Path, exceptions: &str) -> Result<String> {
    let Some(program) = process::find(name) else {
        println!("not linted: {name} is not installed; `apt-get install {name}`");
        return Ok(String::new());
    };
    let output = Command::new(program)
        .args(arguments)
        .arg(package)
        .output()
        .with_context(|| format!("starting {name}"))?;
    let printed = said(&output);
    ensure!(
        output.status.success(),
        "{name} found in {}:\n{printed}\nCorrect it, or add the reason to packaging/{exceptions}",
        package.display()
    );
    println!("linted     by {name}: no errors, no warnings");
    Ok(printed)
}
