//! Package contents besides the program: manual pages and the JSON Schema.

use std::io::{self, Write as _};
use std::process::ExitCode;

use crate::cli::arguments::ManualPage;
use crate::cli::as_called::as_called;

pub fn man(page: ManualPage) -> anyhow::Result<ExitCode> {
    let page = match page {
        ManualPage::Program => super::manual::page()?,
        ManualPage::Limits => super::manual::limits::page()?,
    };
    io::stdout().write_all(&page)?;
    Ok(ExitCode::SUCCESS)
}

pub fn schema() -> anyhow::Result<ExitCode> {
    let schema = format!("{:#}", config::reference::schema());
    writeln!(io::stdout(), "{}", as_called(&schema))?;
    Ok(ExitCode::SUCCESS)
}
