//! `test`: builds everything and runs all tests that can run on this machine.

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::build;
use super::setup;
use crate::cleanup;
use crate::suite::{self, Job, TestProgram};
use crate::tally::{Tally, forward};
use crate::tools::{Detail, Group};
use crate::workspace::Workspace;

/// All packages that the agent consists of. Verbs share a build only if they select the same packages: another selection
/// enables other features of dependencies. `xtask` shares the build of `cargo xtask`.
pub const EVERY_PACKAGE: [&str; 7] = [
    "--workspace",
    "--exclude",
    "ebpf",
    "--exclude",
    "xtask",
    "--exclude",
    "rls-tests",
];
/// The package of this program.
const OWN_PACKAGE: [&str; 2] = ["--package", "xtask"];
/// The agent with the kernel programs of a trace build: of the tests' build, only what depends on these is built anew.
const TRACE: [&str; 2] = ["--features", "agent/trace"];
const BPFFS: &str = "/sys/fs/bpf";

/// The programs that take longest, which begin first; then cargo's order.
const LONGEST: [&str; 8] = [
    "end_to_end",
    "cluster",
    "groups",
    "kernel",
    "suggest",
    "clients",
    "waiting",
    "redis",
];
/// Most of its tests wait for packets and clocks, so that more of them run at a time than there are CPUs.
const WAITING: &str = "end_to_end";
const WAITING_THREADS: &str = "4";
/// Some of their tests measure the machine, and run alone.
const MEASURING: [&str; 2] = [WAITING, "groups"];
/// Which of these tests a program runs: `only` those that measure, or `none` of them.
const MEASURING_VARIABLE: &str = "WEIR_MEASURING";
/// Set for `--long`.
const LONG_VARIABLE: &str = "WEIR_LONG";

/// Set up, build, and run every test.
#[derive(clap::Args)]
pub struct Arguments {
    /// Test the agent of a trace build: see `cargo xtask build --trace`.
    #[arg(long, requires = "cargo")]
    trace: bool,
    /// How many test programs run at a time. On a machine that others use, 1 disturbs no test that measures time.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    programs: u8,
    /// Also run the tests that measure the machine, each alone, and more rounds of tests with random numbers.
    #[arg(long, conflicts_with = "cargo")]
    long: bool,
    /// Passed on to `cargo test`, which then runs one program after the other. Without, programs run at the same time.
    #[arg(last = true)]
    cargo: Vec<OsString>,
}

/// Runs the tests, and removes their leftovers whatever the result.
pub fn run(arguments: &Arguments) -> Result<()> {
    let workspace = Workspace::locate()?;
    let toolchain = setup::ensure(Group::Test, Detail::Changes)?;
    let trace_object = build::trace_object(&workspace, &toolchain)?;
    let object = if arguments.trace {
        trace_object.clone()
    } else {
        build::objects(&workspace, &toolchain)?
    };
    mount_bpffs();
    clean();

    // Cargo builds a package's programs with its tests.
    let agent = workspace.agent("debug");
    let with_paths = |command: &mut Command| {
        command
            .env("WEIR_AGENT", &agent)
            .env("WEIR_EBPF_OBJECT", &object)
            .env("WEIR_TRACE_OBJECT", &trace_object);
    };
    let outcome = if arguments.cargo.is_empty() {
        run_all(&workspace, arguments, &with_paths)
    } else {
        let mut tests = workspace.cargo();
        tests.args(["test", "--locked", "--no-fail-fast"]);
        if arguments.trace {
            tests.args(TRACE);
        }
        if !selects_packages(&arguments.cargo) {
            tests.args(EVERY_PACKAGE);
        }
        tests.args(&arguments.cargo);
        with_paths(&mut tests);
        run_tests(&mut tests).map(drop)
    };
    clean();
    outcome
}

