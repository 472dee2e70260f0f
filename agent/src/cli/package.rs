//! Package contents besides the program: manual pages, shell completions and the JSON Schema.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::cli::arguments::{Cli, ManualPage};

pub fn completions(shell: Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "agent", &mut script);
    io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

pub fn man(page: ManualPage) -> anyhow::Result<ExitCode> {
    let page = match page {
        ManualPage::Agent => crate::manual::page()?,
        ManualPage::Limits => crate::manual::limits::page()?,
    };
    io::stdout().write_all(&page)?;
    Ok(ExitCode::SUCCESS)
}

pub fn schema() -> anyhow::Result<ExitCode> {
    writeln!(io::stdout(), "{:#}", config::reference::schema())?;
    Ok(ExitCode::SUCCESS)
}
