//! `bench`: measures Weir beside its alternatives.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;

use super::build::{self, Profile};
use super::{measured, rest, setup};
use crate::bench::document::{self, Run};
use crate::bench::figures::Figures;
use crate::bench::{aims, growth, machine, machines, programs, table};
use crate::cargo_tools::THROTTLECRAB;
use crate::tools::{Detail, Group};
use crate::workspace::{self, Workspace};
use crate::{cleanup, process};

/// Measure Weir beside its alternatives. Without a part, everything, and docs/BENCHMARKS.md and README.md's table are written.
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
    /// Measure nothing: write the document anew of a run's figures, which a run leaves in target/bpf/bench/run.json.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["parts", "quick", "only", "rounds"])]
    render: Option<PathBuf>,
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
    /// Forged SYNs and ACKs to a listener with SYN cookies: proofs beside the kernel's cookies and synproxy, over veth.
    Proofs,
    /// TCP connections that are opened and closed, over veth: what `concurrent` adds.
    Connections,
    /// A list of a million banned prefixes: loading it, packets, memory.
    Lists,
    /// Bytes of kernel memory for each source.
    Memory,
    /// How long starts and reloads take, a look at a million sources, and a replay.
    Agent,
    /// Decisions in user space, and over HTTP beside another server.
    Decisions,
    /// What an agent costs while nothing happens.
    Rest,
    /// CPU time and delays of the agent's threads and of process groups, each with a bound.
    Costs,
    /// One key on several CPUs at once, and a source for each. Only if it is named.
    Cpus,
    /// The model of growth, to more CPUs and sources than this machine has. Only if it is named.
    Growth,
}

impl Part {
    const fn name(self) -> &'static str {
        match self {
            Self::Packet => "packet",
            Self::Flood => "flood",
            Self::Overflow => "overflow",
            Self::Served => "served",
            Self::Proofs => "proofs",
            Self::Connections => "connections",
            Self::Lists => "lists",
            Self::Memory => "memory",
            Self::Agent => "agent",
            Self::Decisions => "decisions",
            Self::Rest => "rest",
            Self::Costs => "costs",
            Self::Cpus => "cpus",
            Self::Growth => "growth",
        }
    }

    /// Whether its figures are of kernel programs alone, which are the same in any build.
    const fn is_of_programs(self) -> bool {
        matches!(
            self,
            Self::Packet | Self::Proofs | Self::Connections | Self::Cpus | Self::Growth
        )
    }

    /// Whether it measures what others have installed.
    const fn has_alternatives(self) -> bool {
        !matches!(
            self,
            Self::Packet | Self::Connections | Self::Cpus | Self::Growth
        )
    }

    /// The number of rounds: (quick, full).
    const fn rounds(self) -> (usize, usize) {
        match self {
            Self::Packet => (3, 31),
            Self::Flood => (2, 11),
            Self::Overflow => (2, 7),
            Self::Served => (1, 7),
            Self::Proofs => (2, 15),
            Self::Connections => (2, 21),
            Self::Lists => (1, 7),
            Self::Memory => (1, 3),
            Self::Agent => (2, 9),
            Self::Decisions => (2, 11),
            Self::Rest | Self::Costs => (1, 1),
            Self::Cpus | Self::Growth => (2, 15),
        }
    }
}

/// The requirements of the parts.
struct Bench {
    workspace: Workspace,
    /// The folder of the benchmark's programs and figures.
    folder: PathBuf,
    object: PathBuf,
    agent: PathBuf,
}

/// Builds everything, measures, prints tables, and writes the document if all parts were measured.
pub fn run(arguments: &Arguments) -> Result<()> {
    if let Some(file) = &arguments.render {
        return render(file);
    }
    ensure!(
        nix::unistd::geteuid().is_root(),
        "loading BPF programs and making network namespaces needs root: run as root"
    );
    let workspace = Workspace::locate()?;
    let parts = match (arguments.parts.as_slice(), arguments.quick) {
        // From decisions on, fewer rounds make no sense, and an unoptimised build gives no useful figures.
        ([], true) => &Part::value_variants()[..Part::Decisions as usize],
        ([], false) => &Part::value_variants()[..Part::Cpus as usize],
        (parts, _) => parts,
    };
    let is_quick = arguments.quick || arguments.rounds.is_some();
    let group = if parts.iter().any(|part| part.has_alternatives()) {
        Group::Bench
    } else {
        Group::Build
    };
    let toolchain = setup::ensure(group, Detail::Changes)?;
    let llvm = toolchain.compiler.llvm;
    let folder = programs::build(&workspace, llvm)?;
    let built = if parts.iter().all(|part| part.is_of_programs()) {
        build::Built {
            object: build::objects(&workspace, &toolchain)?,
            agent: PathBuf::new(),
            profile: build::Profile::Release,
        }
    } else {
        build::all(
            &workspace,
            &toolchain,
            if arguments.quick {
                Profile::Debug
            } else {
                Profile::Release
            },
        )?
    };
    super::test::mount_bpffs();
    let compiler = programs::compiler(llvm)?;
    println!("alternatives compiled by {compiler}");

    let bench = Bench {
        workspace,
        folder,
        object: built.object,
        agent: built.agent,
    };
    let mut figures = Figures::default();
    let (mut decisions, mut rest, mut costs) = (None, None, Ok(()));
    let measured: Result<()> = parts.iter().try_for_each(|part| {
        match part {
            Part::Decisions => decisions = Some(bench.decisions()?),
            Part::Rest => return bench.rest().map(|said| rest = Some(said)),
            // A missed bound keeps no figure of the others out of the document.
            Part::Costs => {
                costs = bench.costs();
                return Ok(());
            }
            _ => {}
        }
        let out = bench.measure(*part, arguments)?;
        figures.read(&out)?;
        for unit in table::units(&figures, part.name()) {
            println!(
                "\n{}",
                table::text(&table::rows(&figures, part.name(), &unit))
            );
        }
        if let Some(rows) = growth::rows(&figures) {
            println!("{}", table::markdown(&rows));
        }
        Ok(())
    });
    // Also after a failed part: nothing of it stays on the machine.
    cleanup::run()?
        .iter()
        .for_each(|removed| eprintln!("removed a leftover: {removed}"));
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
        let machine = machine::describe(&compiler);
        let run = Run {
            commit: workspace::commit(),
            is_quick,
            kind: machine::kind(),
            machine,
            figures,
            decisions,
            rest,
        };
        let path = bench.folder.join("run.json");
        fs::write(&path, serde_json::to_vec(&run)?)
            .with_context(|| format!("writing {}", path.display()))?;
        let docs = bench.workspace.root.join("docs");
        document(if is_quick { &bench.folder } else { &docs }, &run, &docs)?;
    }
    costs
}

