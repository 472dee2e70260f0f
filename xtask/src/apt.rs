//! Debian's package manager.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::process;

/// Other programs may be installing packages: wait for them.
const LOCK_SECONDS: &str = "DPkg::Lock::Timeout=300";

/// Installs packages, if this machine and this user can.
#[derive(Default)]
pub struct Apt {
    lists_are_fresh: bool,
}

impl Apt {
    /// Installs packages without their recommendations.
    pub fn install(&mut self, packages: &[&str]) -> Result<()> {
        if process::find("apt-get").is_none() {
            bail!(
                "there is no apt-get here: install what the Debian packages {} hold",
                packages.join(" ")
            );
        }
        if !nix::unistd::geteuid().is_root() {
            bail!(
                "installing packages needs root: run `sudo {}`",
                typed(packages)
            );
        }
        if !self.lists_are_fresh {
            println!("running    apt-get update");
            // An unavailable third-party archive is no reason to stop: the next step decides.
            if let Err(error) = process::capture(apt_get().arg("update")) {
                eprintln!("warning: {error:#}");
            }
            self.lists_are_fresh = true;
        }
        let release = beside_backports(packages);
        println!("installing {}", packages.join(" "));
        // The package redis-server would start it on its usual port; only the program is needed.
        let _no_services = NoServices::at(Path::new(POLICY))?;
        process::capture(
            apt_get()
                .args(["install", "-y", "--no-install-recommends"])
                .args(release.iter().flat_map(|release| ["-t", release]))
                .args(packages),
        )
        .with_context(|| format!("installing {}", packages.join(" ")))?;
        Ok(())
    }
}

/// Packages that must have the version of another one, if that is installed.
const TOGETHER: [(&str, &str); 4] = [
    ("qemu-system-x86", "qemu-utils"),
    ("qemu-system-x86", "qemu-system-common"),
    ("qemu-system-arm", "qemu-utils"),
    ("qemu-system-arm", "qemu-system-common"),
];

/// The release from which to install packages, if an installed one, as from backports, conflicts with its release's own.
fn beside_backports(packages: &[&str]) -> Option<String> {
    TOGETHER
        .iter()
        .filter(|(package, _)| packages.contains(package))
        .find_map(|(package, other)| {
            let format = "-f=${db:Status-Status} ${Version}";
            let installed =
                process::capture(Command::new("dpkg-query").args(["-W", format, other])).ok()?;
            let version = installed.trim().strip_prefix("installed ")?.to_owned();
            let offers =
                process::capture(Command::new("apt-cache").args(["madison", package])).ok()?;
            release_with(&version, &offers)
        })
}

/// The release that has a version, in the output of `apt-cache madison`; `None` if apt takes it without being told.
fn release_with(version: &str, offers: &str) -> Option<String> {
    offers.lines().find_map(|line| {
        let mut columns = line.split('|').map(str::trim);
        let (_, offered, source) = (columns.next()?, columns.next()?, columns.next()?);
        let release = source.split_whitespace().nth(1)?.split('/').next()?;
        (offered == version && release.ends_with("-backports")).then(|| release.to_owned())
    })
}

/// Debian's packages call it to decide whether a service may be started: 101 means no.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Until it is dropped, installed packages start no services. An existing policy stays.
struct NoServices<'p>(Option<&'p Path>);

impl<'p> NoServices<'p> {
    fn at(path: &'p Path) -> Result<Self> {
        match OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o755)
            .open(path)
        {
            Ok(mut file) => {
                let made = Self(Some(path));
                let text = "#!/bin/sh\n# `cargo xtask setup` is installing; remove this if it no longer runs.\nexit 101\n";
                file.write_all(text.as_bytes())
                    .with_context(|| format!("writing {}", path.display()))?;
                Ok(made)
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(Self(None)),
            // Without the folder, no package calls it.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self(None)),
            Err(error) => Err(error).with_context(|| format!("making {}", path.display())),
        }
    }
}

impl Drop for NoServices<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.0
            && let Err(error) = fs::remove_file(path)
        {
            eprintln!(
                "warning: {} could not be removed, and keeps services from starting: {error}",
                path.display()
            );
        }
    }
}

/// The command that installs these packages, for messages.
pub fn typed(packages: &[&str]) -> String {
    format!(
        "apt-get install -y --no-install-recommends {}",
        packages.join(" ")
    )
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command
        .args(["-qq", "-o", LOCK_SECONDS, "-o", "Dpkg::Use-Pty=0"])
        .env("DEBIAN_FRONTEND", "noninteractive");
    command
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn packages_come_from_the_release_of_an_installed_one_they_belong_to() {
        let offers = "qemu-system-x86 | 1:10.0.2+ds-2~bpo12+1 | http://deb.example.org/debian bookworm-backports/main amd64 Packages\n\
                      qemu-system-x86 | 1:7.2+dfsg-7+deb12u16 | http://deb.example.org/debian bookworm/main amd64 Packages\n";
        let of = |version: &str| release_with(version, offers);
        assert_eq!(
            of("1:10.0.2+ds-2~bpo12+1").as_deref(),
            Some("bookworm-backports")
        );
        assert_eq!(of("1:7.2+dfsg-7+deb12u16"), None);
        assert_eq!(of("1:9.0"), None);
    }

    #[test]
    fn no_service_is_started_while_packages_are_installed_and_any_may_be_afterwards() {
        let folder = std::env::temp_dir().join(format!("weir-policy-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("policy-rc.d");
        let guard = NoServices::at(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o500, 0o500, "its owner can execute it");
        // Executing it fails while a process that another test starts has a copy of the descriptor that wrote it.
        let asked = Command::new("sh")
            .arg(&path)
            .args(["redis-server", "start"])
            .status()
            .unwrap();
        assert_eq!(asked.code(), Some(101));
        drop(guard);
        assert!(!path.exists());
        // The administrator's policy stays.
        fs::write(&path, "theirs").unwrap();
        drop(NoServices::at(&path).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
        fs::remove_dir_all(&folder).unwrap();
    }
}
