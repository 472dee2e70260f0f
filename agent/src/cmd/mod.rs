//! One file a verb.

mod ask;
mod ban;
mod check;
mod decide;
mod detach;
mod doctor;
mod events;
mod groups;
mod package;
mod reload;
mod run;
mod table;
mod top;

use std::process::ExitCode;

use crate::cli::{Cli, Command};

/// Wrong usage or config: nothing was touched.
const USAGE: u8 = 2;

/// Does what was typed.
///
/// # Errors
///
/// When it failed while running; wrong usage and configs are told of here and end in exit status 2.
pub fn execute(cli: Cli) -> anyhow::Result<ExitCode> {
    let command = cli.command.unwrap_or(Command::Run(cli.run));
    if !matches!(command, Command::Run(_)) {
        end_with_the_reader();
    }
    match command {
        Command::Run(options) => run::run(&options),
        Command::Check { file, json } => check::check(&file, json.into()),
        Command::Status(options) => ask::status(&options),
        Command::Limits(options) => ask::limits(&options),
        Command::Top { once, ask } => top::top(once.into(), &ask),
        Command::Events { follow, last, ask } => events::events(follow.into(), last, &ask),
        Command::Show { source, ask } => ask::show(source, &ask),
        Command::Reset { source, limit, ask } => ask::reset(source, limit, &ask),
        Command::Ban { cidr, file, duration, force, ask } => {
            ban::ban(cidr.as_deref(), file.as_deref(), duration, force.into(), &ask)
        }
        Command::Unban { cidr, ask } => ban::unban(&cidr, &ask),
        Command::Bans(options) => ban::bans(&options),
        Command::Decide(options) => decide::decide(&options),
        Command::Groups { emergency: None, ask } => groups::groups(&ask),
        Command::Groups { emergency: Some(command), .. } => groups::emergency(&command),
        Command::Reload(options) => reload::reload(&options),
        Command::Try { file, duration, ask } => reload::try_config(&file, duration, &ask),
        Command::Confirm(options) => reload::confirm(&options),
        Command::Detach { config } => detach::detach(config.as_deref()),
        Command::Doctor { config, json } => doctor::doctor(config.as_deref(), json.into()),
        Command::Completions { shell } => package::completions(shell),
        Command::Man => package::man(),
    }
}

/// Ends quietly when nobody reads on, as `agent top --once | head -1` does, instead of failing to print.
fn end_with_the_reader() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: no handler of anybody's is replaced: the runtime only ignores the signal. Where it is refused, printing to
    // nobody fails as before.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
}

/// How a document is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Print {
    /// As a table for people.
    Table,
    /// As one JSON document.
    Json,
}

impl From<bool> for Print {
    fn from(json: bool) -> Self {
        if json { Self::Json } else { Self::Table }
    }
}