/// Builds every test, then runs the programs at the same time.
fn run_all(
    workspace: &Workspace,
    arguments: &Arguments,
    with_paths: &dyn Fn(&mut Command),
) -> Result<()> {
    let mut build = workspace.cargo();
    build.args(["test", "--locked"]).args(EVERY_PACKAGE);
    with_paths(&mut build);
    let mut programs = suite::build(&mut build)?;
    let mut own = workspace.cargo();
    own.args(["test", "--locked"]).args(OWN_PACKAGE);
    programs.extend(suite::build(&mut own)?);
    programs.sort_by_key(|program| {
        LONGEST
            .iter()
            .position(|name| program.target == *name)
            .unwrap_or(LONGEST.len())
    });
    let mut jobs: Vec<Job> = programs
        .iter()
        .flat_map(|program| jobs(workspace, program))
        .collect();
    let mut examples = workspace.cargo();
    examples
        .args(["test", "--doc", "--locked", "--no-fail-fast"])
        .args(EVERY_PACKAGE);
    jobs.push(Job {
        name: "examples in comments".to_owned(),
        command: examples,
        is_alone: false,
    });
    jobs.iter_mut().for_each(|job| with_paths(&mut job.command));
    if arguments.long {
        jobs.iter_mut()
            .for_each(|job| _ = job.command.env(LONG_VARIABLE, "1"));
    } else {
        for job in jobs.extract_if(.., |job| job.is_alone) {
            println!("skipped: {}: run `cargo xtask test --long`", job.name);
        }
    }
    suite::run(
        jobs,
        arguments.programs.into(),
        &workspace.target.join("test-output"),
        &mut io::stdout().lock(),
    )
    .map(drop)
}

/// Runs a program as cargo does.
fn jobs(workspace: &Workspace, program: &TestProgram) -> Vec<Job> {
    let name = program
        .source
        .strip_prefix(&workspace.root)
        .unwrap_or(&program.source)
        .display()
        .to_string();
    let job = |name: String, is_alone: bool| {
        let mut command = Command::new(&program.path);
        command
            .current_dir(&program.folder)
            .env("CARGO_MANIFEST_DIR", &program.folder);
        Job {
            name,
            command,
            is_alone,
        }
    };
    let is = |target: &str| program.is_integration && program.target == target;
    let mut jobs = vec![job(name.clone(), false)];
    if is(WAITING) {
        jobs[0].command.args(["--test-threads", WAITING_THREADS]);
    }
    if MEASURING.into_iter().any(is) {
        jobs[0].command.env(MEASURING_VARIABLE, "none");
        let mut alone = job(format!("{name}, measuring"), true);
        alone
            .command
            .args(["--test-threads", "1"])
            .env(MEASURING_VARIABLE, "only");
        jobs.push(alone);
    }
    jobs
}

/// Whether the arguments for `cargo test` select packages.
fn selects_packages(arguments: &[OsString]) -> bool {
    let of_cargo = arguments.iter().take_while(|argument| *argument != "--");
    let long = ["--package", "--workspace", "--all"];
    of_cargo
        .filter_map(|argument| argument.to_str())
        .any(|argument| {
            argument.starts_with("-p")
                || long
                    .iter()
                    .any(|name| argument.split('=').next() == Some(name))
        })
}

/// Programs and maps are pinned there. Tests that need it report when it is missing.
pub fn mount_bpffs() {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    if mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == Some(BPFFS))
    {
        return;
    }
    println!("mounting   bpf at {BPFFS}");
    let none: Option<&str> = None;
    let flags = nix::mount::MsFlags::MS_NOSUID
        | nix::mount::MsFlags::MS_NODEV
        | nix::mount::MsFlags::MS_NOEXEC;
    if let Err(error) = nix::mount::mount(Some("bpf"), BPFFS, Some("bpf"), flags, none) {
        eprintln!("warning: mounting bpf at {BPFFS}: {error}; tests that pin maps will not run");
    }
}

/// Failures are printed, but do not fail the tests.
fn clean() {
    match cleanup::run() {
        Ok(removed) => removed
            .iter()
            .for_each(|removed| eprintln!("removed a test's leftover: {removed}")),
        Err(error) => eprintln!("warning: {error:#}"),
    }
}

/// Runs `cargo test`, forwards its output, and adds up the results.
pub fn run_tests(tests: &mut Command) -> Result<Tally> {
    let mut child = tests
        .stdout(Stdio::piped())
        .spawn()
        .context("starting `cargo test`")?;
    let output = child
        .stdout
        .take()
        .context("reading what `cargo test` prints")?;
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
        let selects = |arguments: &[&str]| {
            selects_packages(&arguments.iter().map(OsString::from).collect::<Vec<_>>())
        };
        assert!(selects(&["-p", "agent"]));
        assert!(selects(&["-pagent"]));
        assert!(selects(&["--package=agent"]));
        assert!(!selects(&["--test", "e2e", "--", "-p"]));
        assert!(!selects(&["--profile", "release"]));
    }
}
