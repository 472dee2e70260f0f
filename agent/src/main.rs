//! The `agent` binary: a thin shell around the library.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match weir::cmd::execute(weir::cli::Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
