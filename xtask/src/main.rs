//! `cargo xtask`: sets up, builds, checks and tests Weir. One module a verb, in `cmd`.

mod apt;
mod cleanup;
mod cmd;
mod object;
mod process;
mod tally;
mod toolchain;
mod tools;
mod vm;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    /// Check the formatting, and the code with clippy.
    Lint,
    Test(cmd::test::Arguments),
    Vm(cmd::vm::Arguments),
    /// Measure how near to their limit many hosts stay together, and put the table into docs/CLUSTER.md.
    Accuracy,
    /// Show the agent at work between two network namespaces; ends by itself.
    Demo,
    /// Remove what interrupted tests left on this machine.
    Cleanup,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().verb {
        Verb::Setup(arguments) => cmd::setup::run(&arguments),
        Verb::Build(arguments) => cmd::build::run(&arguments),
        Verb::Lint => cmd::lint::run(),
        Verb::Accuracy => cmd::accuracy::run(),
        Verb::Demo => cmd::demo::run(),
        Verb::Test(arguments) => cmd::test::run(&arguments),
        Verb::Vm(arguments) => cmd::vm::run(&arguments),
        Verb::Cleanup => cmd::cleanup::run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
