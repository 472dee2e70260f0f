//! A test of a Debian package: dpkg installs, upgrades, removes and purges it in a directory of its own.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::installed::{
    self, CONFIG, LINK, NOT_RUN, PROGRAM, change_config, check_config, check_removed, check_version,
};
use super::root::{Root, inside, said};
use crate::process;

/// The programs that the package's scripts and dpkg call besides those of each package.
const PROGRAMS: [&str; 2] = ["groupdel", "dpkg-query"];
/// Files at Debian's places.
const INSTALLED: [&str; 5] = [
    "usr/share/man/man1/agent.1.gz",
    "usr/share/doc/weir/changelog.Debian.gz",
    "usr/share/doc/weir/copyright",
    "usr/share/zsh/vendor-completions/_weir",
    "usr/share/zsh/vendor-completions/_agent",
];
/// Makes the group, on hosts that have it; the package's scripts call `groupadd` on others.
const SYSUSERS: &str = "systemd-sysusers";

/// Installs, upgrades, removes and purges; fails at the first deviation, or if the program is larger than `most_bytes`.
pub fn run(package: &Path, next: &Path, most_bytes: Option<u64>) -> Result<()> {
    println!("trying     {} in a directory of its own", package.display());
    check_life(package, next, most_bytes)?;
    check_upgrade_from_a_file(package)?;
    println!("tried      installing, upgrading, removing and purging: 4 passed, 0 failed");
    Ok(())
}

/// Installs, upgrades, removes and purges.
fn check_life(package: &Path, next: &Path, most_bytes: Option<u64>) -> Result<()> {
    let root = root(package)?;
    if root.is_foreign {
        println!("{NOT_RUN}");
    }
    match process::find(SYSUSERS) {
        Some(program) => root.add_program(&program)?,
        None => println!("not tried: {SYSUSERS}, which is not installed here"),
    }
    let before = root.paths()?;
    dpkg(&root, &["--install"], Some(package)).context("installing")?;
    installed::check(&root, &INSTALLED)?;
    check_size(&root.path(PROGRAM), most_bytes)?;
    let libraries = installed::libraries(&root)?;

    let mine = change_config(&root)?;
    dpkg(
        &root,
        &["--force-confdef", "--force-confold", "--install"],
        Some(next),
    )
    .context("upgrading")?;
    check_config(&root, CONFIG, &mine, "upgrade")?;

    // Leftovers of a killed agent; here a plain directory, since nothing is mounted.
    root.folder("sys/fs/bpf/weir")?;
    dpkg(&root, &["--remove", "weir"], None).context("removing")?;
    check_removed(&root)?;
    check_config(&root, CONFIG, &mine, "removal")?;
    purge(&root, before, &libraries)
}

/// Installs a package with the program in place of the link, as before the program was named weir, and upgrades it.
fn check_upgrade_from_a_file(package: &Path) -> Result<()> {
    let root = root(package)?;
    let before = root.paths()?;
    let folder = tempfile::tempdir().context("making a directory")?;
    let older = with_a_file(package, folder.path()).context("making an older package")?;
    dpkg(&root, &["--install"], Some(&older)).context("installing an older package")?;
    ensure!(
        root.has_group()?,
        "installed without {SYSUSERS}, yet there is no group weir"
    );
    root.write(CONFIG, "# mine\n")?;
    dpkg(&root, &["--force-confold", "--install"], Some(package))
        .context("upgrading from an older package")?;
    check_config(&root, CONFIG, "# mine\n", "upgrade from an older package")?;
    let libraries = installed::libraries(&root)?;
    root.provide(libraries.clone())?;
    ensure!(
        fs::read_link(root.path(LINK)).is_ok_and(|to| to == Path::new("weir")),
        "upgraded from an older package, yet /{LINK} is not a link to weir"
    );
    if !root.is_foreign {
        check_version(&root, LINK, "agent").context("after the upgrade from an older package")?;
    }
    purge(&root, before, &libraries)
}

