//! The disk of a guest with systemd: a minimal Debian release for the tests.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::Distribution;
use crate::architecture::Architecture;
use crate::debian::{KEYRING, MIRROR, Suite};
use crate::process;
use crate::vm::kernel::{Kernel, Release};
use crate::vm::tool::tool;
use crate::workspace;

/// The packages besides Debian's essential ones.
const PACKAGES: [&str; 22] = [
    "apt",
    "bpftool",
    // Containers, with networks of their own.
    "crun",
    "dbus",
    "dbus-user-session",
    "iproute2",
    "iptables",
    "kmod",
    "libgcc-s1",
    "libnss-systemd",
    // User sessions.
    "libpam-systemd",
    "netavark",
    "nftables",
    "passwd",
    "podman",
    "procps",
    "slirp4netns",
    "systemd",
    "systemd-sysv",
    "udev",
    "uidmap",
    "zstd",
];
/// Packages of which only the units are installed, for their ordering; in /usr/lib/weir-tests/units.
const UNITS_OF: [&str; 3] = ["cloud-init", "firewalld", "ifupdown"];
const UNITS: &str = "usr/lib/weir-tests/units";
/// Units that only cost time here.
const MASKED: [&str; 11] = [
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty.target",
    "getty@tty1.service",
    "serial-getty@ttyS0.service",
    "serial-getty@ttyS1.service",
    "systemd-timesyncd.service",
];
/// Files with their modes.
const FILES: [(&str, u32, &str); 6] = [
    ("etc/hostname", 0o644, "guest\n"),
    (
        "etc/hosts",
        0o644,
        "127.0.0.1 localhost guest\n::1 localhost\n",
    ),
    ("etc/fstab", 0o644, "/dev/vda / ext4 rw 0 1\n"),
    // Without it, systemd treats each boot as the first and enables units by presets.
    (
        "etc/machine-id",
        0o444,
        "0123456789abcdef0123456789abcdef\n",
    ),
    (
        "etc/systemd/system/weir-tests.service",
        0o644,
        include_str!("weir-tests.service"),
    ),
    ("usr/lib/weir-tests/run", 0o755, include_str!("run.sh")),
];
/// The size of the sparse file system.
const SIZE: &str = "3G";

/// A bootable release.
pub struct Image {
    pub kernel: Kernel,
    folder: PathBuf,
}

impl Image {
    /// Finds the image in the cache, or creates it.
    pub fn provide(distribution: &Distribution) -> Result<Self> {
        let kernel = Release::find(distribution.kernel)?.provide(Architecture::find("x86_64")?)?;
        let place = workspace::cache("guests")?.join(name(distribution, &kernel));
        if !place.exists() {
            ensure!(
                nix::unistd::geteuid().is_root(),
                "making a guest's root file system requires root"
            );
            let part = place.with_extension(format!("part{}", std::process::id()));
            println!(
                "making     a guest with Debian's {} and systemd",
                distribution.name
            );
            let made = make(distribution, &kernel, &part);
            // Another run may have created it meanwhile; either one is fine.
            let placed = made.and_then(|()| match fs::rename(&part, &place) {
                Err(_) if place.exists() => Ok(()),
                renamed => renamed
                    .with_context(|| format!("renaming {} to {}", part.display(), place.display())),
            });
            let _ = fs::remove_dir_all(&part);
            placed
                .with_context(|| format!("making a guest with Debian's {}", distribution.name))?;
        }
        Ok(Self {
            kernel,
            folder: place,
        })
    }

    /// The file of the root file system.
    pub fn disk(&self) -> PathBuf {
        self.folder.join("root.img")
    }
}

/// A name that changes with everything that affects the image.
fn name(distribution: &Distribution, kernel: &Kernel) -> String {
    let mut hasher = DefaultHasher::new();
    (PACKAGES, UNITS_OF, MASKED, FILES, SIZE).hash(&mut hasher);
    format!(
        "{}-{}-{:016x}",
        distribution.name,
        kernel.name,
        hasher.finish()
    )
}

