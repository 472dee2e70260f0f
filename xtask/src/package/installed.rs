//! Checks of an installed package, Debian or RPM.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::root::{Root, libraries_of, said};
use crate::process;

/// The libraries that the agent may be linked to: the C library and those of every system with one.
const LIBRARIES: [&str; 6] = [
    "linux-vdso.so",
    "libc.so",
    "libm.so",
    "libgcc_s.so",
    "ld-linux-x86-64.so",
    "ld-linux-aarch64.so",
];
pub const CONFIG: &str = "etc/weir/limits.toml";
/// systemd runs it, if it is executable.
const GENERATOR: &str = "usr/lib/systemd/system-generators/weir-generator";
pub const PROGRAM: &str = "usr/bin/weir";
/// The program's other name.
pub const LINK: &str = "usr/bin/agent";
/// Printed for a foreign package.
pub const NOT_RUN: &str =
    "not run: the program is for another architecture; `cargo xtask dist --try` runs it in a guest";
/// At the same place in both packages.
const INSTALLED: [&str; 21] = [
    PROGRAM,
    LINK,
    CONFIG,
    "usr/lib/systemd/system/weir.service",
    "usr/lib/weir/groups.conf",
    "usr/lib/sysusers.d/weir.conf",
    GENERATOR,
    "usr/share/man/man1/weir.1.gz",
    "usr/share/man/man5/limits.toml.5.gz",
    "usr/share/doc/weir/changelog.gz",
    "usr/share/doc/weir/limits.schema.json",
    "usr/share/bash-completion/completions/weir",
    "usr/share/bash-completion/completions/agent",
    "usr/share/fish/vendor_completions.d/weir.fish",
    "usr/share/fish/vendor_completions.d/agent.fish",
    "usr/share/doc/weir/README.md",
    "usr/share/doc/weir/docs/start/install.md",
    "usr/share/doc/weir/docs/guides/cdn.md",
    "usr/share/doc/weir/docs/operations/troubleshooting.md",
    "usr/share/doc/weir/examples/weir.rules.yml",
    "usr/share/doc/weir/examples/weir-grafana.json",
];

/// Checks the files and the group; and, unless the program is foreign, that it starts by both names, and that the config
/// limits nothing.
pub fn check(root: &Root, besides: &[&str]) -> Result<()> {
    for file in INSTALLED.iter().chain(besides) {
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
    if root.is_foreign {
        return Ok(());
    }
    check_libraries(&root.path(PROGRAM))?;
    root.provide(libraries(root)?)?;
    check_version(root, PROGRAM, "weir")?;
    check_version(root, LINK, "agent")?;
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
    Ok(())
}

/// Checks that the installed program starts by this path, and prints this name.
pub fn check_version(root: &Root, path: &str, name: &str) -> Result<()> {
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
    Ok(())
}

/// The libraries of the installed program; none of a foreign one, which `ldd` does not read.
pub fn libraries(root: &Root) -> Result<Vec<PathBuf>> {
    if root.is_foreign {
        return Ok(Vec::new());
    }
    libraries_of(&root.path(PROGRAM))
}

/// Adds a line to the installed config, as an operator does. Returns the new text.
pub fn change_config(root: &Root) -> Result<String> {
    let config = root.path(CONFIG);
    let text = fs::read_to_string(&config).context("reading the installed config")?;
    let changed = format!("{text}# mine\n");
    fs::write(&config, &changed).context("changing the installed config")?;
    Ok(changed)
}

/// Checks that a file has this text after `step`.
pub fn check_config(root: &Root, file: &str, text: &str, step: &str) -> Result<()> {
    let is = fs::read_to_string(root.path(file));
    ensure!(
        is.is_ok_and(|is| is == text),
        "after the {step}, /{file} is not the operator's config"
    );
    Ok(())
}

/// Checks that neither name of the program is there.
pub fn check_removed(root: &Root) -> Result<()> {
    for name in [PROGRAM, LINK] {
        ensure!(
            fs::symlink_metadata(root.path(name)).is_err(),
            "removed, yet there is /{name}"
        );
    }
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
