//! The first complete pair of compiler and linker.

use std::path::Path;
use std::process::Command;

use anyhow::{Error, Result, bail};

use super::compiler::Compiler;
use super::linker::Linker;
use super::paths::{Renamed, renamed};
use crate::apt::Apt;
use crate::tools::Detail;
use crate::workspace::Workspace;

/// The target of the kernel programs.
pub const TARGET: &str = "bpfel-unknown-none";

/// A compiler and a compatible linker.
pub struct Toolchain {
    pub compiler: Compiler,
    pub linker: Linker,
}

impl Toolchain {
    /// Finds a toolchain, or installs one as far as this user may.
    pub fn ensure(detail: Detail, apt: &mut Apt) -> Result<Self> {
        let found = Self::complete(Compiler::installed());
        let toolchain = match found {
            Ok(toolchain) => toolchain,
            Err(incomplete) => Self::provide(incomplete, apt)?,
        };
        if detail == Detail::Full {
            println!("found      {}", toolchain.compiler.description());
            println!("found      {}", toolchain.linker.description());
        }
        Ok(toolchain)
    }

    /// The first of the compilers with a compatible linker; else the compilers.
    fn complete(mut compilers: Vec<Compiler>) -> Result<Self, Vec<Compiler>> {
        let fitting = compilers.iter().enumerate().find_map(|(index, compiler)| {
            let linker = Linker::find(compiler.llvm)?;
            Some((index, linker))
        });
        match fitting {
            Some((index, linker)) => Ok(Self {
                compiler: compilers.swap_remove(index),
                linker,
            }),
            None => Err(compilers),
        }
    }

    fn provide(incomplete: Vec<Compiler>, apt: &mut Apt) -> Result<Self> {
        let mut failures = Vec::new();
        let has_debian = incomplete.iter().any(Compiler::is_debian);
        for compiler in incomplete {
            match Linker::provide(compiler.llvm, apt) {
                Ok(linker) => return Ok(Self { compiler, linker }),
                Err(error) => failures.push(error.context(compiler.description())),
            }
        }
        if !has_debian {
            match Self::provide_with(Compiler::provide_from_debian, apt) {
                Ok(toolchain) => return Ok(toolchain),
                Err(error) => failures.push(error.context("Debian's rustc")),
            }
        }
        match Self::provide_with(|_| Compiler::provide_from_rustup(), apt) {
            Ok(toolchain) => return Ok(toolchain),
            Err(error) => failures.push(error.context("rustup's nightly")),
        }
        bail!(explain(&failures));
    }

    fn provide_with(
        provide: impl FnOnce(&mut Apt) -> Result<Compiler>,
        apt: &mut Apt,
    ) -> Result<Self> {
        let compiler = provide(apt)?;
        let linker = match Linker::find(compiler.llvm) {
            Some(linker) => linker,
            None => Linker::provide(compiler.llvm, apt)?,
        };
        Ok(Self { compiler, linker })
    }

    /// A cargo command with this toolchain and the flags of the kernel programs. `program` is the compiler's cargo or a
    /// program that calls it.
    pub fn command(&self, program: &Path, workspace: &Workspace) -> Command {
        // Like aya-build, which is not used because it chooses the toolchain itself.
        let mut flags = vec![
            format!("--cfg=bpf_target_arch=\"{}\"", std::env::consts::ARCH),
            "-Cdebuginfo=2".to_owned(),
            "-Ctarget-cpu=v3".to_owned(),
            "-Clink-arg=--btf".to_owned(),
            format!("-Clinker={}", self.linker.path.display()),
        ];
        // BTF has the names of source files: the objects are the same in each folder.
        flags.extend(
            renamed(workspace, &self.compiler)
                .iter()
                .map(Renamed::for_rustc),
        );
        let mut command = Command::new(program);
        command
            .current_dir(&workspace.root)
            .env("CARGO", &self.compiler.cargo)
            .env("RUSTC", &self.compiler.rustc)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
            // An incremental build inlines differently: the object would depend on the build's history.
            .env("CARGO_INCREMENTAL", "0")
            .env("CARGO_TARGET_DIR", workspace.target.join("ebpf"));
        command
    }
}

fn explain(failures: &[Error]) -> String {
    let mut text =
        "no toolchain for the kernel programs was found, and none could be provided".to_owned();
    for failure in failures {
        text.push_str(&format!("\n- {failure:#}"));
    }
    text.push_str(
        "\nwhat would help, one of\n\
         - with rustup: rustup toolchain install nightly --component rust-src, and bpf-linker in PATH (cargo install \
         cargo-binstall && cargo binstall bpf-linker)\n\
         - on Debian 12: sudo apt-get update && sudo apt-get install -y --no-install-recommends rustc-web rust-web-src \
         llvm-N-dev, where N is the LLVM version that `/usr/bin/rustc -vV` tells, then cargo xtask setup again",
    );
    text
}
