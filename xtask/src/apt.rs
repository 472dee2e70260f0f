//! Debian's package manager.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::process;

/// Other programs may be installing too; wait for them.
const LOCK_SECONDS: &str = "DPkg::Lock::Timeout=300";

/// Packages installed for the caller, if this machine and this user can.
#[derive(Default)]
pub struct Apt {
    lists_are_fresh: bool,
}

impl Apt {
    /// Installs packages, without what they only recommend.
    pub fn install(&mut self, packages: &[&str]) -> Result<()> {
        if process::find("apt-get").is_none() {
            bail!("there is no apt-get here: install what the Debian packages {} hold", packages.join(" "));
        }
        if !nix::unistd::geteuid().is_root() {
            bail!("installing packages needs root: run `sudo {}`", typed(packages));
        }
        if !self.lists_are_fresh {
            println!("running    apt-get update");
            // A third party's archive that does not answer is no reason to stop: what matters is the next step.
            if let Err(error) = process::capture(apt_get().arg("update")) {
                eprintln!("warning: {error:#}");
            }
            self.lists_are_fresh = true;
        }
        let _policy = NoServices::new();
        println!("installing {}", packages.join(" "));
        process::capture(apt_get().args(["install", "-y", "--no-install-recommends"]).args(packages))
            .with_context(|| format!("installing {}", packages.join(" ")))?;
        Ok(())
    }
}

/// Where Debian asks whether a package may start its service (deb-systemd-invoke, invoke-rc.d).
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Keeps packages from starting their services while they are installed: only their programs are wanted.
struct NoServices {
    is_ours: bool,
}

impl NoServices {
    fn new() -> Self {
        // A machine that has a policy of its own keeps it.
        let made = OpenOptions::new().write(true).create_new(true).mode(0o755).open(POLICY);
        let is_ours = made.and_then(|mut file| file.write_all(b"#!/bin/sh\nexit 101\n")).is_ok();
        Self { is_ours }
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.is_ours {
            // If it is gone already, nothing is left to undo.
            let _ = fs::remove_file(POLICY);
        }
    }
}

/// The command that installs these packages, for a person to type.
pub fn typed(packages: &[&str]) -> String {
    format!("apt-get install -y --no-install-recommends {}", packages.join(" "))
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.args(["-qq", "-o", LOCK_SECONDS, "-o", "Dpkg::Use-Pty=0"]).env("DEBIAN_FRONTEND", "noninteractive");
    command
}
