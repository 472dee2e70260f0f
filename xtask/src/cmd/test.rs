//! `test`: builds everything and runs all tests that can run on this machine.

use std::ffi::OsString;
use std::fs;
use std::hash::{BuildHasher as _, DefaultHasher, Hash as _, Hasher as _, RandomState};
use std::io::{self, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::build::{self, EVERY_PACKAGE};
use super::setup;
use crate::cleanup;
use crate::suite::{self, Busy, Job, TestProgram};
use crate::tally::{Tally, forward};
use crate::tools::{Detail, Group};
use crate::workspace::Workspace;

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
/// Most of their tests wait for packets and clocks, so that more of them run at a time than there are CPUs.
const WAITING: [&str; 3] = ["end_to_end", "cluster", "groups"];
const WAITING_THREADS: &str = "8";
/// The seed of a random order, which Rust's own harness and `testbed::trials` read. Rust's takes it as unstable.
const SEED_VARIABLE: &str = "RUST_TEST_SHUFFLE_SEED";
/// Lets a stable harness accept unstable options.
const UNSTABLE_VARIABLE: &str = "RUSTC_BOOTSTRAP";
/// Set for `--long`.
const LONG_VARIABLE: &str = "WEIR_LONG";

/// Set up, build, and run every test.
#[derive(clap::Args)]
pub struct Arguments {
    /// Test the agent of a trace build: see `cargo xtask build --trace`.
    #[arg(long, requires = "cargo")]
    trace: bool,
    /// How many test programs run at a time.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    programs: u8,
    /// Run more rounds of tests with random numbers and instants.
    #[arg(long)]
    long: bool,
    /// How many busy loops run beside the tests. A test that fails beside them measures the machine.
    #[arg(long, value_name = "N", default_value_t = 0)]
    busy: u8,
    /// Run tests and programs in random order: that of a seed, or of one that is printed. With arguments for cargo, only
    /// programs that list their tests by `testbed::trials` have that order.
    #[arg(long, value_name = "SEED")]
    shuffle: Option<Option<u64>>,
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

    let seed = arguments
        .shuffle
        .map(|seed| seed.unwrap_or_else(random_seed));
    if let Some(seed) = seed {
        println!("random order: --shuffle {seed}");
    }
    // Cargo builds a package's programs with its tests.
    let agent = workspace.agent("debug");
    let with_environment = |command: &mut Command| {
        command
            .env("WEIR_AGENT", &agent)
            .env("WEIR_EBPF_OBJECT", &object)
            .env("WEIR_TRACE_OBJECT", &trace_object);
        if let Some(seed) = seed {
            command.env(SEED_VARIABLE, seed.to_string());
        }
        if arguments.long {
            command.env(LONG_VARIABLE, "1");
        }
    };
    let outcome = if arguments.cargo.is_empty() {
        run_all(&workspace, arguments, seed, &with_environment)
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
        with_environment(&mut tests);
        let _busy = Busy::start(arguments.busy);
        run_tests(&mut tests).map(drop)
    };
    clean();
    outcome
}

/// Any number, for an order that differs from the last one.
fn random_seed() -> u64 {
    // Short enough to type. The standard library has no other random number than its hashers' keys.
    RandomState::new().hash_one(0) % 1_000_000
}

/// Builds the tests and runs the programs at the same time. Those that wait most run while the others are built, unless
/// their order is random or loops are busy beside them, which would only make the build longer.
fn run_all(
    workspace: &Workspace,
    arguments: &Arguments,
    seed: Option<u64>,
    with_environment: &(dyn Fn(&mut Command) + Sync),
) -> Result<()> {
    let built = |packages: &[&str], targets: &[&str]| {
        let mut build = workspace.cargo();
        build.args(["test", "--locked"]).args(packages);
        build.args(targets.iter().flat_map(|target| ["--test", target]));
        with_environment(&mut build);
        suite::build(&mut build)
    };
    let all = || {
        let mut all = built(&EVERY_PACKAGE, &[])?;
        all.extend(built(&OWN_PACKAGE, &[])?);
        Ok::<_, anyhow::Error>(all)
    };
    let is_built_first = seed.is_some() || arguments.busy > 0;
    let first = if is_built_first {
        all()?
    } else {
        built(&EVERY_PACKAGE, &WAITING)?
    };
    let job = |program: &TestProgram| {
        let mut job = job(workspace, program, seed.is_some());
        with_environment(&mut job.command);
        job
    };
    let _busy = Busy::start(arguments.busy);
    suite::run(
        |jobs| {
            let begin = |programs| {
                in_order(programs, seed)
                    .iter()
                    .for_each(|program| _ = jobs.send(job(program)));
            };
            begin(first.clone());
            if !is_built_first {
                let mut rest = all()?;
                rest.retain(|program| !first.contains(program));
                begin(rest);
            }
            let mut examples = workspace.cargo();
            examples
                .args(["test", "--doc", "--locked", "--no-fail-fast"])
                .args(EVERY_PACKAGE);
            with_environment(&mut examples);
            _ = jobs.send(Job {
                name: "examples in comments".to_owned(),
                command: examples,
            });
            Ok(())
        },
        arguments.programs.into(),
        &workspace.target.join("test-output"),
        &mut io::stdout().lock(),
    )
    .map(drop)
}

/// Those that take longest first, or the random order of a seed.
fn in_order(mut programs: Vec<TestProgram>, seed: Option<u64>) -> Vec<TestProgram> {
    if let Some(seed) = seed {
        programs.sort_by_cached_key(|program| place(seed, &program.source));
    } else {
        programs.sort_by_key(|program| {
            LONGEST
                .iter()
                .position(|name| program.target == *name)
                .unwrap_or(LONGEST.len())
        });
    }
    programs
}

/// Where a program has its place in the order of a seed.
fn place(seed: u64, source: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    (seed, source).hash(&mut hasher);
    hasher.finish()
}

/// Runs a program as cargo does.
fn job(workspace: &Workspace, program: &TestProgram, is_shuffled: bool) -> Job {
    let name = program
        .source
        .strip_prefix(&workspace.root)
        .unwrap_or(&program.source)
        .display()
        .to_string();
    let mut command = Command::new(&program.path);
    command
        .current_dir(&program.folder)
        .env("CARGO_MANIFEST_DIR", &program.folder);
    if program.is_integration && WAITING.contains(&program.target.as_str()) {
        command.args(["--test-threads", WAITING_THREADS]);
    }
    if is_shuffled {
        command
            .args(["-Z", "unstable-options"])
            .env(UNSTABLE_VARIABLE, "1");
    }
    Job { name, command }
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
