//! The `agent` binary: a thin shell around the library.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match weir::cmd::execute(weir::cli::Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", told(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error with its causes, each said once: many messages hold their cause already.
fn told(error: &anyhow::Error) -> String {
    error
        .chain()
        .skip(1)
        .map(ToString::to_string)
        .fold(error.to_string(), |told, cause| if told.contains(&cause) { told } else { format!("{told}: {cause}") })
}
