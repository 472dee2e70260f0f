//! `dist`: makes all files of a release, compares a release with what its commit gives here, or tries its static programs.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::build;
use super::setup;
use crate::apt::Apt;
use crate::architecture::Architecture;
use crate::cargo_tools::{AUDITABLE, CYCLONEDX, DEB, GENERATE_RPM};
use crate::dist::{self, BuildInfo, Compilation, Image, Source, Speed, TARGETS, Target};
use crate::package::{deb_check, files, lint, rpm_check};
use crate::process;
use crate::python::ZIGBUILD;
use crate::toolchain::Toolchain;
use crate::tools::Detail;
use crate::vm::{Release, try_archive};
use crate::workspace::Workspace;

/// Make all files of a release from the commit that is checked out, into target/dist: static programs, packages and an
/// image for x86_64 and aarch64.
#[derive(clap::Args)]
pub struct Arguments {
    /// Sign the list of hashes with this SSH key. With a public key, ssh-agent signs.
    #[arg(long, value_name = "FILE", conflicts_with = "verify")]
    key: Option<PathBuf>,
    /// Make nothing: build the commit again, and report for each file of a release whether it is identical.
    #[arg(long, value_name = "DIRECTORY")]
    verify: Option<PathBuf>,
    /// Make nothing: boot a guest an architecture that has BusyBox and nothing else, and check that the release's static
    /// program enforces a limit there.
    #[arg(
        long = "try",
        value_name = "DIRECTORY",
        conflicts_with_all = ["key", "verify", "dirty", "quick"]
    )]
    tried: Option<PathBuf>,
    /// Include changes that are not committed, for trying it. New files are included once git knows them (`git add`).
    #[arg(long)]
    dirty: bool,
    /// Build programs that are not optimized, for trying it.
    #[arg(long, conflicts_with = "verify")]
    quick: bool,
    /// Build for one architecture only, for trying it; or try that of --try only.
    #[arg(long, value_name = "NAME", value_parser = Target::find, conflicts_with = "verify")]
    arch: Option<&'static Target>,
}

impl Arguments {
    fn targets(&self) -> Vec<&'static Target> {
        self.arch
            .map_or_else(|| TARGETS.iter().collect(), |target| vec![target])
    }
}

/// The kernel of guests for static programs: the oldest that is tested.
const KERNEL: &str = "6.1";

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Prints what is built, and each file with its hash or its outcome.
pub fn run(arguments: &Arguments) -> Result<()> {
    if let Some(released) = &arguments.tried {
        return try_programs(released, &arguments.targets());
    }
    let tree = Workspace::locate()?;
    let source = Source::checked_out(&tree.root, arguments.dirty)?;
    println!("building   version {VERSION} of {}", source.description());
    if !source.is_tagged(VERSION) {
        println!("not tagged: the commit of a release has the tag v{VERSION}");
    }
    match &arguments.verify {
        Some(released) => verify(&tree, &source, released),
        None => make(&tree, &source, arguments),
    }
}

fn make(tree: &Workspace, source: &Source, arguments: &Arguments) -> Result<()> {
    let speed = if arguments.quick {
        Speed::Quick
    } else {
        Speed::Full
    };
    let folder = tree.target.join("dist");
    let work = tree.target.join("dist-work");
    build_into(&folder, &work, tree, source, (&arguments.targets(), speed))?;
    match &arguments.key {
        Some(key) => println!("signed     {}", dist::sign(&folder, key)?.display()),
        None => println!("not signed: no key was given (--key)"),
    }
    for (name, hash) in dist::sums_of(&folder)? {
        println!("{hash}  {name}");
    }
    println!("made {}", folder.display());
    Ok(())
}

/// Runs each program in a guest of its own; fails at the first that enforces no limit.
fn try_programs(released: &Path, targets: &[&Target]) -> Result<()> {
    let archive_of = |target: &Target| released.join(target.archive(VERSION));
    for target in targets {
        let archive = archive_of(target);
        ensure!(
            archive.is_file(),
            "{} not found: `cargo xtask dist` makes it",
            archive.display()
        );
    }
    for target in targets {
        let architecture = Architecture::find(target.architecture)?;
        setup::ensure_machines(architecture)?;
        let kernel = Release::find(KERNEL)?.provide(architecture)?;
        let name = format!("Linux {}: {}", kernel.name, target.archive(VERSION));
        println!("running    {name}");
        let outcome = try_archive(&kernel, &archive_of(target), &mut io::stdout().lock())
            .with_context(|| name.clone())?;
        println!("limits     {name}, {:.0} s", outcome.time.as_secs_f64());
    }
    Ok(())
}

