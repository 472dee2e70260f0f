//! A directory that looks like a system to a package manager and a package's scripts, entered by `chroot`. It contains
//! exactly the programs that they call. Nothing is mounted, so the kernel's file systems are not reachable.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};

use crate::process;

/// The programs that scripts and tests of both packages call.
const PROGRAMS: [&str; 8] = [
    "dash", "getent", "groupadd", "rm", "rmdir", "cat", "true", "sh",
];

/// Files of the programs for groups, which stay when a package is gone.
const KEPT: [&str; 4] = ["etc/group-", "etc/gshadow-", "etc/.pwd.lock", "var/log"];

pub struct Root {
    directory: tempfile::TempDir,
    /// Whether the package is for another architecture: this machine does not run its program.
    pub is_foreign: bool,
}

impl Root {
    /// With more programs of this machine.
    pub fn with(programs: &[&str], is_foreign: bool) -> Result<Self> {
        let root = Self {
            directory: tempfile::tempdir().context("making a directory")?,
            is_foreign,
        };
        for folder in ["dev", "etc", "tmp", "usr/bin"] {
            root.folder(folder)?;
        }
        for (link, target) in [
            ("bin", "usr/bin"),
            ("sbin", "usr/bin"),
            ("lib", "usr/lib"),
            ("lib64", "usr/lib64"),
        ] {
            root.folder(target)?;
            std::os::unix::fs::symlink(target, root.path(link))
                .with_context(|| format!("linking {link}"))?;
        }
        for (file, text) in [
            ("passwd", "root:x:0:0::/:/bin/sh\n"),
            ("group", "root:x:0:\n"),
            ("gshadow", "root:*::\n"),
            ("nsswitch.conf", "passwd: files\ngroup: files\n"),
            ("login.defs", "SYS_GID_MIN 100\nSYS_GID_MAX 999\n"),
        ] {
            root.write(&format!("etc/{file}"), text)?;
        }
        // A plain file is sufficient in place of the device.
        root.write("dev/null", "")?;
        for name in PROGRAMS.iter().chain(programs) {
            let program =
                process::find(name).with_context(|| format!("there is no {name} here"))?;
            root.add_program(&program)?;
        }
        Ok(root)
    }

    /// This machine's program, with its libraries.
    pub fn add_program(&self, program: &Path) -> Result<()> {
        let name = program.file_name().context("naming a program")?;
        self.copy(program, &format!("usr/bin/{}", name.to_string_lossy()))?;
        self.provide(libraries_of(program)?)
    }

    /// All files and directories.
    pub fn paths(&self) -> Result<BTreeSet<PathBuf>> {
        let mut paths = BTreeSet::new();
        let mut open = vec![self.folder_path().to_path_buf()];
        while let Some(folder) = open.pop() {
            for entry in
                fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))?
            {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    open.push(entry.path());
                }
                paths.extend(
                    entry
                        .path()
                        .strip_prefix(self.folder_path())
                        .map(Path::to_path_buf),
                );
            }
        }
        Ok(paths)
    }

    /// Checks that a removed package left nothing but what was there before, and `kept`.
    pub fn check_left(&self, before: &BTreeSet<PathBuf>, kept: &[&str]) -> Result<()> {
        let left: Vec<PathBuf> = self
            .paths()?
            .into_iter()
            .filter(|path| !before.contains(path))
            .filter(|path| {
                !KEPT
                    .iter()
                    .chain(kept)
                    .any(|kept| path.starts_with(kept) || Path::new(kept).starts_with(path))
            })
            // The kernel's file system is there on every host.
            .filter(|path| !Path::new("sys/fs/bpf").starts_with(path))
            .collect();
        ensure!(left.is_empty(), "removed, yet there is {left:?}");
        Ok(())
    }

    /// This machine's libraries.
    pub fn provide(&self, libraries: impl IntoIterator<Item = PathBuf>) -> Result<()> {
        libraries
            .into_iter()
            .try_for_each(|library| self.copy(&library, &inside(&library)))
    }

    pub fn folder_path(&self) -> &Path {
        self.directory.path()
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    pub fn folder(&self, path: &str) -> Result<()> {
        fs::create_dir_all(self.path(path)).with_context(|| format!("making {path}"))
    }

    pub fn write(&self, path: &str, text: &str) -> Result<()> {
        fs::write(self.path(path), text).with_context(|| format!("writing {path}"))
    }

    fn copy(&self, from: &Path, to: &str) -> Result<()> {
        let to = self.path(to);
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        }
        fs::copy(from, &to)
            .with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).context("making it executable")
    }

    /// Runs the installed program by this path.
    pub fn call(&self, path: &str, arguments: &[&str]) -> Result<Output> {
        let mut chroot = Command::new("chroot");
        chroot
            .arg(self.folder_path())
            .arg(Path::new("/").join(path))
            .args(arguments);
        chroot.output().context("starting chroot")
    }

    pub fn has_group(&self) -> Result<bool> {
        let groups = fs::read_to_string(self.path("etc/group")).context("reading the groups")?;
        Ok(groups.lines().any(|line| line.starts_with("weir:")))
    }
}

/// Where a library of this machine is in the directory.
pub fn inside(library: &Path) -> String {
    let place = library.to_string_lossy();
    format!("usr{}", place.strip_prefix("/usr").unwrap_or(&place))
}

/// The paths of the libraries that a program is linked to.
pub fn libraries_of(program: &Path) -> Result<Vec<PathBuf>> {
    let linked = process::capture(Command::new("ldd").arg(program))?;
    let path = |line: &str| {
        line.split_whitespace()
            .find(|word| word.starts_with('/'))
            .map(PathBuf::from)
    };
    Ok(linked.lines().filter_map(path).collect())
}

pub fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
