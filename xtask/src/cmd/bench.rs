//! `bench`: Weir beside what a user would pick instead.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;

use super::build::{self, Profile};
use super::{accuracy, rest, setup};
use crate::bench::document::{self, Run};
use crate::bench::figures::Figures;
use crate::bench::{aims, machine, programs, table};
use crate::cargo_tools::THROTTLECRAB;
use crate::tools::{Detail, Group};
use crate::workspace::Workspace;
use crate::{cleanup, process};

/// Measure Weir beside its alternatives. Without a part, everything, and docs/BENCHMARKS.md is written.
#[derive(clap::Args)]
pub struct Arguments {
    /// What to measure; everything if nothing is named.
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Few rounds, to see that everything in the kernel's reach works; what is written goes to the target folder.
    #[arg(long)]
    quick: bool,
    /// Only what has this in its name, and what it is compared with; of named parts.
    #[arg(long, requires = "parts")]
    only: Option<String>,
    /// How often everything takes its turn.
    #[arg(long)]
    rounds: Option<usize>,
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Nanoseconds a packet, by BPF_PROG_TEST_RUN.
    Packet,
    /// Packets a second over veth.
    Flood,
    /// What others get while made-up sources fill the table.
    Overflow,
    /// What a server still serves under a flood.
    Served,
    /// Bytes of kernel memory for each source.
    Memory,
    /// How long reloads take, and a look at a million sources.
    Agent,
    /// Decisions in user space, and over HTTP beside another server.
    Decisions,
    /// What an agent costs while nothing happens.
    Rest,
}

impl Part {
    const fn name(self) -> &'static str {
        match self {
            Self::Packet => "packet",
            Self::Flood => "flood",
            Self::Overflow => "overflow",
            Self::Served => "served",
            Self::Memory => "memory",
            Self::Agent => "agent",
            Self::Decisions => "decisions",
            Self::Rest => "rest",
        }
    }

    /// How often everything takes its turn: (quickly, well).
    const fn rounds(self) -> (usize, usize) {
        match self {
            Self::Packet => (3, 31),
            Self::Flood => (2, 11),
            Self::Overflow => (2, 7),
            Self::Served => (1, 7),
            Self::Memory => (1, 3),
            Self::Agent => (2, 9),
            Self::Decisions => (2, 11),
            Self::Rest => (1, 1),
        }
    }
}

/// What the parts need.
struct Bench {
    workspace: Workspace,
    /// The programs built for the benchmark, and where figures are left.
    folder: PathBuf,
    object: PathBuf,
    agent: PathBuf,
}

/// Builds everything, measures, prints tables, and writes the document if nothing was left out.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "loading BPF programs and making network namespaces needs root: run as root"
    );
    let workspace = Workspace::locate()?;
    let parts = match (arguments.parts.as_slice(), arguments.quick) {
        // From decisions on, there is no use for fewer rounds, and a build without optimisation says nothing.
        ([], true) => &Part::value_variants()[..Part::Decisions as usize],
        ([], false) => Part::value_variants(),
        (parts, _) => parts,
    };
    let is_quick = arguments.quick || arguments.rounds.is_some();
    let is_packet_alone = parts == [Part::Packet];
    let toolchain = setup::ensure(if is_packet_alone { Group::Build } else { Group::Bench }, Detail::Changes)?;
    let llvm = toolchain.compiler.llvm;
    let folder = programs::build(&workspace, llvm)?;
    let built = if is_packet_alone {
        build::Built {
            object: build::objects(&workspace, &toolchain)?,
            agent: PathBuf::new(),
            profile: build::Profile::Release,
        }
    } else {
        build::all(&workspace, &toolchain, if arguments.quick { Profile::Debug } else { Profile::Release })?
    };
    super::test::mount_bpffs();
    let compiler = programs::compiler(llvm)?;
    println!("alternatives compiled by {compiler}");

    let bench = Bench { workspace, folder, object: built.object, agent: built.agent };
    let mut figures = Figures::default();
    let (mut decisions, mut rest) = (None, None);
    let measured: Result<()> = parts.iter().try_for_each(|part| {
        match part {
            Part::Decisions => decisions = Some(bench.decisions()?),
            Part::Rest => return bench.rest().map(|said| rest = Some(said)),
            _ => {}
        }
        let out = bench.measure(*part, arguments)?;
        figures.read(&out)?;
        for unit in table::units(&figures, part.name()) {
            println!("\n{}", table::text(&table::rows(&figures, part.name(), &unit)));
        }
        Ok(())
    });
    // Also after a part that failed: nothing of it stays on the machine.
    cleanup::run()?.iter().for_each(|removed| eprintln!("removed a leftover: {removed}"));
    measured?;
    let reached: Vec<_> = aims::all(&figures)
        .into_iter()
        .chain(aims::of_decisions(&figures))
        .filter(|aim| aim.measured.is_some())
        .collect();
    println!("{}", table::text(&aims::rows(&reached)));
    if parts.contains(&Part::Decisions) && !arguments.parts.is_empty() && !is_quick {
        bench.write_decisions(&figures)?;
    }
    if arguments.parts.is_empty() {
        let run = Run { commit: machine::commit(), is_quick, machine: machine::describe(&compiler), decisions, rest };
        bench.write(&figures, &run)?;
    }
    Ok(())
}

