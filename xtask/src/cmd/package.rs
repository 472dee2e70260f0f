//! `package`: builds a Debian package of the agent, and tests that it installs, upgrades and removes cleanly.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::build::{self, Built, Profile};
use super::setup;
use crate::apt::Apt;
use crate::cargo_tools::DEB;
use crate::copyright;
use crate::package_check;
use crate::process;
use crate::tools::{Detail, Group};
use crate::workspace::Workspace;

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
    /// Make nothing: try a package that was made, and the upgrade to another.
    #[arg(long = "try", num_args = 2, value_names = ["PACKAGE", "NEXT"], conflicts_with = "no_check")]
    tried: Vec<PathBuf>,
}

/// Prints the path of the package at the end.
pub fn run(arguments: &Arguments) -> Result<()> {
    if let [package, next] = arguments.tried.as_slice() {
        return package_check::run(package, next, None);
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
    lint(&packages.package)?;
    if arguments.no_check || !nix::unistd::geteuid().is_root() {
        println!("not tried: installing it into a directory of its own takes root");
    } else {
        package_check::run(&packages.package, &packages.next, most_bytes)?;
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
    prepare(workspace, built, &made)?;
    let package = make(workspace, built, &folder, None)?;
    let next = make(workspace, built, &folder, Some("9999.0.0-1"))?;
    Ok(Packages { package, next })
}

const SHELLS: [&str; 3] = ["bash", "fish", "zsh"];

/// Writes the package's generated files into `made`.
fn prepare(workspace: &Workspace, built: &Built, made: &Path) -> Result<()> {
    let write = |file: &str, text: &str| {
        fs::write(made.join(file), text).with_context(|| format!("writing {file}"))
    };
    let print = |program: &Path, arguments: &[&str]| {
        process::capture(Command::new(program).args(arguments))
    };
    // Pages and completions have the name by which the program is called.
    let folder = tempfile::tempdir().context("making a directory")?;
    let weir = folder.path().join("weir");
    symlink(&built.agent, &weir).with_context(|| format!("linking {}", weir.display()))?;
    for shell in SHELLS {
        let arguments = ["completions", shell];
        write(&format!("weir.{shell}"), &print(&weir, &arguments)?)?;
        write(&format!("agent.{shell}"), &print(&built.agent, &arguments)?)?;
    }
    write("weir.1", &print(&weir, &["man"])?)?;
    write("limits.toml.5", &print(&weir, &["man", "limits.toml"])?)?;
    write("limits.schema.json", &print(&weir, &["schema"])?)?;
    write("copyright", &copyright::text(workspace)?)?;
    write("changelog.Debian", &debian_changelog(workspace)?)?;
    let changes = workspace.root.join("CHANGELOG.md");
    fs::copy(&changes, made.join("changelog")).context("copying CHANGELOG.md")?;
    // Debian's policy requires them to be compressed in this way.
    process::run(
        Command::new("gzip")
            .args(["-9", "--no-name", "--force"])
            .args(["weir.1", "limits.toml.5", "changelog.Debian", "changelog"])
            .current_dir(made),
    )
}

/// Debian's own list of changes, of which the packages of this tree have one entry.
fn debian_changelog(workspace: &Workspace) -> Result<String> {
    let seconds = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(seconds) => seconds,
        Err(_) => process::capture(
            Command::new("git")
                .args(["log", "-1", "--format=%ct"])
                .current_dir(&workspace.root),
        )
        .context("reading the commit's time: without git, set SOURCE_DATE_EPOCH")?,
    };
    let date = process::capture(Command::new("date").args([
        "--utc",
        "--rfc-email",
        "--date",
        &format!("@{}", seconds.trim()),
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

/// Examines a package by Debian's policy; errors and warnings fail.
fn lint(package: &Path) -> Result<()> {
    let Some(lintian) = process::find("lintian") else {
        println!("not linted: lintian is not installed; `cargo xtask setup vm` installs it");
        return Ok(());
    };
    let output = Command::new(lintian)
        .args(["--pedantic", "--allow-root", "--tag-display-limit", "0"])
        .args(["--fail-on", "error,warning"])
        .arg(package)
        .output()
        .context("starting lintian")?;
    let printed = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    ensure!(
        output.status.success(),
        "lintian found in {}:\n{printed}\nCorrect it, or add the reason to packaging/debian/lintian-overrides",
        package.display()
    );
    println!("linted     by lintian --pedantic: no errors, no warnings");
    print!("{printed}");
    Ok(())
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
        Profile::Dist => drop(deb.args(["--profile", "dist"])),
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
