//! What packages are made with: the manual page and the shells' completions, from the same table as the command line.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::cli::Cli;

pub fn completions(shell: Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "agent", &mut script);
    io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

pub fn man() -> anyhow::Result<ExitCode> {
    io::stdout().write_all(&crate::manual::page()?)?;
    Ok(ExitCode::SUCCESS)
}