/// Builds the static program for this machine, optimized as a package of its own is.
pub fn for_this_machine(tree: &Workspace, toolchain: &Toolchain, object: &Path) -> Result<PathBuf> {
    let workspace = Workspace {
        root: tree.root.clone(),
        target: tree.target.join("static"),
    };
    let compilation = Compilation {
        workspace: &workspace,
        toolchain,
        object,
        source: &Source::checked_out(&tree.root, true)?,
        zigbuild: &ZIGBUILD.ensure(&mut Apt::default())?,
        auditable: &AUDITABLE.ensure(Detail::Changes)?,
        speed: Speed::Thin,
    };
    compilation.agent(Target::find(std::env::consts::ARCH)?)
}

/// Builds in another folder from nothing, with the options of the release.
fn verify(tree: &Workspace, source: &Source, released: &Path) -> Result<()> {
    let record = released.join(BuildInfo::name(VERSION));
    let text = fs::read_to_string(&record).with_context(|| {
        format!(
            "reading {}: a release of version {VERSION} has it",
            record.display()
        )
    })?;
    let there = BuildInfo::parse(&text)?;
    if there.tree != source.tree || there.commit != source.commit {
        bail!(
            "the release is built from commit {} (tree {}), and here is commit {} (tree {}): run `git checkout {}`",
            there.commit,
            there.tree,
            source.commit,
            source.tree,
            there.commit
        );
    }
    let hashes = dist::sums_of(released)?;
    let work = tree.target.join("dist-verify");
    if work.exists() {
        fs::remove_dir_all(&work).with_context(|| format!("removing {}", work.display()))?;
    }
    let folder = work.join("built");
    let here = build_into(
        &folder,
        &work,
        tree,
        source,
        (&there.targets()?, there.speed()),
    )?;
    let outcomes = dist::compare(&hashes, &dist::sums_of(&folder)?);
    for (name, outcome) in &outcomes {
        println!("{name}: {outcome}");
    }
    for tool in here.other_tools(&there) {
        println!("other tool {tool}");
    }
    let refused = outcomes.values().filter(|outcome| !outcome.is_accepted());
    let refused = refused.count();
    ensure!(
        refused == 0,
        "{refused} of {} files are not what the commit gives here; {} has the built ones",
        outcomes.len(),
        folder.display()
    );
    println!("identical  all files of {}", released.display());
    Ok(())
}

/// Builds a release into a folder, from a copy of the source's tree in another one.
fn build_into(
    folder: &Path,
    work: &Path,
    tree: &Workspace,
    source: &Source,
    (targets, speed): (&[&Target], Speed),
) -> Result<BuildInfo> {
    let toolchain = setup::ensure_release()?;
    let workspace = Workspace {
        root: work.join("source"),
        target: work.join("build"),
    };
    source.copy(&tree.root, &workspace.root)?;
    // The folders of registries get other names in programs; they are there once the crates are.
    process::run(workspace.cargo().args(["fetch", "--locked", "--quiet"]))?;
    let object = build::objects(&workspace, &toolchain)?;
    let zigbuild = ZIGBUILD.ensure(&mut Apt::default())?;
    let auditable = AUDITABLE.ensure(Detail::Changes)?;
    let compilation = Compilation {
        workspace: &workspace,
        toolchain: &toolchain,
        object: &object,
        source,
        zigbuild: &zigbuild,
        auditable: &auditable,
        speed,
    };
    let agents = targets
        .iter()
        .map(|&target| Ok((target, compilation.agent(target)?)))
        .collect::<Result<Vec<(&Target, PathBuf)>>>()?;
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    pack(&compilation, &agents, folder)?;
    dist::write_materials(&workspace, source, targets, VERSION, folder)?;
    let info = BuildInfo::new(
        VERSION,
        source,
        speed,
        targets,
        tools(&compilation, targets)?,
    );
    let record = folder.join(BuildInfo::name(VERSION));
    fs::write(&record, info.text()?).with_context(|| format!("writing {}", record.display()))?;
    dist::write_sums(folder)?;
    Ok(info)
}

