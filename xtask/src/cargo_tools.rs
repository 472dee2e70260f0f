//! Programs that cargo builds: found in PATH or in the user's cache folder, or built there.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::apt::Apt;
use crate::process;
use crate::tools::Detail;
use crate::workspace::{self, host_cargo};

/// A program of a crate.
pub struct CargoTool {
    name: &'static str,
    version: &'static str,
    reason: &'static str,
    /// A program that the build requires, and its Debian package.
    needs: Option<(&'static str, &'static str)>,
    /// Features, for `cargo install`.
    features: &'static [&'static str],
    /// The word before `--version`, of a program that is nothing but a verb of cargo.
    verb: Option<&'static str>,
    /// Whether it prints its version. If not, only the one of the cache folder is used, whose name has the version.
    prints_version: bool,
    /// Its speed is compared with Weir's. Other tools are built without optimization, which takes a third of the time.
    is_measured: bool,
}

/// Checks dependencies: licenses, sources, advisories.
pub const DENY: CargoTool = CargoTool {
    name: "cargo-deny",
    version: "0.20.2",
    reason: "checks licenses, sources and advisories",
    needs: None,
    features: &[],
    verb: None,
    prints_version: true,
    is_measured: false,
};
/// Builds Debian packages.
pub const DEB: CargoTool = CargoTool {
    name: "cargo-deb",
    version: "3.8.0",
    reason: "makes the Debian package",
    needs: None,
    features: &[],
    verb: None,
    prints_version: true,
    is_measured: false,
};
/// Builds RPM packages.
pub const GENERATE_RPM: CargoTool = CargoTool {
    name: "cargo-generate-rpm",
    version: "0.21.1",
    reason: "makes the RPM package",
    needs: None,
    features: &[],
    verb: None,
    prints_version: true,
    is_measured: false,
};
/// Lists the crates of a program in CycloneDX's format.
pub const CYCLONEDX: CargoTool = CargoTool {
    name: "cargo-cyclonedx",
    version: "0.5.9",
    reason: "lists the crates of a release",
    needs: None,
    features: &[],
    verb: Some("cyclonedx"),
    prints_version: true,
    is_measured: false,
};
/// Puts the list of a program's crates into the program.
pub const AUDITABLE: CargoTool = CargoTool {
    name: "cargo-auditable",
    version: "0.7.7",
    reason: "lists the crates of a program inside it",
    needs: None,
    features: &[],
    verb: None,
    prints_version: false,
    is_measured: false,
};
/// Builds fuzzers that are guided by coverage.
pub const FUZZ: CargoTool = CargoTool {
    name: "cargo-fuzz",
    version: "0.13.2",
    reason: "builds the fuzzers",
    needs: Some(("c++", "g++")),
    features: &[],
    verb: None,
    prints_version: true,
    is_measured: false,
};
/// Builds the book of docs/.
pub const MDBOOK: CargoTool = CargoTool {
    name: "mdbook",
    version: "0.5.4",
    reason: "makes the book",
    needs: None,
    features: &["--no-default-features"],
    verb: None,
    prints_version: true,
    is_measured: false,
};
/// Serves decisions over HTTP, like the agent.
pub const THROTTLECRAB: CargoTool = CargoTool {
    name: "throttlecrab-server",
    version: "0.4.40",
    reason: "an alternative to measure",
    needs: Some(("protoc", "protobuf-compiler")),
    features: &[],
    verb: None,
    prints_version: true,
    is_measured: true,
};

impl CargoTool {
    /// Name and version.
    pub fn title(&self) -> String {
        format!("{} {}", self.name, self.version)
    }

    /// The program, built if this version is missing.
    pub fn ensure(&self, detail: Detail) -> Result<PathBuf> {
        if let Some(path) = self.find() {
            if detail == Detail::Full {
                println!("found      {} ({})", path.display(), self.reason);
            }
            return Ok(path);
        }
        let folder = self.folder()?;
        println!(
            "building   {} {} into {} ({})",
            self.name,
            self.version,
            folder.display(),
            self.reason
        );
        if let Some((program, package)) = self.needs
            && process::find(program).is_none()
        {
            Apt::default()
                .install(&[package])
                .with_context(|| format!("providing what {} is built with", self.name))?;
        }
        let mut install = Command::new(host_cargo());
        install
            .args([
                "install",
                self.name,
                "--version",
                self.version,
                "--locked",
                "--quiet",
                "--force",
                "--root",
            ])
            .arg(&folder)
            .args(self.features)
            .env_remove("CARGO_TARGET_DIR");
        if !self.is_measured {
            let quick = [
                ("OPT_LEVEL", "0"),
                ("LTO", "off"),
                ("CODEGEN_UNITS", "256"),
                ("DEBUG", "0"),
            ];
            install.envs(
                quick.map(|(setting, value)| (format!("CARGO_PROFILE_RELEASE_{setting}"), value)),
            );
        }
        process::capture(&mut install).with_context(|| {
            format!(
                "building {}: cargo install {} --version {}",
                self.name, self.name, self.version
            )
        })?;
        self.find()
            .with_context(|| format!("{} was built, yet does not run", self.name))
    }

    fn find(&self) -> Option<PathBuf> {
        let built = self
            .folder()
            .ok()
            .map(|folder| folder.join("bin").join(self.name));
        if !self.prints_version {
            return built.filter(|path| process::is_executable(path));
        }
        process::find(self.name)
            .into_iter()
            .chain(built)
            .find(|path| self.is_version(path))
    }

    fn is_version(&self, path: &PathBuf) -> bool {
        // One of them prints its name before the version, the other does not.
        process::is_executable(path)
            && process::capture(Command::new(path).args(self.verb).arg("--version")).is_ok_and(
                |said| {
                    said.split_whitespace()
                        .any(|word| word.trim_start_matches('v') == self.version)
                },
            )
    }

    fn folder(&self) -> Result<PathBuf> {
        workspace::cache(&format!("{}-{}", self.name, self.version))
    }
}