impl Bench {
    /// Measures one part; returns the path of its figures.
    fn measure(&self, part: Part, arguments: &Arguments) -> Result<PathBuf> {
        let (quickly, well) = part.rounds();
        let rounds = arguments
            .rounds
            .unwrap_or(if arguments.quick { quickly } else { well });
        let out = self.folder.join(part.name()).with_extension("json");
        let mut bench = match part {
            Part::Decisions => {
                let mut bench = self.cargo_bench("peers", false);
                bench.env("WEIR_THROTTLECRAB", THROTTLECRAB.ensure(Detail::Changes)?);
                bench
                    .args(["--"])
                    .args(arguments.quick.then_some("--quick"));
                bench
            }
            _ => {
                let mut bench =
                    self.cargo_bench("edge", arguments.quick || self.agent.as_os_str().is_empty());
                bench.args(["--", part.name()]);
                bench
            }
        };
        bench
            .args(["--rounds", &rounds.to_string(), "--out"])
            .arg(&out);
        if let Some(only) = &arguments.only {
            bench.args(["--only", only]);
        }
        process::run(&mut bench).with_context(|| format!("measuring: {}", part.name()))?;
        Ok(out)
    }

    /// The output of the benchmark of decisions, also if it reports a missed bound.
    fn decisions(&self) -> Result<String> {
        let output = self
            .cargo_bench("decide", false)
            .output()
            .context("starting `cargo bench`")?;
        let (figures, errors) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
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

    /// The idle cost of an agent.
    fn rest(&self) -> Result<String> {
        let figures = rest::measure(
            &self.agent,
            Duration::from_secs(rest::SECONDS),
            rest::Beside::Nothing,
        )?;
        let said = format!("with a table for {} sources: {figures}", rest::SOURCES);
        println!("\n{said}\n");
        Ok(said)
    }

    /// What the agent costs under load, which fails where a bound is missed.
    fn costs(&self) -> Result<()> {
        println!();
        process::run(&mut self.cargo_bench("costs", false)).context("measuring: costs")
    }

    /// `is_unoptimised` builds faster, for changes of kernel programs, which are the same in any case.
    fn cargo_bench(&self, name: &str, is_unoptimised: bool) -> Command {
        let mut bench = self.workspace.cargo();
        bench.args([
            "bench",
            "--quiet",
            "--locked",
            "--package",
            "agent",
            "--bench",
            name,
        ]);
        if is_unoptimised {
            bench.args(["--profile", "dev"]);
        }
        bench
            .env("WEIR_BENCH_OBJECTS", &self.folder)
            .env("WEIR_EBPF_OBJECT", &self.object);
        bench.env("WEIR_AGENT", &self.agent);
        bench
    }

    /// Updates only the table of decisions in the document.
    fn write_decisions(&self, figures: &Figures) -> Result<()> {
        let path = self.workspace.root.join("docs").join("BENCHMARKS.md");
        let content = document::decisions(figures, &workspace::commit())?;
        write_between(&path, &content, document::MARKS)
    }
}

fn render(file: &Path) -> Result<()> {
    let docs = Workspace::locate()?.root.join("docs");
    let text = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    let run: Run = serde_json::from_slice(&text)
        .with_context(|| format!("reading the run in {}", file.display()))?;
    let folder = if run.is_quick {
        file.parent().unwrap_or(Path::new("."))
    } else {
        &docs
    };
    document(folder, &run, &docs)
}

/// Writes the document of a run into a folder.
fn document(folder: &Path, run: &Run, docs: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let machines = document::write(folder, run, &notes(docs))?;
    println!("written    {}", folder.join("BENCHMARKS.md").display());
    let table = machines::in_readme(&machines)?;
    if run.is_quick {
        println!("{table}");
        return Ok(());
    }
    write_between(&docs.with_file_name("README.md"), &table, machines::MARKS)
}

/// Replaces a document's text between two marks.
fn write_between(path: &Path, text: &str, marks: [&str; 2]) -> Result<()> {
    let document =
        fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let document = measured::replaced(&document, text, marks)
        .with_context(|| format!("{} has no place for the table", path.display()))?;
    fs::write(path, document).with_context(|| format!("writing {}", path.display()))?;
    println!("written    {}", path.display());
    Ok(())
}

/// The hand-written reasons why aims are met or not.
fn notes(docs: &Path) -> String {
    fs::read_to_string(docs.join("benchmarks").join("notes.md")).unwrap_or_default()
}