impl Bench {
    /// Measures one part and returns where the figures are.
    fn measure(&self, part: Part, arguments: &Arguments) -> Result<PathBuf> {
        let (quickly, well) = part.rounds();
        let rounds = arguments.rounds.unwrap_or(if arguments.quick { quickly } else { well });
        let out = self.folder.join(part.name()).with_extension("json");
        let mut bench = match part {
            Part::Decisions => {
                let mut bench = self.cargo_bench("peers", false);
                bench.env("WEIR_THROTTLECRAB", THROTTLECRAB.ensure(Detail::Changes)?);
                bench.args(["--"]).args(arguments.quick.then_some("--quick"));
                bench
            }
            _ => {
                let mut bench = self.cargo_bench("edge", arguments.quick || arguments.parts == [Part::Packet]);
                bench.args(["--", part.name()]);
                bench
            }
        };
        bench.args(["--rounds", &rounds.to_string(), "--out"]).arg(&out);
        if let Some(only) = &arguments.only {
            bench.args(["--only", only]);
        }
        process::run(&mut bench).with_context(|| format!("measuring: {}", part.name()))?;
        Ok(out)
    }

    /// What the benchmark of decisions says, also where it says that a bound is missed.
    fn decisions(&self) -> Result<String> {
        let output = self.cargo_bench("decide", false).output().context("starting `cargo bench`")?;
        let (figures, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let missed = errors.lines().filter(|line| line.starts_with("MISSED"));
        let figures: Vec<&str> = figures.lines().chain(missed).map(str::trim_end).collect();
        ensure!(
            figures.iter().any(|line| line.starts_with("over HTTP")),
            "measuring decisions: `cargo bench` ended with {} and said\n{errors}",
            output.status
        );
        println!("\n{}\n", figures.join("\n"));
        Ok(figures.join("\n"))
    }

    /// What an agent costs while nothing happens.
    fn rest(&self) -> Result<String> {
        let figures = rest::measure(&self.agent, Duration::from_secs(rest::SECONDS), rest::Beside::Nothing)?;
        let said = format!("with a table for {} sources: {figures}", rest::SOURCES);
        println!("\n{said}\n");
        Ok(said)
    }

    /// `is_unoptimised` builds it quicker, for those who change what is in the kernel and so the same in any case.
    fn cargo_bench(&self, name: &str, is_unoptimised: bool) -> Command {
        let mut bench = self.workspace.cargo();
        bench.args(["bench", "--quiet", "--locked", "--package", "agent", "--bench", name]);
        if is_unoptimised {
            bench.args(["--profile", "dev"]);
        }
        bench.env("WEIR_BENCH_OBJECTS", &self.folder).env("WEIR_EBPF_OBJECT", &self.object);
        bench.env("WEIR_AGENT", &self.agent);
        bench
    }

    /// Puts the table of decisions alone into the document.
    fn write_decisions(&self, figures: &Figures) -> Result<()> {
        let path = self.workspace.root.join("docs").join("BENCHMARKS.md");
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let content = document::decisions(figures, &machine::commit());
        let text = accuracy::replaced(&text, &content, document::DECISIONS)
            .with_context(|| format!("{} has no place for the table", path.display()))?;
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        println!("written    {}", path.display());
        Ok(())
    }

    fn write(&self, figures: &Figures, run: &Run) -> Result<()> {
        let docs = self.workspace.root.join("docs");
        let folder = if run.is_quick { self.folder.as_path() } else { docs.as_path() };
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        document::write(folder, figures, run, &notes(&docs))?;
        println!("written    {}", folder.join("BENCHMARKS.md").display());
        Ok(())
    }
}

/// Why aims are met or not, in somebody's words.
fn notes(docs: &Path) -> String {
    fs::read_to_string(docs.join("benchmarks").join("notes.md")).unwrap_or_default()
}
