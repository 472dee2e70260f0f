//! `package`: builds a Debian package of the agent, and tests that it installs, upgrades and removes cleanly.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::build::{self, Built, Profile};
use super::setup;
use crate::apt::Apt;
use crate::cargo_tools::DEB;
use crate::dist::Speed;
use crate::package::{deb_check, files, lint, rpm_check};
use crate::process;
use crate::tools::{Detail, Group};
use crate::workspace::{self, Workspace};

/// Make a Debian package, and try it in a root directory of its own.
#[derive(clap::Args)]
pub struct Arguments {
    /// Only make it; trying it takes root, for chroot.
    #[arg(long)]
    no_check: bool,
    /// Build as for a release: smaller and faster, for three times the time.
    #[arg(long, conflicts_with = "debug")]
    dist: bool,
    /// Package the agent that `cargo xtask test` builds, which is not optimized.
    #[arg(long)]
    debug: bool,
    /// Make nothing: try a package that was made, .deb or .rpm, and the upgrade to another.
    #[arg(long = "try", num_args = 2, value_names = ["PACKAGE", "NEXT"], conflicts_with = "no_check")]
    tried: Vec<PathBuf>,
}

/// Prints the path of the package at the end.
pub fn run(arguments: &Arguments) -> Result<()> {
    if let [package, next] = arguments.tried.as_slice() {
        return match package.extension() {
            Some(kind) if kind == "rpm" => rpm_check::run(package, next),
            _ => deb_check::run(package, next, None),
        };
    }
    let workspace = Workspace::locate()?;
    let toolchain = setup::ensure(Group::Build, Detail::Changes)?;
    let most_bytes = arguments.dist.then_some(MOST_BYTES);
    let built = match (arguments.dist, arguments.debug) {
        (true, _) => build::all(&workspace, &toolchain, Profile::Dist)?,
        (false, true) => build::of_tests(&workspace, &toolchain, &["end_to_end"])?.0,
        (false, false) => build::all(&workspace, &toolchain, Profile::Release)?,
    };
    let packages = packages(&workspace, &built)?;
    lint::deb(&packages.package)?;
    if arguments.no_check || !nix::unistd::geteuid().is_root() {
        println!("not tried: installing it into a directory of its own takes root");
    } else {
        deb_check::run(&packages.package, &packages.next, most_bytes)?;
    }
    fs::remove_file(&packages.next)
        .with_context(|| format!("removing {}", packages.next.display()))?;
    println!("made {}", packages.package.display());
    Ok(())
}

/// The largest size of a release's program.
const MOST_BYTES: u64 = 22_000_000;

/// A package, and the next version of the same, for an upgrade.
pub struct Packages {
    pub package: PathBuf,
    pub next: PathBuf,
}

/// Packages the build.
pub fn packages(workspace: &Workspace, built: &Built) -> Result<Packages> {
    if process::find("dpkg-shlibdeps").is_none() {
        Apt::default().install(&["dpkg-dev"])?;
    }
    let folder = workspace.target.join("package");
    // Where cargo-deb looks, for any target directory.
    let made = built.agent.with_file_name("package");
    for folder in [&folder, &made] {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let time = workspace::commit_time(&workspace.root)?;
    files::write(workspace, &built.agent, &platform, time, &made)?;
    let package = make(workspace, built, &folder, None)?;
    let next = make(workspace, built, &folder, Some("9999.0.0-1"))?;
    Ok(Packages { package, next })
}

/// Packages the build with this version.
fn make(
    workspace: &Workspace,
    built: &Built,
    folder: &Path,
    version: Option<&str>,
) -> Result<PathBuf> {
    let mut deb = Command::new(DEB.ensure(Detail::Changes)?);
    deb.current_dir(&workspace.root)
        .env("CARGO_TARGET_DIR", &workspace.target);
    deb.args([
        "--package",
        "agent",
        "--no-build",
        "--locked",
        "--quiet",
        "--output",
    ])
    .arg(folder);
    match built.profile {
        Profile::Release => {}
        Profile::Dist => drop(deb.args(["--profile", Speed::Full.profile()])),
        Profile::Debug => drop(deb.args(["--profile", "dev", "--strip", "--fast"])),
    }
    if let Some(version) = version {
        deb.args(["--deb-version", version]);
    }
    let said = process::capture(&mut deb).context("making the package")?;
    let path = said
        .lines()
        .map(str::trim)
        .rfind(|line| line.ends_with(".deb"));
    path.map(PathBuf::from)
        .with_context(|| format!("reading which package cargo-deb made: it printed\n{said}"))
}
