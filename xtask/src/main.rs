//! `cargo xtask`: sets up, builds, checks and tests Weir. One module per verb, in `cmd`.

mod apt;
mod architecture;
mod bench;
mod cargo_tools;
mod cleanup;
mod cmd;
mod copyright;
mod debian;
mod dist;
mod docs;
mod elapsed;
mod imports;
mod object;
mod package;
mod process;
mod python;
mod recording;
mod suite;
mod tally;
mod toolchain;
mod tools;
mod vm;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use elapsed::Elapsed;

/// Weir's build, test and demo commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Setup(cmd::setup::Arguments),
    Build(cmd::build::Arguments),
    Lint(cmd::lint::Arguments),
    Test(cmd::test::Arguments),
    /// Run the agent's tests with real programs around it, and provide these programs.
    Integration(cmd::integration::Arguments),
    Vm(cmd::vm::Arguments),
    /// Measure how near to their limit many hosts stay together, and put the table into docs/CLUSTER.md.
    Accuracy,
    Bench(cmd::bench::Arguments),
    /// Measure how near TCP comes to a limit on bytes, and put the table into docs/TCP.md.
    Tcp,
    Demo(cmd::demo::Arguments),
    Fuzz(cmd::fuzz::Arguments),
    /// Build the book of docs/ into target/book; check its links, configs and commands.
    Docs,
    Package(cmd::package::Arguments),
    Dist(cmd::dist::Arguments),
    ReleaseCheck(cmd::release_check::Arguments),
    Rest(cmd::rest::Arguments),
    /// Remove what interrupted tests left on this machine.
    Cleanup,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().verb {
        Verb::Setup(arguments) => cmd::setup::run(&arguments),
        Verb::Build(arguments) => cmd::build::run(&arguments),
        Verb::Lint(arguments) => cmd::lint::run(&arguments),
        Verb::Accuracy => cmd::accuracy::run(),
        Verb::Tcp => cmd::tcp::run(),
        Verb::Demo(arguments) => cmd::demo::run(&arguments),
        Verb::Fuzz(arguments) => cmd::fuzz::run(&arguments),
        Verb::Test(arguments) => cmd::test::run(&arguments),
        Verb::Integration(arguments) => cmd::integration::run(&arguments),
        Verb::Vm(arguments) => cmd::vm::run(&arguments),
        Verb::Docs => cmd::docs::run(),
        Verb::Package(arguments) => cmd::package::run(&arguments),
        Verb::Dist(arguments) => cmd::dist::run(&arguments),
        Verb::ReleaseCheck(arguments) => cmd::release_check::run(&arguments),
        Verb::Rest(arguments) => cmd::rest::run(&arguments),
        Verb::Bench(arguments) => cmd::bench::run(&arguments),
        Verb::Cleanup => cmd::cleanup::run(),
    };
    if let Some(elapsed) = elapsed::since_start().filter(Elapsed::is_long) {
        eprintln!("took       {elapsed}");
    }
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
