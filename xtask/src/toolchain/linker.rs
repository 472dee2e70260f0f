//! bpf-linker: found in PATH or in the user's cache folder, or built there.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::apt::{self, Apt};
use crate::process;
use crate::workspace::{self, host_cargo};

/// The version that is built if there is none.
const VERSION: &str = "0.13.0";
/// The LLVM versions for which that version has a feature.
const BUILDS_WITH: std::ops::RangeInclusive<u32> = 21..=23;

/// A bpf-linker.
pub struct Linker {
    pub path: PathBuf,
    /// Major version of its LLVM.
    pub llvm: u32,
}

impl Linker {
    /// The first linker that reads the output of a compiler with this LLVM: one in PATH, else one built by [`provide`].
    ///
    /// [`provide`]: Self::provide
    pub fn find(llvm: u32) -> Option<Self> {
        let built = BUILDS_WITH
            .filter(|version| *version >= llvm)
            .filter_map(|version| Some(binary(&folder(version).ok()?)));
        let candidates = process::find("bpf-linker").into_iter().chain(built);
        candidates
            .filter_map(|path| Self::examine(path).ok())
            .find(|linker| linker.llvm >= llvm)
    }

    /// Builds one against this LLVM, which is installed if it is missing.
    pub fn provide(llvm: u32, apt: &mut Apt) -> Result<Self> {
        if !BUILDS_WITH.contains(&llvm) {
            bail!(
                "the compiler has LLVM {llvm}, and bpf-linker {VERSION} builds with LLVM {} to {}: install a rustc or a \
                 bpf-linker such that the linker's LLVM is not the older one",
                BUILDS_WITH.start(),
                BUILDS_WITH.end()
            );
        }
        let prefix = llvm_prefix(llvm, apt)?;
        let folder = folder(llvm)?;
        println!(
            "building   bpf-linker {VERSION} with LLVM {llvm} into {} (about a minute)",
            folder.display()
        );
        let feature = format!("llvm-{llvm}");
        let mut install = Command::new(host_cargo());
        install
            .args([
                "install",
                "bpf-linker",
                "--version",
                VERSION,
                "--locked",
                "--quiet",
                "--force",
            ])
            .args(["--no-default-features", "--features", &feature, "--root"])
            .arg(&folder)
            .env("LLVM_PREFIX", &prefix)
            .env_remove("CARGO_TARGET_DIR");
        process::capture(&mut install)?;
        let linker = Self::examine(binary(&folder))?;
        if linker.llvm < llvm {
            bail!(
                "{} was built with {}, yet has LLVM {}, and the compiler has LLVM {llvm}: see what `ldd` says of it",
                linker.path.display(),
                prefix.display(),
                linker.llvm
            );
        }
        Ok(linker)
    }

    /// Name, version and path.
    pub fn description(&self) -> String {
        format!("bpf-linker (LLVM {}) at {}", self.llvm, self.path.display())
    }

    /// Its version and that of its LLVM.
    pub fn version(&self) -> Result<String> {
        let said = process::capture(Command::new(&self.path).arg("--version"))?;
        let version = said.trim().trim_start_matches("bpf-linker ");
        Ok(format!("{version} (LLVM {})", self.llvm))
    }

    fn examine(path: PathBuf) -> Result<Self> {
        // Its `--version` lacks LLVM's; this option of LLVM prints that, and exits before any input is read.
        let mut ask = Command::new(&path);
        let said = process::capture(ask.args([
            "--llvm-args=--version",
            "--output=/dev/null",
            "/dev/null",
        ]))?;
        let llvm = llvm_version(&said).with_context(|| {
            format!(
                "reading the LLVM version of {}: it printed\n{said}",
                path.display()
            )
        })?;
        Ok(Self { path, llvm })
    }
}

fn folder(llvm: u32) -> Result<PathBuf> {
    workspace::cache(&format!("bpf-linker-{VERSION}-llvm{llvm}"))
}

fn binary(folder: &Path) -> PathBuf {
    folder.join("bin").join("bpf-linker")
}

/// The prefix of this LLVM's libraries, installed with the linking requirements.
fn llvm_prefix(llvm: u32, apt: &mut Apt) -> Result<PathBuf> {
    if let Some(prefix) = installed_llvm(llvm) {
        return Ok(prefix);
    }
    let package = format!("llvm-{llvm}-dev");
    apt.install(&[&package])
        .with_context(|| format!("providing LLVM {llvm} for bpf-linker"))?;
    installed_llvm(llvm).with_context(|| {
        format!(
            "{package} was installed, yet there is no libLLVM.so in /usr/lib/llvm-{llvm}/lib: {}",
            apt::typed(&[&package])
        )
    })
}

fn installed_llvm(llvm: u32) -> Option<PathBuf> {
    let debian = PathBuf::from(format!("/usr/lib/llvm-{llvm}"));
    if debian.join("lib/libLLVM.so").exists() {
        return Some(debian);
    }
    let config =
        process::find(&format!("llvm-config-{llvm}")).or_else(|| process::find("llvm-config"))?;
    let version = process::capture(Command::new(&config).arg("--version")).ok()?;
    let prefix = process::capture(Command::new(&config).arg("--prefix")).ok()?;
    let prefix = PathBuf::from(prefix.trim());
    (major(&version) == Some(llvm) && prefix.join("lib/libLLVM.so").exists()).then_some(prefix)
}

/// The major version in a text with "LLVM version 22.1.8".
fn llvm_version(said: &str) -> Option<u32> {
    major(said.split_once("LLVM version ")?.1)
}

fn major(version: &str) -> Option<u32> {
    version.split('.').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_llvm_version_is_read_from_what_llvm_prints() {
        assert_eq!(
            llvm_version("Debian LLVM version 22.1.8\n  Optimized build.\n"),
            Some(22)
        );
        assert_eq!(
            llvm_version("LLVM (http://llvm.org/):\n  LLVM version 21.1.0-rust\n"),
            Some(21)
        );
        assert_eq!(llvm_version("bpf-linker 0.13.0\n"), None);
    }
}
