//! The architectures of a release.

use std::env::consts::ARCH;

use anyhow::{Result, bail};

/// A target of static programs.
pub struct Target {
    /// Rust's name.
    pub triple: &'static str,
    /// Rust's name of the architecture, and RPM's.
    pub architecture: &'static str,
    /// The Open Container Initiative's name of the architecture, and Debian's.
    pub go: &'static str,
    /// The binary logarithm of the largest page that kernels have.
    pub log_page: &'static str,
}

/// All targets of a release.
pub static TARGETS: [Target; 2] = [
    Target {
        triple: "x86_64-unknown-linux-musl",
        architecture: "x86_64",
        go: "amd64",
        log_page: "12",
    },
    Target {
        triple: "aarch64-unknown-linux-musl",
        architecture: "aarch64",
        go: "arm64",
        log_page: "16",
    },
];

impl Target {
    /// The one of this architecture.
    pub fn find(architecture: &str) -> Result<&'static Self> {
        let found = TARGETS
            .iter()
            .find(|target| target.architecture == architecture);
        let Some(target) = found else {
            let known: Vec<&str> = TARGETS.iter().map(|target| target.architecture).collect();
            bail!(
                "unknown architecture `{architecture}`: a release has {}",
                known.join(", ")
            );
        };
        Ok(target)
    }

    /// Whether this machine runs its programs.
    pub fn is_native(&self) -> bool {
        self.architecture == ARCH
    }

    /// The name of the target's files in a release.
    pub fn title(&self, version: &str) -> String {
        format!("weir-{version}-{}-linux-musl", self.architecture)
    }

    /// The name of the archive with its static program.
    pub fn archive(&self, version: &str) -> String {
        format!("{}.tar.gz", self.title(version))
    }
}
