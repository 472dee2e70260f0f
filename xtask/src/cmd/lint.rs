//! `lint`: formatting, and clippy in two passes, since the kernel programs are compiled for another target.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use super::deny;
use crate::apt::Apt;
use crate::process;
use crate::toolchain::{Compiler, TARGET, Toolchain};
use crate::tools::Detail;
use crate::workspace::Workspace;

/// Debian's clippy for Debian's rustc.
const DEBIAN_CLIPPY: &str = "rust-web-clippy";

/// Runs every check, also when an earlier one found something.
pub fn run() -> Result<()> {
    let workspace = Workspace::locate()?;
    let checks =
        [check_formatting(&workspace), check_host(&workspace), check_kernel(&workspace), deny::run(&workspace)];
    let failures: Vec<String> = checks.into_iter().filter_map(Result::err).map(|error| format!("{error:#}")).collect();
    if !failures.is_empty() {
        bail!("lint found something:\n- {}", failures.join("\n- "));
    }
    println!("lint: nothing found");
    Ok(())
}

fn check_formatting(workspace: &Workspace) -> Result<()> {
    println!("lint: formatting");
    process::run(workspace.cargo().args(["fmt", "--all", "--check"])).context("formatting: run `cargo fmt --all`")
}

fn check_host(workspace: &Workspace) -> Result<()> {
    println!("lint: clippy on the host's crates");
    let mut clippy = workspace.cargo();
    clippy.args(["clippy", "--locked", "--all-targets", "--", "-Dwarnings"]);
    process::run(&mut clippy).context("clippy on the host's crates")
}

fn check_kernel(workspace: &Workspace) -> Result<()> {
    let mut apt = Apt::default();
    let toolchain = Toolchain::ensure(Detail::Changes, &mut apt)?;
    let program = clippy_of(&toolchain.compiler, &mut apt)?;
    println!("lint: clippy on the kernel programs, for {TARGET}, with {}", program.display());
    let mut clippy = toolchain.command(&program, workspace);
    clippy.args(["clippy", "--release", "--locked", "--package", "ebpf", "--bins"]);
    clippy.args(["-Zbuild-std=core", "--target", TARGET, "--", "-Dwarnings"]);
    process::run(&mut clippy).context("clippy on the kernel programs")
}

/// The clippy of the compiler's own release: another one does not read what this compiler wrote.
fn clippy_of(compiler: &Compiler, apt: &mut Apt) -> Result<PathBuf> {
    let installed = || compiler.companion("cargo-clippy").filter(|_| compiler.companion("clippy-driver").is_some());
    if let Some(clippy) = installed() {
        return Ok(clippy);
    }
    if !compiler.is_debian() {
        bail!("{} has no clippy: run `rustup component add clippy` for that toolchain", compiler.description());
    }
    apt.install(&[DEBIAN_CLIPPY])?;
    installed().with_context(|| {
        format!("{DEBIAN_CLIPPY} was installed, yet there is no cargo-clippy beside {}", compiler.rustc.display())
    })
}
