//! `build`: the eBPF object, checked, and the agent that contains it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::setup;
use crate::architecture::Architecture;
use crate::dist::Speed;
use crate::object::{self, Function, Logging};
use crate::process;
use crate::suite::{self, TestProgram};
use crate::toolchain::{TARGET, Toolchain};
use crate::tools::{Detail, Group};
use crate::workspace::{self, Workspace};

/// Build the eBPF object and the agent that holds it.
#[derive(clap::Args)]
pub struct Arguments {
    /// Build the agent faster and slower to run, with debug assertions; the eBPF object is the same.
    #[arg(long)]
    debug: bool,
    /// Build kernel programs that log each verdict about a traced source, for `weir trace`, and the agent that holds
    /// them: target/trace/agent. Slower than without; not for production.
    #[arg(long)]
    trace: bool,
}

/// The agent's build profile. The kernel programs are always optimised: the verifier rejects others.
#[derive(Clone, Copy)]
pub enum Profile {
    Release,
    /// What is packaged: smaller, and slower to build.
    Dist,
    Debug,
}

/// The eBPF objects: limits on packets, and process groups.
pub const OBJECTS: [&str; 3] = ["weir", "groups", "connections"];

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

/// The results of a build.
pub struct Built {
    pub object: PathBuf,
    pub agent: PathBuf,
    pub profile: Profile,
}

/// Builds, and prints the size of each program.
pub fn run(arguments: &Arguments) -> Result<()> {
    let profile = if arguments.debug {
        Profile::Debug
    } else {
        Profile::Release
    };
    let workspace = Workspace::locate()?;
    let toolchain = setup::ensure(Group::Build, Detail::Changes)?;
    let logging = if arguments.trace {
        Logging::Verdicts
    } else {
        Logging::None
    };
    let objects = build_objects(&workspace, &toolchain, logging)?;
    let built = build_agent(&workspace, profile, logging)?;
    for (name, functions) in &objects {
        print_sizes(name, functions);
    }
    println!(
        "built {} and {}",
        built.object.display(),
        built.agent.display()
    );
    Ok(())
}

/// Builds object and agent, for the verbs that need both.
pub fn all(workspace: &Workspace, toolchain: &Toolchain, profile: Profile) -> Result<Built> {
    build_objects(workspace, toolchain, Logging::None)?;
    build_agent(workspace, profile, Logging::None)
}

/// The agent that `cargo xtask test` builds, and these of its tests. Another build of it would have other features of
/// dependencies.
pub fn of_tests(
    workspace: &Workspace,
    toolchain: &Toolchain,
    targets: &[&str],
) -> Result<(Built, Vec<TestProgram>)> {
    let object = objects(workspace, toolchain)?;
    let programs = tests(workspace, &object, targets)?;
    let built = Built {
        object,
        agent: workspace.agent("debug"),
        profile: Profile::Debug,
    };
    Ok((built, programs))
}

/// Builds these tests as `cargo xtask test` does.
pub fn tests(workspace: &Workspace, object: &Path, targets: &[&str]) -> Result<Vec<TestProgram>> {
    suite::build(with_targets(workspace.cargo().arg("test"), object, targets))
}

/// [`of_tests`] for guests of this architecture.
pub fn of_tests_for(
    architecture: &Architecture,
    workspace: &Workspace,
    toolchain: &Toolchain,
    targets: &[&str],
) -> Result<(Built, Vec<TestProgram>)> {
    if architecture.cross().is_none() {
        return of_tests(workspace, toolchain, targets);
    }
    let object = objects(workspace, toolchain)?;
    let mut cargo = architecture.cargo("test", workspace, toolchain);
    let programs = suite::build(with_targets(&mut cargo, &object, targets))
        .with_context(|| format!("building for {}", architecture.name))?;
    let built = Built {
        object,
        agent: architecture.agent(workspace),
        profile: Profile::Debug,
    };
    Ok((built, programs))
}

fn with_targets<'c>(cargo: &'c mut Command, object: &Path, targets: &[&str]) -> &'c mut Command {
    cargo
        .arg("--locked")
        .args(EVERY_PACKAGE)
        .args(targets.iter().flat_map(|target| ["--test", target]))
        .env("WEIR_EBPF_OBJECT", object)
}

