//! A test of an RPM package: rpm installs, upgrades and removes it in a directory of its own.

use std::env::consts::ARCH;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::installed::{self, CONFIG, NOT_RUN, change_config, check_config, check_removed};
use super::root::{Root, said};
use crate::process;

/// The programs that the package's scripts call besides those of each package.
const PROGRAMS: [&str; 2] = ["ln", "readlink"];
/// Files at the places of distributions with RPM.
const INSTALLED: [&str; 5] = [
    "usr/share/zsh/site-functions/_weir",
    "usr/share/zsh/site-functions/_agent",
    "usr/share/licenses/weir/LICENSE-MIT",
    "usr/share/licenses/weir/LICENSE-APACHE",
    "usr/share/licenses/weir/copyright",
];
/// Directories that other packages of these distributions have.
const DIRECTORIES: [&str; 11] = [
    "usr/lib/systemd/system",
    "usr/lib/systemd/system-generators",
    "usr/lib/sysusers.d",
    "usr/share/bash-completion/completions",
    "usr/share/doc",
    "usr/share/fish/vendor_completions.d",
    "usr/share/licenses",
    "usr/share/man/man1",
    "usr/share/man/man5",
    "usr/share/zsh/site-functions",
    "var/tmp",
];
/// The config of a removed package, if the operator has changed it.
const SAVED: &str = "etc/weir/limits.toml.rpmsave";
const DATABASE: &str = "/var/lib/rpm";

/// Installs, upgrades and removes; fails at the first deviation. `next` is the same package with a higher version.
pub fn run(package: &Path, next: &Path) -> Result<()> {
    if process::find("rpm").is_none() {
        println!("not tried: rpm is not installed; `apt-get install rpm`");
        return Ok(());
    }
    println!("trying     {} in a directory of its own", package.display());
    let mut field = Command::new("rpm");
    field
        .args(["--query", "--queryformat", "%{ARCH}", "--package"])
        .arg(package);
    let root = Root::with(&PROGRAMS, process::capture(&mut field)? != ARCH)?;
    if root.is_foreign {
        println!("{NOT_RUN}");
    }
    root.folder(DATABASE.trim_start_matches('/'))?;
    for directory in DIRECTORIES {
        root.folder(directory)?;
    }
    rpm(&root, &["--initdb"], None).context("making a database")?;
    let before = root.paths()?;
    rpm(&root, &["--install", "--nodeps"], Some(package)).context("installing")?;
    installed::check(&root, &INSTALLED)?;
    let libraries = installed::libraries(&root)?;
    ensure!(
        libraries.is_empty(),
        "the program of an RPM package is static, and this is linked to {libraries:?}"
    );

    let mine = change_config(&root)?;
    rpm(&root, &["--upgrade", "--nodeps"], Some(next)).context("upgrading")?;
    check_config(&root, CONFIG, &mine, "upgrade")?;
    installed::check(&root, &INSTALLED).context("after the upgrade")?;

    // Leftovers of a killed agent; here a plain directory, since nothing is mounted.
    root.folder("sys/fs/bpf/weir")?;
    rpm(&root, &["--erase", "weir"], None).context("removing")?;
    check_removed(&root)?;
    check_config(&root, SAVED, &mine, "removal")?;
    // Groups stay, by the guidelines of distributions with RPM.
    root.check_left(&before, &[DATABASE.trim_start_matches('/'), SAVED])?;
    println!("tried      installing, upgrading and removing: 3 passed, 0 failed");
    Ok(())
}

fn rpm(root: &Root, arguments: &[&str], package: Option<&Path>) -> Result<()> {
    let mut rpm = Command::new("rpm");
    rpm.arg("--root")
        .arg(root.folder_path())
        .args(["--dbpath", DATABASE])
        .args(arguments)
        .args((root.is_foreign && package.is_some()).then_some("--ignorearch"))
        .args(package)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    // Debian's rpm installs into no host of its own without it, and other distributions' does not know it.
    if arguments != ["--initdb"] && Path::new("/etc/debian_version").exists() {
        rpm.arg("--force-debian");
    }
    let output = rpm.output().context("starting rpm")?;
    // A script that fails is a warning to rpm.
    let printed = said(&output);
    if !output.status.success() || printed.contains("scriptlet failed") {
        bail!("rpm {arguments:?} failed: {printed}");
    }
    Ok(())
}
