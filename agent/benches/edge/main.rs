//! Weir beside what a user would pick instead; `cargo xtask bench` runs this and makes tables and plots of what it
//! writes. Each part measures everything in turns, round by round, so that what else the machine does falls on all.

mod builds;
mod connections;
mod cpus;
mod flood;
mod growth;
mod lists;
mod memory;
mod network;
mod overflow;
mod packet;
mod policies;
mod programs;
mod proofs;
mod replay;
mod rivals;
mod served;
mod whole;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};

/// Measure Weir beside its alternatives; meant to be called by `cargo xtask bench`.
#[derive(Parser)]
struct Arguments {
    /// What to measure.
    #[arg(value_enum)]
    part: Part,
    /// Where to write the figures, as JSON.
    #[arg(long)]
    out: PathBuf,
    /// How often everything takes its turn.
    #[arg(long)]
    rounds: usize,
    /// Only what has this in its name.
    #[arg(long)]
    only: Option<String>,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Part {
    /// Nanoseconds a packet, by BPF_PROG_TEST_RUN.
    Packet,
    /// Packets a second over veth.
    Flood,
    /// What others get while made-up sources fill the table, by BPF_PROG_TEST_RUN.
    Overflow,
    /// What a server still serves under a flood.
    Served,
    /// Forged SYNs and ACKs to a listener with SYN cookies, over veth.
    Proofs,
    /// TCP connections that are opened and closed, over veth.
    Connections,
    /// A list of a million banned prefixes: loading it, packets, memory.
    Lists,
    /// Bytes of kernel memory for each source.
    Memory,
    /// Starts, reloads, looks and replays.
    Agent,
    /// One key on several CPUs at once, by BPF_PROG_TEST_RUN.
    Cpus,
    /// What the model of growth consists of.
    Growth,
    /// The static program beside the one with the system's C library.
    Static,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "loading BPF programs needs root: run as root"
    );
    let only = arguments.only.as_deref().unwrap_or("");
    let series = match arguments.part {
        Part::Packet => packet::run(arguments.rounds, only)?,
        Part::Flood => flood::run(arguments.rounds, only)?,
        Part::Overflow => overflow::run(arguments.rounds, only)?,
        Part::Served => served::run(arguments.rounds, only)?,
        Part::Proofs => proofs::run(arguments.rounds, only)?,
        Part::Connections => connections::run(arguments.rounds, only)?,
        Part::Lists => lists::run(arguments.rounds, only)?,
        Part::Memory => memory::run(arguments.rounds, only)?,
        Part::Agent => whole::run(arguments.rounds, only)?,
        Part::Cpus => cpus::run(arguments.rounds, only)?,
        Part::Growth => growth::run(arguments.rounds, only)?,
        Part::Static => builds::run(arguments.rounds, only)?,
    };
    testbed::measure::write(&arguments.out, &series)
}
