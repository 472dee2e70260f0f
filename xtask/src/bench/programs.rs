//! The C programs that are built only for the benchmark.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::apt::Apt;
use crate::process;
use crate::workspace::Workspace;

const SOURCES: [&str; 2] = ["minimal", "harness"];

/// Compiles them with the LLVM that compiles Weir's programs, and returns the folder of the objects.
pub fn build(workspace: &Workspace, llvm: u32) -> Result<PathBuf> {
    let clang = clang(llvm)?;
    let sources = workspace.root.join("agent/benches/edge/bpf");
    let objects = workspace.target.join("bpf").join("bench");
    fs::create_dir_all(&objects).with_context(|| format!("creating {}", objects.display()))?;
    for name in SOURCES {
        let mut compile = Command::new(&clang);
        compile.args([
            "-target",
            "bpf",
            "-mcpu=v3",
            "-O2",
            "-g",
            "-Wall",
            "-Werror",
            "-Wno-unused-const-variable",
            "-c",
        ]);
        // Debian has separate headers for each architecture; BPF programs use the host's.
        compile
            .arg("-I")
            .arg(format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH));
        compile
            .arg(sources.join(name).with_extension("c"))
            .arg("-o")
            .arg(objects.join(name).with_extension("o"));
        process::capture(&mut compile).context("building the benchmark's programs")?;
    }
    Ok(objects)
}

/// The compiler and its version, in one line.
pub fn compiler(llvm: u32) -> Result<String> {
    let said = process::capture(Command::new(clang(llvm)?).arg("--version"))?;
    Ok(said.lines().next().unwrap_or_default().to_owned())
}

/// The clang of this LLVM, so that both sides have the same compiler, or any other.
fn clang(llvm: u32) -> Result<PathBuf> {
    let versioned = format!("clang-{llvm}");
    let installed = || process::find(&versioned).or_else(|| process::find("clang"));
    if let Some(clang) = installed() {
        return Ok(clang);
    }
    let mut apt = Apt::default();
    // The archive may not have this version.
    apt.install(&[&versioned])
        .or_else(|_| apt.install(&["clang"]))
        .context("providing clang for the benchmark")?;
    installed().with_context(|| {
        format!("clang was installed, yet neither {versioned} nor clang is in PATH")
    })
}