/// Makes archives, packages and the image of the built programs.
fn pack(compilation: &Compilation<'_>, agents: &[(&Target, PathBuf)], folder: &Path) -> Result<()> {
    let (workspace, time) = (compilation.workspace, compilation.source.time);
    let native = agents.iter().find(|(target, _)| target.is_native());
    let (_, native) = native.context("this machine runs none of the programs that it builds")?;
    let write = |name: &str, bytes: Vec<u8>| {
        fs::write(folder.join(name), bytes).with_context(|| format!("writing {name}"))
    };
    let mut images = Vec::new();
    for (target, agent) in agents {
        // Where cargo-deb and cargo-generate-rpm look.
        let generated = agent.with_file_name("package");
        fs::create_dir_all(&generated)
            .with_context(|| format!("creating {}", generated.display()))?;
        files::write(workspace, native, target.triple, time, &generated)?;
        let program = fs::read(agent).with_context(|| format!("reading {}", agent.display()))?;
        let title = target.title(VERSION);
        let archive = dist::tarball(&title, program.clone(), &workspace.root, &generated, time)?;
        write(&target.archive(VERSION), archive)?;
        dist::deb(compilation, target, None, folder)?;
        dist::rpm(compilation, target, None, folder)?;
        check(compilation, target, folder)?;
        images.push(Image { target, program });
    }
    let layout = dist::layout(&images, VERSION, compilation.source)?;
    write(&dist::image_name(VERSION), layout)
}

/// Examines and tries the packages.
fn check(compilation: &Compilation<'_>, target: &Target, folder: &Path) -> Result<()> {
    let (deb, rpm) = (
        package(folder, target, "deb")?,
        package(folder, target, "rpm")?,
    );
    lint::deb(&deb)?;
    lint::rpm(compilation.workspace, &rpm)?;
    if !nix::unistd::geteuid().is_root() {
        println!("not tried: installing a package into a directory of its own takes root");
        return Ok(());
    }
    let next = tempfile::tempdir().context("making a directory")?;
    let next = next.path();
    dist::deb(compilation, target, Some("9999.0.0-1"), next)?;
    dist::rpm(compilation, target, Some("9999.0.0"), next)?;
    deb_check::run(&deb, &package(next, target, "deb")?, None)?;
    rpm_check::run(&rpm, &package(next, target, "rpm")?)
}

/// The package of a kind for a target.
fn package(folder: &Path, target: &Target, kind: &str) -> Result<PathBuf> {
    let name = if kind == "deb" {
        target.go
    } else {
        target.architecture
    };
    let end = format!("{name}.{kind}");
    let mut entries = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    entries
        .find(|path| path.to_string_lossy().ends_with(&end))
        .with_context(|| format!("finding the package {end} in {}", folder.display()))
}

/// The programs that decide the bytes of a release, and their versions.
fn tools(compilation: &Compilation<'_>, targets: &[&Target]) -> Result<BTreeMap<String, String>> {
    let kernel = compilation.toolchain;
    let mut tools = BTreeMap::from([
        (
            "rustc of the kernel programs".to_owned(),
            kernel.compiler.release.clone(),
        ),
        ("bpf-linker".to_owned(), kernel.linker.version()?),
        ("linker".to_owned(), ZIGBUILD.title()),
    ]);
    for target in targets {
        let name = format!("rustc for {}", target.triple);
        tools.insert(name, compilation.compiler(target)?);
    }
    for tool in [&DEB, &GENERATE_RPM, &CYCLONEDX, &AUDITABLE] {
        let title = tool.title();
        let (name, version) = title.split_once(' ').unwrap_or((&title, ""));
        tools.insert(name.to_owned(), version.to_owned());
    }
    let gzip = process::capture(Command::new("gzip").arg("--version"))?;
    let gzip = gzip.lines().next().unwrap_or_default();
    tools.insert(
        "gzip".to_owned(),
        gzip.trim_start_matches("gzip ").to_owned(),
    );
    Ok(tools)
}
