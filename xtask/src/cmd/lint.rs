//! `lint`: formatting, and clippy in two passes, since the kernel programs are compiled for another target.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum as _;

use super::deny;
use crate::apt::Apt;
use crate::imports;
use crate::process;
use crate::toolchain::{Compiler, TARGET, Toolchain};
use crate::tools::Detail;
use crate::workspace::Workspace;

/// Debian's clippy for Debian's rustc.
const DEBIAN_CLIPPY: &str = "rust-web-clippy";

/// Check formatting, imports, the code with clippy, and what others have written.
#[derive(clap::Args)]
pub struct Arguments {
    /// Run this check only.
    #[arg(long, value_enum, value_name = "CHECK")]
    only: Option<Check>,
}

/// A check, in the order in which they run.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Check {
    /// `cargo fmt`.
    Formatting,
    /// Files or folders that import each other.
    Imports,
    /// Clippy on the host's crates.
    Host,
    /// Clippy on the kernel programs.
    Kernel,
    /// Licenses, sources and advisories of what others have written.
    Deny,
}

impl Check {
    fn run(self, workspace: &Workspace) -> Result<()> {
        match self {
            Self::Formatting => check_formatting(workspace),
            Self::Imports => check_imports(workspace),
            Self::Host => check_host(workspace),
            Self::Kernel => check_kernel(workspace),
            Self::Deny => deny::run(workspace),
        }
    }
}

/// Runs all checks, also after a failure.
pub fn run(arguments: &Arguments) -> Result<()> {
    let workspace = Workspace::locate()?;
    let wanted = |check: &&Check| arguments.only.is_none_or(|only| only == **check);
    let results = Check::value_variants()
        .iter()
        .filter(wanted)
        .map(|check| check.run(&workspace));
    let failures: Vec<String> = results
        .filter_map(Result::err)
        .map(|error| format!("{error:#}"))
        .collect();
    if !failures.is_empty() {
        bail!("lint found something:\n- {}", failures.join("\n- "));
    }
    println!("lint: nothing found");
    Ok(())
}

fn check_formatting(workspace: &Workspace) -> Result<()> {
    println!("lint: formatting");
    process::run(workspace.cargo().args(["fmt", "--all", "--check"]))
        .context("formatting: run `cargo fmt --all`")
}

/// Checks that no files and no folders import each other, directly or through others.
fn check_imports(workspace: &Workspace) -> Result<()> {
    println!("lint: imports");
    let mut found = Vec::new();
    for root in workspace.crate_roots()? {
        found.extend(imports::circles(&workspace.root, &root)?);
    }
    let lines = found.iter().flat_map(|circle| {
        let imports = circle.imports.iter();
        imports.map(|import| {
            let (by, of) = (import.by.display(), import.of.display());
            format!("{by} imports {} from {of}", import.path)
        })
    });
    let lines: Vec<String> = lines.collect();
    if !lines.is_empty() {
        bail!(
            "{} circles of imports: move what both need into a file of its own\n  {}",
            found.len(),
            lines.join("\n  ")
        );
    }
    Ok(())
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
    println!(
        "lint: clippy on the kernel programs, for {TARGET}, with {}",
        program.display()
    );
    let mut clippy = toolchain.command(&program, workspace);
    clippy.args([
        "clippy",
        "--release",
        "--locked",
        "--package",
        "ebpf",
        "--bins",
    ]);
    clippy.args(["-Zbuild-std=core", "--target", TARGET, "--", "-Dwarnings"]);
    process::run(&mut clippy).context("clippy on the kernel programs")
}

/// The clippy of the compiler's release: others cannot read this compiler's output.
fn clippy_of(compiler: &Compiler, apt: &mut Apt) -> Result<PathBuf> {
    let installed = || {
        compiler
            .companion("cargo-clippy")
            .filter(|_| compiler.companion("clippy-driver").is_some())
    };
    if let Some(clippy) = installed() {
        return Ok(clippy);
    }
    if !compiler.is_debian() {
        bail!(
            "{} has no clippy: run `rustup component add clippy` for that toolchain",
            compiler.description()
        );
    }
    apt.install(&[DEBIAN_CLIPPY])?;
    installed().with_context(|| {
        format!(
            "{DEBIAN_CLIPPY} was installed, yet there is no cargo-clippy beside {}",
            compiler.rustc.display()
        )
    })
}
