//! `bench`: measures Weir beside its alternatives.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum as _;

use super::build::{self, Profile};
use super::{dist, measured, rest, setup};
use crate::bench::document::{self, Run};
use crate::bench::figures::Figures;
use crate::bench::part::Part;
use crate::bench::{aims, fair, growth, machine, machines, programs, table};
use crate::cargo_tools::THROTTLECRAB;
use crate::toolchain::Toolchain;
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

impl Arguments {
    /// How often each in a part takes its turn.
    fn rounds_of(&self, part: Part) -> usize {
        let (quickly, well) = part.rounds();
        self.rounds
            .unwrap_or(if self.quick { quickly } else { well })
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
    } else if arguments.quick && parts == [Part::Fair] {
        // `cargo bench` builds the agent of the tests with it.
        build::Built {
            object: build::objects(&workspace, &toolchain)?,
            agent: workspace.agent("debug"),
            profile: build::Profile::Debug,
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
        let outs = if *part == Part::Static {
            bench.compare_builds(&toolchain, arguments)?
        } else {
            vec![bench.measure(*part, arguments)?]
        };
        outs.iter().try_for_each(|out| figures.read(out))?;
        if *part == Part::Fair {
            return bench.report_fair(&figures, arguments);
        }
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
        .chain(aims::of_builds(&figures))
        .chain(fair::aims(&figures))
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
        let rounds = arguments.rounds_of(part);
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
            Part::Fair => {
                let mut bench = if arguments.quick {
                    self.bench_of(&build::EVERY_PACKAGE, "fair", true)
                } else {
                    self.cargo_bench("fair", false)
                };
                bench
                    .args(["--"])
                    .args(arguments.quick.then_some("--quick"));
                for (variable, program) in fair::programs() {
                    bench.env(variable, program);
                }
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

    /// Builds the static program as the other one is, and measures both in turns; returns the paths of the figures.
    fn compare_builds(&self, toolchain: &Toolchain, arguments: &Arguments) -> Result<Vec<PathBuf>> {
        let program = dist::for_this_machine(&self.workspace, toolchain, &self.object)?;
        let rounds = arguments.rounds_of(Part::Static).to_string();
        let run = |name: &str, words: &[&str]| -> Result<PathBuf> {
            let out = self.folder.join(format!("static-{name}.json"));
            let mut bench = self.cargo_bench(name, arguments.quick);
            bench.env("WEIR_STATIC", &program).arg("--").args(words);
            bench.args(["--rounds", &rounds, "--out"]).arg(&out);
            process::run(&mut bench).with_context(|| format!("measuring: static, {name}"))?;
            Ok(out)
        };
        let quick: &[&str] = if arguments.quick { &["--quick"] } else { &[] };
        Ok(vec![
            run("edge", &[Part::Static.name()])?,
            run("peers", quick)?,
        ])
    }

    /// Prints the table of fair limits, and writes their section and plots: into the guide if all rows were measured on a quiet
    /// machine, else beside the figures.
    fn report_fair(&self, figures: &Figures, arguments: &Arguments) -> Result<()> {
        println!("\n{}", table::text(&fair::rows(figures)));
        let section = fair::Section::of(
            figures,
            &self.folder.join(fair::LINES),
            &workspace::commit(),
        )?;
        let least = Part::Fair.rounds().1;
        let is_whole = !arguments.quick
            && arguments.only.is_none()
            && fair::programs().len() == fair::PROGRAMS
            && arguments.rounds.is_none_or(|rounds| rounds >= least);
        if is_whole && !section.is_quiet {
            eprintln!("warning: docs stay as they are: {}", section.pauses);
        }
        let docs = self.workspace.root.join("docs");
        let is_written = is_whole && section.is_quiet;
        let pictures = if is_written {
            docs.join("images")
        } else {
            self.folder.clone()
        };
        for (name, svg) in &section.pictures {
            write(&pictures.join(name), svg)?;
        }
        if is_written {
            let guide = docs.join("guides").join("fair.md");
            write_between(&guide, &section.text, fair::MARKS)
        } else {
            write(&self.folder.join("fair.md"), &section.text)
        }
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
        self.bench_of(&["--package", "agent"], name, is_unoptimised)
    }

    /// The same of other packages, for a build that shares theirs.
    fn bench_of(&self, packages: &[&str], name: &str, is_unoptimised: bool) -> Command {
        let mut bench = self.workspace.cargo();
        bench.args(["bench", "--quiet", "--locked"]).args(packages);
        bench.args(["--bench", name]);
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
    write(path, &document)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    println!("written    {}", path.display());
    Ok(())
}

/// The hand-written reasons why aims are met or not.
fn notes(docs: &Path) -> String {
    fs::read_to_string(docs.join("benchmarks").join("notes.md")).unwrap_or_default()
}
