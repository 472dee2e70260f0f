//! Debian and RPM packages of static programs. Their contents are in agent/Cargo.toml.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use super::compile::Compilation;
use super::target::Target;
use crate::cargo_tools::{DEB, GENERATE_RPM};
use crate::process;
use crate::tools::Detail;

/// Makes the Debian package of a target into a folder. Another version is for a test of an upgrade.
pub fn deb(
    compilation: &Compilation<'_>,
    target: &Target,
    version: Option<&str>,
    folder: &Path,
) -> Result<()> {
    let mut deb = command(&DEB.ensure(Detail::Changes)?, compilation);
    deb.args(["--package", "agent", "--variant", "static"])
        .args(["--no-build", "--no-strip", "--locked", "--quiet"])
        .args([
            "--profile",
            compilation.speed.profile(),
            "--target",
            target.triple,
        ])
        .args(
            version
                .iter()
                .flat_map(|version| ["--deb-version", version]),
        )
        .arg("--output")
        .arg(folder);
    process::capture(&mut deb)
        .with_context(|| format!("making the Debian package for {}", target.triple))?;
    Ok(())
}

/// Makes the RPM package of a target into a folder. Another version is for a test of an upgrade.
pub fn rpm(
    compilation: &Compilation<'_>,
    target: &Target,
    version: Option<&str>,
    folder: &Path,
) -> Result<()> {
    let mut rpm = command(&GENERATE_RPM.ensure(Detail::Changes)?, compilation);
    rpm.args(["generate-rpm", "--package", "agent"])
        .args([
            "--profile",
            compilation.speed.profile(),
            "--target",
            target.triple,
        ])
        .args(version.iter().flat_map(|version| {
            let version = format!("version = {version:?}");
            ["--set-metadata".to_owned(), version]
        }))
        // A static program requires no library.
        .args(["--auto-req", "disabled", "--target-dir"])
        .arg(&compilation.workspace.target)
        .arg("--output")
        .arg(folder);
    process::capture(&mut rpm)
        .with_context(|| format!("making the RPM package for {}", target.triple))?;
    Ok(())
}

fn command(program: &Path, compilation: &Compilation<'_>) -> Command {
    let mut command = Command::new(program);
    command
        .current_dir(&compilation.workspace.root)
        .env("CARGO_TARGET_DIR", &compilation.workspace.target)
        .env("SOURCE_DATE_EPOCH", compilation.source.time.to_string());
    command
}
