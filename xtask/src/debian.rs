//! Packages of Debian suites that this machine is not configured for: a separate apt configuration for each, so that
//! the machine is not changed and no package is installed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::process;

pub const MIRROR: &str = "http://deb.debian.org";
/// The keyring of every suite; the package debian-archive-keyring contains it.
pub const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A suite of Debian's archive, with its current lists.
pub struct Suite {
    name: &'static str,
    /// Debian's name of the packages' architecture.
    architecture: &'static str,
    folder: PathBuf,
}

impl Suite {
    /// Fetches the suite's lists into `folder`.
    pub fn open(name: &'static str, architecture: &'static str, folder: PathBuf) -> Result<Self> {
        if !Path::new(KEYRING).exists() {
            bail!(
                "{KEYRING} is missing, without which nothing of Debian's can be trusted: install debian-archive-keyring"
            );
        }
        for needed in ["lists/partial", "cache/archives/partial"] {
            let needed = folder.join(needed);
            fs::create_dir_all(&needed)
                .with_context(|| format!("creating {}", needed.display()))?;
        }
        let archive = if name.ends_with("-security") {
            "debian-security"
        } else {
            "debian"
        };
        let source = format!(
            "deb [arch={architecture} signed-by={KEYRING}] {MIRROR}/{archive} {name} main\n"
        );
        let suite = Self {
            name,
            architecture,
            folder,
        };
        let sources = suite.sources();
        fs::write(&sources, source).with_context(|| format!("writing {}", sources.display()))?;
        process::capture(suite.apt("apt-get").arg("update"))
            .with_context(|| format!("fetching the package lists of Debian's {name}"))?;
        Ok(suite)
    }

    /// The newest package with this prefix and suffix; versions in names are compared number by number.
    pub fn newest(&self, beginning: &str, end: &str) -> Result<Option<String>> {
        let names = process::capture(self.apt("apt-cache").args(["pkgnames", beginning]))
            .with_context(|| format!("listing the packages of Debian's {}", self.name))?;
        let fitting = names
            .lines()
            .filter(|name| name.starts_with(beginning) && name.ends_with(end));
        Ok(fitting.max_by_key(|name| numbers(name)).map(str::to_owned))
    }

    /// Downloads a package and the dependencies that are wanted by their name, and unpacks them all into `root`.
    pub fn unpack(
        &self,
        package: &str,
        is_wanted: impl Fn(&str) -> bool,
        root: &Path,
    ) -> Result<()> {
        let packages = self.with_dependencies(package, is_wanted)?;
        println!(
            "fetching   {} of Debian's {}",
            packages.join(", "),
            self.name
        );
        let downloads = self.folder.join("downloads");
        fs::create_dir_all(&downloads)
            .with_context(|| format!("creating {}", downloads.display()))?;
        process::capture(
            self.apt("apt-get")
                .arg("download")
                .args(&packages)
                .current_dir(&downloads),
        )?;
        for entry in
            fs::read_dir(&downloads).with_context(|| format!("listing {}", downloads.display()))?
        {
            let archive = entry?.path();
            process::capture(Command::new("dpkg").arg("-x").arg(&archive).arg(root))?;
        }
        fs::remove_dir_all(&downloads).with_context(|| format!("removing {}", downloads.display()))
    }

    fn with_dependencies(
        &self,
        package: &str,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<String>> {
        let mut found = BTreeSet::new();
        let mut open = vec![package.to_owned()];
        while let Some(package) = open.pop() {
            if found.contains(&package) {
                continue;
            }
            let said =
                process::capture(
                    self.apt("apt-cache")
                        .args(["depends", "--important", &package]),
                )?;
            open.extend(
                dependencies(&said)
                    .filter(|name| is_wanted(name))
                    .map(str::to_owned),
            );
            found.insert(package);
        }
        Ok(found.into_iter().collect())
    }

    fn sources(&self) -> PathBuf {
        self.folder.join("sources.list")
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let option = |name: &str, path: PathBuf| format!("{name}={}", path.display());
        command.args([
            "-o",
            &option("Dir::Etc::sourcelist", self.sources()),
            "-o",
            "Dir::Etc::sourceparts=-",
        ]);
        command.args([
            "-o",
            &option("Dir::State::Lists", self.folder.join("lists")),
        ]);
        command.args([
            "-o",
            &option("Dir::Cache", self.folder.join("cache")),
            "-o",
            "Dir::State::status=/dev/null",
        ]);
        // The downloads are in the user's cache, which apt's own user cannot read.
        command.args([
            "-o",
            "APT::Sandbox::User=",
            "-o",
            &format!("APT::Architecture={}", self.architecture),
            "-o",
            "Acquire::Languages=none",
        ]);
        command.args([
            "-o",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
        ]);
        if program == "apt-get" {
            command.args(["-qq", "-o", "Acquire::Retries=3"]);
        }
        command
    }
}

/// Downloads a package of this machine's own suites, and unpacks it without its dependencies into `root`.
pub fn unpack_own(package: &str, folder: &Path, root: &Path) -> Result<()> {
    let downloads = folder.join("downloads");
    fs::create_dir_all(&downloads).with_context(|| format!("creating {}", downloads.display()))?;
    let mut apt = Command::new("apt-get");
    // The downloads are in the user's cache, which apt's own user cannot read.
    apt.args([
        "-qq",
        "-o",
        "Acquire::Retries=3",
        "-o",
        "APT::Sandbox::User=",
        "download",
        package,
    ]);
    process::capture(apt.current_dir(&downloads))?;
    for entry in
        fs::read_dir(&downloads).with_context(|| format!("listing {}", downloads.display()))?
    {
        process::capture(Command::new("dpkg").arg("-x").arg(entry?.path()).arg(root))?;
    }
    fs::remove_dir_all(&downloads).with_context(|| format!("removing {}", downloads.display()))
}

/// A package's dependencies, from the output of `apt-cache depends`; names in angle brackets are virtual.
fn dependencies(said: &str) -> impl Iterator<Item = &str> {
    said.lines()
        .filter_map(|line| line.trim_start_matches([' ', '|']).split_once("Depends: "))
        .map(|(_, name)| name.trim())
        .filter(|name| !name.starts_with('<'))
}

/// The numbers in a name, in order.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|letter: char| !letter.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_in_names_are_compared_as_numbers() {
        let older = "linux-image-6.12.99+deb12-cloud-amd64";
        let newer = "linux-image-6.12.101+deb12-cloud-amd64";
        assert!(numbers(newer) > numbers(older));
        assert!(
            numbers("linux-image-6.1.0-56-cloud-amd64")
                > numbers("linux-image-6.1.0-9-cloud-amd64")
        );
    }

    #[test]
    fn dependencies_are_those_that_exist() {
        let said = "linux-image-7.2.13+deb14-cloud-amd64\n  PreDepends: linux-base\n |Depends: dracut\n  \
                    Depends: <linux-initramfs-tool>\n    dracut\n  Depends: linux-binary-7.2.13+deb14-cloud-amd64\n";
        let found: Vec<&str> = dependencies(said).collect();
        assert_eq!(
            found,
            [
                "linux-base",
                "dracut",
                "linux-binary-7.2.13+deb14-cloud-amd64"
            ]
        );
    }
}