fn make(distribution: &Distribution, kernel: &Kernel, part: &Path) -> Result<()> {
    fs::create_dir_all(part).with_context(|| format!("creating {}", part.display()))?;
    let root = part.join("root");
    let mut debstrap = Command::new(tool("mmdebstrap")?);
    debstrap
        .args(["--quiet", "--variant=minbase"])
        .arg(format!("--architectures={}", kernel.architecture.debian))
        .arg(format!("--keyring={KEYRING}"));
    debstrap
        .arg("--aptopt=Acquire::Languages \"none\"")
        .arg("--aptopt=Acquire::Retries \"3\"");
    for folder in ["man", "locale", "doc"] {
        debstrap.arg(format!("--dpkgopt=path-exclude=/usr/share/{folder}/*"));
    }
    debstrap
        .arg(format!("--include={}", PACKAGES.join(",")))
        .arg(distribution.name)
        .arg(&root);
    process::capture(debstrap.arg(format!("{MIRROR}/debian")))?;
    let modules = root.join("usr/lib/modules");
    fs::create_dir_all(&modules).with_context(|| format!("creating {}", modules.display()))?;
    process::capture(
        Command::new("cp")
            .arg("-a")
            .arg(kernel.modules.folder())
            .arg(&modules),
    )?;
    add_units(distribution, kernel, part, &root)?;
    for (path, mode, text) in FILES {
        write(&root.join(path), text, mode)?;
    }
    let units = root.join("etc/systemd/system");
    for unit in MASKED {
        link("/dev/null", &units.join(unit))?;
    }
    link(
        "../weir-tests.service",
        &units.join("multi-user.target.wants/weir-tests.service"),
    )?;
    // The journal is kept over boots if this exists.
    create_folder(&root.join("var/log/journal"))?;
    let mut mke2fs = Command::new(tool("mke2fs")?);
    mke2fs.args([
        "-q",
        "-t",
        "ext4",
        "-L",
        "root",
        "-O",
        "^has_journal",
        "-E",
        "lazy_itable_init=1",
        "-m",
        "0",
        "-d",
    ]);
    process::capture(mke2fs.arg(&root).arg(part.join("root.img")).arg(SIZE))?;
    fs::remove_dir_all(&root).with_context(|| format!("removing {}", root.display()))
}

/// Copies the units of packages to where a test finds them.
fn add_units(distribution: &Distribution, kernel: &Kernel, part: &Path, root: &Path) -> Result<()> {
    let suite = Suite::open(
        distribution.name,
        kernel.architecture.debian,
        part.join("apt"),
    )?;
    let unpacked = part.join("unpacked");
    for package in UNITS_OF {
        suite.unpack(package, |_| false, &unpacked)?;
    }
    let to = root.join(UNITS);
    create_folder(&to)?;
    for folder in
        ["lib/systemd/system", "usr/lib/systemd/system"].map(|folder| unpacked.join(folder))
    {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry
                .with_context(|| format!("listing {}", folder.display()))?
                .path();
            process::capture(Command::new("cp").arg("-a").arg(&path).arg(&to))?;
        }
    }
    for folder in [unpacked, part.join("apt")] {
        fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    Ok(())
}

fn create_folder(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))
}

fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    create_folder(path.parent().unwrap_or(path))?;
    // Not through a link from a package.
    let _ = fs::remove_file(path);
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    let permissions = fs::Permissions::from_mode(mode);
    fs::set_permissions(path, permissions)
        .with_context(|| format!("setting the mode of {}", path.display()))
}

fn link(target: &str, path: &Path) -> Result<()> {
    create_folder(path.parent().unwrap_or(path))?;
    let _ = fs::remove_file(path);
    symlink(target, path).with_context(|| format!("linking {}", path.display()))
}
