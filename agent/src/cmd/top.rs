//! `agent top`: the live view, or one table.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use super::{USAGE, ask};
use crate::cli::Options;
use crate::tui;

/// How often to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looks {
    /// Live.
    Many,
    /// One table.
    One,
}

impl From<bool> for Looks {
    fn from(once: bool) -> Self {
        if once { Self::One } else { Self::Many }
    }
}

pub fn top(looks: Looks, options: &Options) -> anyhow::Result<ExitCode> {
    if looks == Looks::One {
        return ask::top_once(options);
    }
    if options.json {
        eprintln!("the live view has no JSON: use agent top --once --json");
        return Ok(ExitCode::from(USAGE));
    }
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        eprintln!("the live view needs a terminal to be typed and shown at: use agent top --once for one table");
        return Ok(ExitCode::from(USAGE));
    }
    tui::run(options.client(), tui::Theme::of_environment())?;
    Ok(ExitCode::SUCCESS)
}