/// Builds only the eBPF objects, and returns the one for limits on packets.
pub fn objects(workspace: &Workspace, toolchain: &Toolchain) -> Result<PathBuf> {
    build_objects(workspace, toolchain, Logging::None)?;
    Ok(object_of(workspace, OBJECTS[0], Logging::None))
}

/// The same of a trace build.
pub fn trace_object(workspace: &Workspace, toolchain: &Toolchain) -> Result<PathBuf> {
    build_objects(workspace, toolchain, Logging::Verdicts)?;
    Ok(object_of(workspace, OBJECTS[0], Logging::Verdicts))
}

/// The path of a checked object.
fn object_of(workspace: &Workspace, name: &str, logging: Logging) -> PathBuf {
    match logging {
        Logging::None => workspace.object(name),
        Logging::Verdicts => workspace.object(&format!("trace/{name}")),
    }
}

fn build_objects(
    workspace: &Workspace,
    toolchain: &Toolchain,
    logging: Logging,
) -> Result<Vec<(&'static str, Vec<Function>)>> {
    let mut build = toolchain.command(&toolchain.compiler.cargo, workspace);
    build.args([
        "build",
        "--release",
        "--locked",
        "--package",
        "ebpf",
        "--bins",
    ]);
    build.args(["-Zbuild-std=core", "--target", TARGET]);
    if logging == Logging::Verdicts {
        build.args(["--features", "trace"]);
    }
    process::run(&mut build).context("building the kernel programs")?;

    let mut functions = Vec::new();
    for name in OBJECTS {
        let linked = workspace
            .target
            .join("ebpf")
            .join(TARGET)
            .join("release")
            .join(name);
        let bytes = fs::read(&linked)
            .with_context(|| format!("reading the linked object {}", linked.display()))?;
        let checked = object::check(&bytes, logging)
            .with_context(|| format!("checking the eBPF object {}", linked.display()))?;
        functions.push((name, checked));
        let stripped = object::without_debug_information(&bytes)
            .with_context(|| format!("stripping the eBPF object {}", linked.display()))?;
        place(&stripped, &object_of(workspace, name, logging))?;
    }
    Ok(functions)
}

/// Writes the object for the agent's build, unless it is unchanged: a new time stamp rebuilds the agent.
fn place(bytes: &[u8], object: &Path) -> Result<()> {
    if fs::read(object).is_ok_and(|present| present == bytes) {
        return Ok(());
    }
    if let Some(folder) = object.parent() {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    fs::write(object, bytes).with_context(|| format!("writing {}", object.display()))
}

fn build_agent(workspace: &Workspace, profile: Profile, logging: Logging) -> Result<Built> {
    let object = object_of(workspace, OBJECTS[0], logging);
    let mut build = workspace.cargo();
    build
        .args(["build", "--locked", "--package", "agent"])
        .env("WEIR_EBPF_OBJECT", &object);
    if logging == Logging::Verdicts {
        build.args(["--features", "trace"]);
    }
    // Not for `debug`: each commit would build it anew.
    if !matches!(profile, Profile::Debug) {
        build.env("WEIR_COMMIT", workspace::commit());
    }
    let folder = match profile {
        Profile::Release => {
            build.arg("--release");
            "release"
        }
        Profile::Dist => {
            let packaged = Speed::Full.profile();
            build.args(["--profile", packaged]);
            packaged
        }
        Profile::Debug => "debug",
    };
    process::run(&mut build).context("building the agent")?;
    let mut agent = workspace.agent(folder);
    if logging == Logging::Verdicts {
        agent = move_to(agent, workspace.agent("trace"))?;
    }
    Ok(Built {
        object,
        agent,
        profile,
    })
}

/// Moves a trace build's agent, so that it cannot be confused with an ordinary one, which the next build puts there.
fn move_to(from: PathBuf, to: PathBuf) -> Result<PathBuf> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    fs::rename(&from, &to)
        .with_context(|| format!("moving {} to {}", from.display(), to.display()))?;
    Ok(to)
}

fn print_sizes(object: &str, functions: &[Function]) {
    println!("instructions  function of {object}.o");
    let mut section = None;
    for function in functions {
        if section != Some(&function.section) {
            section = Some(&function.section);
            let sum: u64 = functions
                .iter()
                .filter(|f| f.section == function.section)
                .map(|f| f.instructions)
                .sum();
            println!("{sum:12}  section {}", function.section);
        }
        println!("{:12}    {}", function.instructions, function.name);
    }
}
