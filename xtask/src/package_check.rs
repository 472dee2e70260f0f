//! Tests a Debian package in a directory that contains exactly the programs that its scripts call, entered by `chroot`.
//! dpkg works as on a host; nothing is mounted, so the kernel's file systems are not reachable.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result, bail, ensure};

use crate::process;

/// The programs that the package's scripts and the test call.
const PROGRAMS: [&str; 10] = [
    "dash",
    "getent",
    "groupadd",
    "groupdel",
    "rm",
    "rmdir",
    "cat",
    "true",
    "sh",
    "dpkg-query",
];
/// The libraries that the agent may be linked to: the C library and those of every system with one.
const LIBRARIES: [&str; 6] = [
    "linux-vdso.so",
    "libc.so",
    "libm.so",
    "libgcc_s.so",
    "ld-linux-x86-64.so",
    "ld-linux-aarch64.so",
];
const CONFIG: &str = "etc/weir/limits.toml";
/// systemd runs it, if it is executable.
const GENERATOR: &str = "usr/lib/systemd/system-generators/weir-generator";
const PROGRAM: &str = "usr/bin/weir";
/// The program's other name, which was a file before it was a link.
const LINK: &str = "usr/bin/agent";
const INSTALLED: [&str; 25] = [
    PROGRAM,
    LINK,
    CONFIG,
    "usr/lib/systemd/system/weir.service",
    "usr/lib/weir/groups.conf",
    "usr/lib/sysusers.d/weir.conf",
    GENERATOR,
    "usr/share/man/man1/weir.1.gz",
    "usr/share/man/man1/agent.1.gz",
    "usr/share/man/man5/limits.toml.5.gz",
    "usr/share/doc/weir/changelog.Debian.gz",
    "usr/share/doc/weir/changelog.gz",
    "usr/share/doc/weir/copyright",
    "usr/share/doc/weir/limits.schema.json",
    "usr/share/bash-completion/completions/weir",
    "usr/share/bash-completion/completions/agent",
    "usr/share/fish/vendor_completions.d/weir.fish",
    "usr/share/fish/vendor_completions.d/agent.fish",
    "usr/share/zsh/vendor-completions/_weir",
    "usr/share/zsh/vendor-completions/_agent",
    "usr/share/doc/weir/README.md",
    "usr/share/doc/weir/docs/start/install.md",
    "usr/share/doc/weir/docs/guides/cdn.md",
    "usr/share/doc/weir/docs/operations/troubleshooting.md",
    "usr/share/doc/weir/examples/weir.rules.yml",
];
/// Makes the group, on hosts that have it; the package's scripts call `groupadd` on others.
const SYSUSERS: &str = "systemd-sysusers";
/// Files of dpkg and of the programs for groups, which stay after a purge.
const KEPT: [&str; 5] = [
    "var/lib/dpkg",
    "etc/group-",
    "etc/gshadow-",
    "etc/.pwd.lock",
    "var/log",
];

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
    let root = Root::new()?;
    match process::find(SYSUSERS) {
        Some(program) => root.add_program(&program)?,
        None => println!("not tried: {SYSUSERS}, which is not installed here"),
    }
    let before = root.paths()?;
    root.dpkg(&["--install"], Some(package))
        .context("installing")?;
    for file in INSTALLED {
        ensure!(
            root.path(file).exists(),
            "installed, yet there is no /{file}"
        );
    }
    let generator = fs::metadata(root.path(GENERATOR)).context("reading the generator's mode")?;
    ensure!(
        generator.permissions().mode() & 0o111 == 0o111,
        "/{GENERATOR} is not executable"
    );
    ensure!(root.has_group()?, "installed, yet there is no group weir");
    ensure!(
        fs::read_link(root.path(LINK)).is_ok_and(|to| to == Path::new("weir")),
        "/{LINK} is not a link to weir"
    );
    check_libraries(&root.path(PROGRAM))?;
    check_size(&root.path(PROGRAM), most_bytes)?;
    // Only the libraries of its dependencies.
    let libraries = libraries_of(&root.path(PROGRAM))?;
    root.provide(libraries.clone())?;
    for (path, name) in [(PROGRAM, "weir"), (LINK, "agent")] {
        let version = root.call(path, &["--version"])?;
        ensure!(
            version.status.success(),
            "the installed /{path} does not start: {}",
            said(&version)
        );
        ensure!(
            said(&version).starts_with(&format!("{name} ")),
            "/{path} does not name itself {name}: {}",
            said(&version)
        );
    }
    let check = root.call(PROGRAM, &["check", "/etc/weir/limits.toml"])?;
    ensure!(
        check.status.success(),
        "the installed config is not valid: {}",
        said(&check)
    );
    ensure!(
        said(&check).contains("mode observe"),
        "the installed config throttles: {}",
        said(&check)
    );

    let config = root.path(CONFIG);
    let mine = format!(
        "{}# mine\n",
        fs::read_to_string(&config).context("reading the installed config")?
    );
    fs::write(&config, &mine).context("changing the installed config")?;
    root.dpkg(
        &["--force-confdef", "--force-confold", "--install"],
        Some(next),
    )
    .context("upgrading")?;
    ensure!(
        fs::read_to_string(&config).is_ok_and(|text| text == mine),
        "the upgrade changed the operator's config"
    );

    // Leftovers of a killed agent; here a plain directory, since nothing is mounted.
    fs::create_dir_all(root.path("sys/fs/bpf/weir")).context("making pins")?;
    root.dpkg(&["--remove", "weir"], None).context("removing")?;
    for name in [PROGRAM, LINK] {
        ensure!(
            fs::symlink_metadata(root.path(name)).is_err(),
            "removed, yet there is /{name}"
        );
    }
    ensure!(
        fs::read_to_string(&config).is_ok_and(|text| text == mine),
        "the removal took the operator's config"
    );
    purge(&root, before, &libraries)
}

