//! `build`: the eBPF object, checked, and the agent that holds it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::setup;
use crate::object::{self, Function};
use crate::process;
use crate::toolchain::{TARGET, Toolchain};
use crate::tools::{Detail, Group};
use crate::workspace::Workspace;

/// Build the eBPF object and the agent that holds it.
#[derive(clap::Args)]
pub struct Arguments {
    /// Build the agent faster and slower to run, with debug assertions; the eBPF object is the same.
    #[arg(long)]
    debug: bool,
}

/// How the agent is compiled. The kernel programs are always optimised: the verifier takes no others.
#[derive(Clone, Copy)]
pub enum Profile {
    Release,
    Debug,
}

/// The eBPF objects: limits on packets, and process groups.
pub const OBJECTS: [&str; 2] = ["weir", "groups"];

/// What a build leaves.
pub struct Built {
    pub object: PathBuf,
    pub agent: PathBuf,
    pub profile: Profile,
}

/// Builds, and prints how large each program is.
pub fn run(arguments: &Arguments) -> Result<()> {
    let profile = if arguments.debug { Profile::Debug } else { Profile::Release };
    let workspace = Workspace::locate()?;
    let toolchain = setup::ensure(Group::Build, Detail::Changes)?;
    let objects = build_objects(&workspace, &toolchain)?;
    let built = build_agent(&workspace, profile)?;
    for (name, functions) in &objects {
        print_sizes(name, functions);
    }
    println!("built {} and {}", built.object.display(), built.agent.display());
    Ok(())
}

/// Builds object and agent; for the verbs that need both.
pub fn all(workspace: &Workspace, toolchain: &Toolchain, profile: Profile) -> Result<Built> {
    build_objects(workspace, toolchain)?;
    build_agent(workspace, profile)
}

/// Builds the eBPF objects alone, and returns the one for limits on packets.
pub fn objects(workspace: &Workspace, toolchain: &Toolchain) -> Result<PathBuf> {
    build_objects(workspace, toolchain)?;
    Ok(workspace.object(OBJECTS[0]))
}

fn build_objects(workspace: &Workspace, toolchain: &Toolchain) -> Result<Vec<(&'static str, Vec<Function>)>> {
    let mut build = toolchain.command(&toolchain.compiler.cargo, workspace);
    build.args(["build", "--release", "--locked", "--package", "ebpf", "--bins"]);
    build.args(["-Zbuild-std=core", "--target", TARGET]);
    process::run(&mut build).context("building the kernel programs")?;

    let mut functions = Vec::new();
    for name in OBJECTS {
        let linked = workspace.target.join("ebpf").join(TARGET).join("release").join(name);
        let bytes = fs::read(&linked).with_context(|| format!("reading the linked object {}", linked.display()))?;
        let checked =
            object::check(&bytes).with_context(|| format!("checking the eBPF object {}", linked.display()))?;
        functions.push((name, checked));
        place(&bytes, &workspace.object(name))?;
    }
    Ok(functions)
}

/// Writes the object where the agent's build takes it from, unless it is there: a new time stamp rebuilds the agent.
fn place(bytes: &[u8], object: &Path) -> Result<()> {
    if fs::read(object).is_ok_and(|present| present == bytes) {
        return Ok(());
    }
    if let Some(folder) = object.parent() {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    fs::write(object, bytes).with_context(|| format!("writing {}", object.display()))
}

fn build_agent(workspace: &Workspace, profile: Profile) -> Result<Built> {
    let object = workspace.object(OBJECTS[0]);
    let mut build = workspace.cargo();
    build.args(["build", "--locked", "--package", "agent"]).env("WEIR_EBPF_OBJECT", &object);
    let folder = match profile {
        Profile::Release => {
            build.arg("--release");
            "release"
        }
        Profile::Debug => "debug",
    };
    process::run(&mut build).context("building the agent")?;
    Ok(Built { object, agent: workspace.target.join(folder).join("agent"), profile })
}

fn print_sizes(object: &str, functions: &[Function]) {
    println!("instructions  function of {object}.o");
    let mut section = None;
    for function in functions {
        if section != Some(&function.section) {
            section = Some(&function.section);
            let sum: u64 = functions.iter().filter(|f| f.section == function.section).map(|f| f.instructions).sum();
            println!("{sum:12}  section {}", function.section);
        }
        println!("{:12}    {}", function.instructions, function.name);
    }
}
