//! `test`: builds everything and runs every test that can run on this machine.

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::build::{self, Profile};
use super::setup;
use crate::cleanup;
use crate::tally::{Tally, forward};
use crate::tools::{Detail, Group};
use crate::workspace::Workspace;

const BPFFS: &str = "/sys/fs/bpf";

/// Set up, build, and run every test.
#[derive(clap::Args)]
pub struct Arguments {
    /// Passed on to `cargo test`.
    #[arg(last = true)]
    cargo: Vec<OsString>,
}

/// Runs the tests, and leaves nothing of theirs behind whatever their outcome.
pub fn run(arguments: &Arguments) -> Result<()> {
    let workspace = Workspace::locate()?;
    let toolchain = setup::ensure(Group::Test, Detail::Changes)?;
    let built = build::all(&workspace, &toolchain, Profile::Release)?;
    mount_bpffs();
    clean();

    let mut tests = workspace.cargo();
    tests.args(["test", "--locked", "--no-fail-fast"]);
    if !selects_packages(&arguments.cargo) {
        tests.args(["--workspace", "--exclude", "ebpf"]);
    }
    tests.args(&arguments.cargo);
    tests.env("WEIR_AGENT", &built.agent).env("WEIR_EBPF_OBJECT", &built.object);
    let outcome = run_tests(&mut tests);
    clean();
    outcome.map(drop)
}

/// Whether arguments for `cargo test` already say whose tests to run.
fn selects_packages(arguments: &[OsString]) -> bool {
    let of_cargo = arguments.iter().take_while(|argument| *argument != "--");
    let long = ["--package", "--workspace", "--all"];
    of_cargo
        .filter_map(|argument| argument.to_str())
        .any(|argument| argument.starts_with("-p") || long.iter().any(|name| argument.split('=').next() == Some(name)))
}

/// Programs and maps are pinned there. Tests that need it say so when it is missing.
pub fn mount_bpffs() {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    if mounts.lines().any(|line| line.split(' ').nth(1) == Some(BPFFS)) {
        return;
    }
    println!("mounting   bpf at {BPFFS}");
    let none: Option<&str> = None;
    let flags = nix::mount::MsFlags::MS_NOSUID | nix::mount::MsFlags::MS_NODEV | nix::mount::MsFlags::MS_NOEXEC;
    if let Err(error) = nix::mount::mount(Some("bpf"), BPFFS, Some("bpf"), flags, none) {
        eprintln!("warning: mounting bpf at {BPFFS}: {error}; tests that pin maps will not run");
    }
}

/// What remains is told, but says nothing of the tests.
fn clean() {
    match cleanup::run() {
        Ok(removed) => removed.iter().for_each(|removed| eprintln!("removed a test's leftover: {removed}")),
        Err(error) => eprintln!("warning: {error:#}"),
    }
}

/// Runs `cargo test`, passes on what it prints, and adds up what its programs say.
pub fn run_tests(tests: &mut Command) -> Result<Tally> {
    let mut child = tests.stdout(Stdio::piped()).spawn().context("starting `cargo test`")?;
    let output = child.stdout.take().context("reading what `cargo test` prints")?;
    let has_ended = || Ok(child.try_wait()?.is_some());
    let tally = forward(BufReader::new(output), &mut io::stdout().lock(), has_ended);
    let status = child.wait().context("waiting for `cargo test`")?;
    let tally = tally.context("passing on what `cargo test` prints")?;
    if tally.programs > 0 {
        println!("total: {tally}");
    }
    if !status.success() {
        bail!("`cargo test` ended with {status}");
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_of_packages_replaces_the_whole_workspace() {
        let selects = |arguments: &[&str]| selects_packages(&arguments.iter().map(OsString::from).collect::<Vec<_>>());
        assert!(selects(&["-p", "agent"]));
        assert!(selects(&["-pagent"]));
        assert!(selects(&["--package=agent"]));
        assert!(!selects(&["--test", "e2e", "--", "-p"]));
        assert!(!selects(&["--profile", "release"]));
    }
}
