//! `bench`: Weir beside what a user would pick instead.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;

use super::build;
use super::setup;
use crate::bench::figures::Figures;
use crate::bench::{aims, programs, table};
use crate::process;
use crate::tools::{Detail, Group};
use crate::workspace::Workspace;

/// Measure Weir beside its alternatives.
#[derive(clap::Args)]
pub struct Arguments {
    /// What to measure; everything if nothing is named.
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Fewer and shorter rounds: to see that it works.
    #[arg(long)]
    quick: bool,
    /// Only what has this in its name, and what it is compared with.
    #[arg(long)]
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
}

impl Part {
    const fn name(self) -> &'static str {
        match self {
            Self::Packet => "packet",
        }
    }

    const fn rounds(self, is_quick: bool) -> usize {
        match (self, is_quick) {
            (Self::Packet, true) => 3,
            (Self::Packet, false) => 21,
        }
    }
}

/// Builds everything, measures, and prints tables.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "loading BPF programs and making network namespaces needs root: run as root"
    );
    let workspace = Workspace::locate()?;
    let toolchain = setup::ensure(Group::Test, Detail::Changes)?;
    let objects = programs::build(&workspace, toolchain.compiler.llvm)?;
    let weir = build::objects(&workspace, &toolchain)?;
    super::test::mount_bpffs();
    println!("alternatives compiled by {}", programs::compiler(toolchain.compiler.llvm)?);

    let parts = if arguments.parts.is_empty() { Part::value_variants() } else { &arguments.parts };
    let mut figures = Figures::default();
    for part in parts {
        let out = objects.join(part.name()).with_extension("json");
        let mut bench = measure(&workspace, *part, arguments, &out);
        bench.env("WEIR_BENCH_OBJECTS", &objects).env("WEIR_EBPF_OBJECT", &weir);
        process::run(&mut bench).with_context(|| format!("measuring: {}", part.name()))?;
        figures.read(&out)?;
        for unit in table::units(&figures, part.name()) {
            println!("\n{}", table::text(&table::rows(&figures, part.name(), &unit)));
        }
    }
    if parts.contains(&Part::Packet) {
        println!("{}", table::text(&aims::rows(&aims::of_packets(&figures))));
    }
    Ok(())
}

/// The program that measures one part.
fn measure(workspace: &Workspace, part: Part, arguments: &Arguments, out: &Path) -> Command {
    let rounds = arguments.rounds.unwrap_or_else(|| part.rounds(arguments.quick));
    let mut bench = workspace.cargo();
    bench.args(["bench", "--quiet", "--locked", "--package", "agent", "--bench", "edge"]);
    if part == Part::Packet {
        // What is measured is in the kernel, whoever starts it: a quicker build for whoever changes that.
        bench.args(["--profile", "dev"]);
    }
    bench.args(["--", part.name(), "--rounds", &rounds.to_string(), "--out"]).arg(out);
    if let Some(only) = &arguments.only {
        bench.args(["--only", only]);
    }
    bench
}
