//! The rustc that compiles the kernel programs.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::apt::Apt;
use crate::process;
use crate::workspace::host_cargo;

/// The first release (1.N) whose atomic intrinsics have the form that `ebpf/src/atomics.rs` uses.
const EARLIEST_MINOR: u32 = 91;
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_PACKAGES: [&str; 2] = ["rustc-web", "rust-web-src"];

/// A rustc with the source of its standard library.
pub struct Compiler {
    pub rustc: PathBuf,
    /// Its cargo.
    pub cargo: PathBuf,
    /// The folder of its standard library's source.
    pub source: PathBuf,
    /// Major version of its LLVM.
    pub llvm: u32,
    /// As in `rustc -vV`.
    pub release: String,
}

impl Compiler {
    /// All suitable compilers of this machine, in order of preference: nightlies of rustup, Debian's, rustup's others.
    pub fn installed() -> Vec<Self> {
        let (nightlies, others): (Vec<_>, Vec<_>) = rustup_toolchains()
            .into_iter()
            .partition(|path| is_nightly(path));
        let from_rustup = |toolchains: Vec<PathBuf>| {
            toolchains
                .into_iter()
                .filter_map(|toolchain| Self::of_toolchain(&toolchain).ok())
                .collect::<Vec<_>>()
        };
        let mut compilers = from_rustup(nightlies);
        compilers.extend(Self::of_debian().ok());
        compilers.extend(from_rustup(others));
        compilers
    }

    /// Installs Debian's packages.
    pub fn provide_from_debian(apt: &mut Apt) -> Result<Self> {
        apt.install(&DEBIAN_PACKAGES)?;
        Self::of_debian().context("the packages were installed, yet they will not do")
    }

    /// Adds the source to a nightly of rustup, which needs internet access.
    pub fn provide_from_rustup() -> Result<Self> {
        let rustup = process::find("rustup").context("there is no rustup here")?;
        let toolchain = rustup_toolchains()
            .into_iter()
            .find(|toolchain| is_nightly(toolchain))
            .context("no nightly is installed: run `rustup toolchain install nightly --component rust-src`")?;
        let name = toolchain
            .file_name()
            .context("a toolchain's folder has a name")?;
        println!(
            "running    rustup component add rust-src --toolchain {}",
            name.display()
        );
        process::capture(
            Command::new(rustup)
                .args(["component", "add", "rust-src", "--toolchain"])
                .arg(name),
        )?;
        Self::of_toolchain(&toolchain)
    }

    /// Whether it comes from Debian's packages.
    pub fn is_debian(&self) -> bool {
        self.rustc == Path::new(DEBIAN_RUSTC)
    }

    /// Its program with this name, if installed.
    pub fn companion(&self, program: &str) -> Option<PathBuf> {
        Some(self.rustc.with_file_name(program)).filter(|path| process::is_executable(path))
    }

    /// Name, versions and path.
    pub fn description(&self) -> String {
        format!(
            "rustc {} (LLVM {}) at {}, with its source",
            self.release,
            self.llvm,
            self.rustc.display()
        )
    }

    fn of_toolchain(toolchain: &Path) -> Result<Self> {
        let bin = toolchain.join("bin");
        Self::examine(bin.join("rustc"), bin.join("cargo"), toolchain)
    }

    fn of_debian() -> Result<Self> {
        Self::examine(DEBIAN_RUSTC.into(), host_cargo(), Path::new("/usr"))
    }

    fn examine(rustc: PathBuf, cargo: PathBuf, sysroot: &Path) -> Result<Self> {
        let source = sysroot.join("lib/rustlib/src/rust");
        let lock = source.join("library/Cargo.lock");
        if !lock.exists() {
            bail!(
                "{} has no source of the standard library: {} is missing",
                rustc.display(),
                lock.display()
            );
        }
        let said = process::capture(Command::new(&rustc).arg("-vV"))?;
        let (release, llvm) = versions(&said).with_context(|| {
            format!(
                "reading the versions of {}: `-vV` printed\n{said}",
                rustc.display()
            )
        })?;
        if minor(&release).is_none_or(|minor| minor < EARLIEST_MINOR) {
            bail!(
                "{} is {release}: the kernel programs need 1.{EARLIEST_MINOR} or newer",
                rustc.display()
            );
        }
        Ok(Self {
            rustc,
            cargo,
            source,
            llvm,
            release,
        })
    }
}

/// The folders of the toolchains that rustup installed, sorted.
fn rustup_toolchains() -> Vec<PathBuf> {
    let home = env::var_os("RUSTUP_HOME").map(PathBuf::from);
    let Some(home) = home.or_else(|| env::home_dir().map(|home| home.join(".rustup"))) else {
        return Vec::new();
    };
    let Ok(entries) = fs::read_dir(home.join("toolchains")) else {
        return Vec::new();
    };
    let mut toolchains: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    toolchains.sort();
    toolchains
}

fn is_nightly(toolchain: &Path) -> bool {
    toolchain
        .file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with("nightly"))
}

/// The release and LLVM's major version in the output of `rustc -vV`.
fn versions(said: &str) -> Option<(String, u32)> {
    let field = |name: &str| {
        said.lines()
            .find_map(|line| line.strip_prefix(name))
            .map(str::trim)
    };
    let llvm = field("LLVM version:")?.split('.').next()?.parse().ok()?;
    Some((field("release:")?.to_owned(), llvm))
}

fn minor(release: &str) -> Option<u32> {
    release.strip_prefix("1.")?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_rustc_prints() {
        let said = "rustc 1.97.0-nightly (f2d3ce0bd 2026-04-21)\nrelease: 1.97.0-nightly\nLLVM version: 22.1.4\n";
        assert_eq!(versions(said), Some(("1.97.0-nightly".to_owned(), 22)));
        assert_eq!(versions("release: 1.97.0\n"), None);
        assert_eq!(minor("1.97.0-nightly"), Some(97));
    }
}