/// Installs a package with the program in place of the link, as before the program was named weir, and upgrades it.
fn check_upgrade_from_a_file(package: &Path) -> Result<()> {
    let root = Root::new()?;
    let before = root.paths()?;
    let folder = tempfile::tempdir().context("making a directory")?;
    let older = with_a_file(package, folder.path()).context("making an older package")?;
    root.dpkg(&["--install"], Some(&older))
        .context("installing an older package")?;
    ensure!(
        root.has_group()?,
        "installed without {SYSUSERS}, yet there is no group weir"
    );
    fs::write(root.path(CONFIG), "# mine\n").context("changing the installed config")?;
    root.dpkg(&["--force-confold", "--install"], Some(package))
        .context("upgrading from an older package")?;
    ensure!(
        fs::read_to_string(root.path(CONFIG)).is_ok_and(|text| text == "# mine\n"),
        "the upgrade from an older package changed the operator's config"
    );
    let libraries = libraries_of(&root.path(PROGRAM))?;
    root.provide(libraries.clone())?;
    ensure!(
        fs::read_link(root.path(LINK)).is_ok_and(|to| to == Path::new("weir")),
        "upgraded from an older package, yet /{LINK} is not a link to weir"
    );
    let version = root.call(LINK, &["--version"])?;
    ensure!(
        version.status.success(),
        "the upgraded /{LINK} does not start: {}",
        said(&version)
    );
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
    root.dpkg(&["--purge", "weir"], None).context("purging")?;
    for library in libraries {
        let place = inside(library);
        before.extend(Path::new(&place).ancestors().map(Path::to_path_buf));
    }
    let left: Vec<PathBuf> = root
        .paths()?
        .into_iter()
        .filter(|path| !before.contains(path) && !KEPT.iter().any(|kept| path.starts_with(kept)))
        .collect();
    // The kernel's file system is there on every host.
    let left: Vec<&PathBuf> = left
        .iter()
        .filter(|path| !Path::new("sys/fs/bpf").starts_with(path))
        .collect();
    ensure!(left.is_empty(), "purged, yet there is {left:?}");
    ensure!(!root.has_group()?, "purged, yet there is a group weir");
    Ok(())
}

/// Checks that the installed binary only needs standard libraries.
fn check_libraries(agent: &Path) -> Result<()> {
    let linked = process::capture(Command::new("ldd").arg(agent))?;
    for line in linked
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && *line != "statically linked")
    {
        let name = line.split_whitespace().next().unwrap_or_default();
        let name = name.rsplit('/').next().unwrap_or_default();
        ensure!(
            LIBRARIES.iter().any(|known| name.starts_with(known)),
            "the agent is linked to {name}: {linked}"
        );
    }
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

/// A directory that looks like a system to dpkg and the package's scripts.
struct Root(tempfile::TempDir);

