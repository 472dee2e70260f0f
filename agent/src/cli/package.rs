//! Package contents besides the program: manual pages and the JSON Schema.

use std::io::{self, Write as _};
use std::process::ExitCode;

use crate::cli::arguments::ManualPage;

pub fn man(page: ManualPage) -> anyhow::Result<ExitCode> {
    let page = match page {
        ManualPage::Agent => super::manual::page()?,
        ManualPage::Limits => super::manual::limits::page()?,
    };
    io::stdout().write_all(&page)?;
    Ok(ExitCode::SUCCESS)
}

pub fn schema() -> anyhow::Result<ExitCode> {
    writeln!(io::stdout(), "{:#}", config::reference::schema())?;
    Ok(ExitCode::SUCCESS)
}
