//! `test`: builds everything and runs every test that can run on this machine.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::build::{self, Profile};
use super::setup;
use crate::cleanup;
use crate::tools::{Detail, Group};
use crate::workspace::Workspace;

/// For what `cargo test` printed last.
const GRACE: Duration = Duration::from_millis(300);
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
    outcome
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

fn run_tests(tests: &mut Command) -> Result<()> {
    let mut child = tests.stdout(Stdio::piped()).spawn().context("starting `cargo test`")?;
    let output = child.stdout.take().context("reading what `cargo test` prints")?;
    let has_ended = || Ok(child.try_wait()?.is_some());
    let tally = forward(BufReader::new(output), &mut io::stdout().lock(), has_ended);
    let status = child.wait().context("waiting for `cargo test`")?;
    let tally = tally.context("passing on what `cargo test` prints")?;
    if tally.programs > 0 {
        println!("{tally}");
    }
    if !status.success() {
        bail!("`cargo test` ended with {status}");
    }
    Ok(())
}

/// What the closing lines of all test programs add up to.
#[derive(Default, Debug, PartialEq, Eq)]
struct Tally {
    programs: usize,
    passed: usize,
    failed: usize,
    ignored: usize,
}

impl Tally {
    /// Takes a line in, if it is a closing line as in `test result: ok. 34 passed; 0 failed; 1 ignored; 0 measured; …`.
    fn take(&mut self, line: &str) {
        let Some((_, counts)) = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". ")) else {
            return;
        };
        self.programs += 1;
        for count in counts.split("; ") {
            match count.split_once(' ').and_then(|(number, what)| Some((number.parse::<usize>().ok()?, what))) {
                Some((number, "passed")) => self.passed += number,
                Some((number, "failed")) => self.failed += number,
                Some((number, "ignored")) => self.ignored += number,
                _ => {}
            }
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "total: {} passed, {} failed, {} skipped", self.passed, self.failed, self.ignored)
    }
}

/// Passes lines on as they come, and adds up what they say. Ends with the output, or soon after `has_ended`: a process
/// that a test left running may hold the output open, and is ended only after this.
fn forward(
    from: impl BufRead + Send + 'static,
    to: &mut impl Write,
    mut has_ended: impl FnMut() -> io::Result<bool>,
) -> io::Result<Tally> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || from.split(b'\n').map_while(|line| sender.send(line).ok()).for_each(drop));
    let mut tally = Tally::default();
    let mut deadline = None;
    while deadline.is_none_or(|deadline| Instant::now() < deadline) {
        match lines.recv_timeout(GRACE) {
            Ok(line) => {
                let mut line = line?;
                tally.take(&String::from_utf8_lossy(&line));
                line.push(b'\n');
                to.write_all(&line)?;
                to.flush()?;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if deadline.is_none() && has_ended()? {
            deadline = Some(Instant::now() + GRACE);
        }
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_passed_on_and_added_up() {
        let output = "running 3 tests\ntest a ... ok\n\n\
                      test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.40s\n\
                      test result: FAILED. 5 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s\n";
        let mut shown = Vec::new();
        let tally = forward(output.as_bytes(), &mut shown, || Ok(false)).unwrap();
        assert_eq!(String::from_utf8(shown).unwrap(), output);
        assert_eq!(tally, Tally { programs: 2, passed: 7, failed: 1, ignored: 1 });
        assert_eq!(tally.to_string(), "total: 7 passed, 1 failed, 1 skipped");
    }

    #[test]
    fn output_that_is_held_open_does_not_hold_up_the_end() {
        let (reader, mut writer) = io::pipe().unwrap();
        writeln!(writer, "test result: ok. 2 passed; 0 failed; 0 ignored").unwrap();
        let tally = forward(BufReader::new(reader), &mut Vec::new(), || Ok(true)).unwrap();
        assert_eq!(tally.passed, 2);
        drop(writer);
    }

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