/// The package with an older version, and with the program under the name of the link.
fn with_a_file(package: &Path, folder: &Path) -> Result<PathBuf> {
    let tree = folder.join("tree");
    let older = folder.join("older.deb");
    process::capture(
        Command::new("dpkg-deb")
            .arg("--raw-extract")
            .arg(package)
            .arg(&tree),
    )?;
    fs::rename(tree.join(PROGRAM), tree.join(LINK)).context("moving the program")?;
    let control = tree.join("DEBIAN/control");
    let text = fs::read_to_string(&control).context("reading the package's fields")?;
    let fields = text.lines().map(|line| match line.split_once(": ") {
        Some(("Version", _)) => "Version: 0.0.1-1\n".to_owned(),
        _ => format!("{line}\n"),
    });
    fs::write(&control, fields.collect::<String>()).context("writing the package's fields")?;
    process::capture(
        Command::new("dpkg-deb")
            .args(["-Znone", "--root-owner-group", "--build"])
            .arg(&tree)
            .arg(&older),
    )?;
    Ok(older)
}

/// Purges, and checks that nothing is left but what was there before, and libraries.
fn purge(root: &Root, mut before: BTreeSet<PathBuf>, libraries: &[PathBuf]) -> Result<()> {
    dpkg(root, &["--purge", "weir"], None).context("purging")?;
    for library in libraries {
        let place = inside(library);
        before.extend(Path::new(&place).ancestors().map(Path::to_path_buf));
    }
    root.check_left(&before, &["var/lib/dpkg"])?;
    ensure!(!root.has_group()?, "purged, yet there is a group weir");
    Ok(())
}

/// Checks that the installed binary has not grown.
fn check_size(agent: &Path, most_bytes: Option<u64>) -> Result<()> {
    let bytes = fs::metadata(agent)
        .with_context(|| format!("reading {}", agent.display()))?
        .len();
    println!("installed  the program has {:.1} MB", bytes as f64 / 1e6);
    if let Some(most) = most_bytes {
        ensure!(
            bytes <= most,
            "the program has {bytes} bytes, and may have {most}"
        );
    }
    Ok(())
}

/// A directory with dpkg's database, for this package.
fn root(package: &Path) -> Result<Root> {
    let mut field = Command::new("dpkg-deb");
    field.arg("--field").arg(package).arg("Architecture");
    let architecture = process::capture(&mut field)?;
    let host = process::capture(Command::new("dpkg").arg("--print-architecture"))?;
    let root = Root::with(&PROGRAMS, architecture != host)?;
    for folder in ["info", "updates", "triggers"] {
        root.folder(&format!("var/lib/dpkg/{folder}"))?;
    }
    root.write("var/lib/dpkg/status", &host_packages(architecture.trim())?)?;
    Ok(root)
}

fn dpkg(root: &Root, arguments: &[&str], package: Option<&Path>) -> Result<()> {
    let mut dpkg = Command::new("dpkg");
    dpkg.arg("--root")
        .arg(root.folder_path())
        .arg("--force-not-root")
        .args(root.is_foreign.then_some("--force-architecture"))
        .args(arguments)
        .args(package);
    dpkg.env("DEBIAN_FRONTEND", "noninteractive")
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    let output = dpkg.output().context("starting dpkg")?;
    if !output.status.success() {
        bail!("dpkg {arguments:?} failed: {}", said(&output));
    }
    Ok(())
}

/// The entries of dpkg's database for the packages that the agent needs, from this host, with an architecture.
fn host_packages(architecture: &str) -> Result<String> {
    let mut status = String::new();
    for package in ["libc6", "libgcc-s1", "passwd"] {
        let known = process::capture(Command::new("dpkg-query").args(["--status", package]))?;
        // Dependencies, and the host's architecture.
        let omitted = [
            "Depends:",
            "Pre-Depends:",
            "Recommends:",
            "Suggests:",
            "Conffiles:",
            "Architecture:",
            " /",
        ];
        let lines = known
            .lines()
            .filter(|line| !omitted.iter().any(|field| line.starts_with(field)));
        status.extend(lines.flat_map(|line| [line, "\n"]));
        status.push_str(&format!("Architecture: {architecture}\n\n"));
    }
    Ok(status)
}