impl Root {
    fn new() -> Result<Self> {
        let root = Self(tempfile::tempdir().context("making a directory")?);
        for folder in [
            "var/lib/dpkg/info",
            "var/lib/dpkg/updates",
            "var/lib/dpkg/triggers",
            "dev",
            "etc",
            "tmp",
            "usr/bin",
        ] {
            fs::create_dir_all(root.path(folder)).with_context(|| format!("making {folder}"))?;
        }
        for (link, target) in [
            ("bin", "usr/bin"),
            ("sbin", "usr/bin"),
            ("lib", "usr/lib"),
            ("lib64", "usr/lib64"),
        ] {
            fs::create_dir_all(root.path(target)).with_context(|| format!("making {target}"))?;
            std::os::unix::fs::symlink(target, root.path(link))
                .with_context(|| format!("linking {link}"))?;
        }
        root.write("var/lib/dpkg/status", &host_packages()?)?;
        for (file, text) in [
            ("passwd", "root:x:0:0::/:/bin/sh\n"),
            ("group", "root:x:0:\n"),
            ("gshadow", "root:*::\n"),
        ] {
            root.write(&format!("etc/{file}"), text)?;
        }
        // A plain file is sufficient in place of the device.
        root.write("dev/null", "")?;
        root.write("etc/nsswitch.conf", "passwd: files\ngroup: files\n")?;
        root.write("etc/login.defs", "SYS_GID_MIN 100\nSYS_GID_MAX 999\n")?;
        for name in PROGRAMS {
            let program =
                process::find(name).with_context(|| format!("there is no {name} here"))?;
            root.add_program(&program)?;
        }
        Ok(root)
    }

    /// This machine's program, with its libraries.
    fn add_program(&self, program: &Path) -> Result<()> {
        let name = program.file_name().context("naming a program")?;
        self.copy(program, &format!("usr/bin/{}", name.to_string_lossy()))?;
        self.provide(libraries_of(program)?)
    }

    /// All files and directories.
    fn paths(&self) -> Result<BTreeSet<PathBuf>> {
        let mut paths = BTreeSet::new();
        let mut open = vec![self.0.path().to_path_buf()];
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
                        .strip_prefix(self.0.path())
                        .map(Path::to_path_buf),
                );
            }
        }
        Ok(paths)
    }

    /// This machine's libraries.
    fn provide(&self, libraries: impl IntoIterator<Item = PathBuf>) -> Result<()> {
        libraries
            .into_iter()
            .try_for_each(|library| self.copy(&library, &inside(&library)))
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, text: &str) -> Result<()> {
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

    fn dpkg(&self, arguments: &[&str], package: Option<&Path>) -> Result<()> {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg("--root")
            .arg(self.0.path())
            .arg("--force-not-root")
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

    /// Runs the installed program by this path.
    fn call(&self, path: &str, arguments: &[&str]) -> Result<Output> {
        let mut chroot = Command::new("chroot");
        chroot
            .arg(self.0.path())
            .arg(Path::new("/").join(path))
            .args(arguments);
        chroot.output().context("starting chroot")
    }

    fn has_group(&self) -> Result<bool> {
        let groups = fs::read_to_string(self.path("etc/group")).context("reading the groups")?;
        Ok(groups.lines().any(|line| line.starts_with("weir:")))
    }
}

/// The entries of dpkg's database for the packages that the agent needs, from this host.
fn host_packages() -> Result<String> {
    let mut status = String::new();
    for package in ["libc6", "libgcc-s1", "passwd"] {
        let known = process::capture(Command::new("dpkg-query").args(["--status", package]))?;
        // Without their dependencies.
        let dependencies = [
            "Depends:",
            "Pre-Depends:",
            "Recommends:",
            "Suggests:",
            "Conffiles:",
            " /",
        ];
        let lines = known
            .lines()
            .filter(|line| !dependencies.iter().any(|field| line.starts_with(field)));
        status.extend(lines.flat_map(|line| [line, "\n"]));
        status.push('\n');
    }
    Ok(status)
}

/// Where a library of this machine is in the directory.
fn inside(library: &Path) -> String {
    let place = library.to_string_lossy();
    format!("usr{}", place.strip_prefix("/usr").unwrap_or(&place))
}

/// The paths of the libraries that a program is linked to.
fn libraries_of(program: &Path) -> Result<Vec<PathBuf>> {
    let linked = process::capture(Command::new("ldd").arg(program))?;
    let path = |line: &str| {
        line.split_whitespace()
            .find(|word| word.starts_with('/'))
            .map(PathBuf::from)
    };
    Ok(linked.lines().filter_map(path).collect())
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
