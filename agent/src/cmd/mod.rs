//! One file a verb.

mod ask;
mod ban;
mod check;
mod decide;
mod detach;
mod doctor;
mod events;
mod groups;
mod options;
mod package;
mod reload;
mod run;
mod table;
mod top;

use std::process::ExitCode;

use crate::cli::{Cli, Command, Options};

/// Wrong usage or config: nothing was touched.
const USAGE: u8 = 2;

/// Does what was typed.
///
/// # Errors
///
/// When it failed while running; wrong usage and configs are told of here and end in exit status 2.
pub fn execute(cli: Cli) -> anyhow::Result<ExitCode> {
    let (options, command) = (&cli.options, cli.command);
    let Some(command) = command else { return without_a_verb(options) };
    if !matches!(command, Command::Run(_)) {
        end_with_the_reader();
    }
    let config = match &command {
        Command::Run(file) | Command::Doctor(file) | Command::Detach(file) => options.config_file(file),
        Command::Check(file) | Command::Try { config: file, .. } => options.required_config(file).map(Some),
        _ => Ok(None),
    };
    let config = match config {
        Ok(config) => config.unwrap_or_default(),
        Err(error) => return Ok(usage(&error)),
    };
    let named = Some(config.as_path()).filter(|path| !path.as_os_str().is_empty());
    match command {
        Command::Run(_) => run::run(named),
        Command::Check(_) => check::check(&config, options.json.into()),
        Command::Status => ask::status(options),
        Command::Limits => ask::limits(options),
        Command::Top { once } => top::top(once.into(), options),
        Command::Events { follow, last } => events::events(follow.into(), last, options),
        Command::Show { source } => ask::show(source, options),
        Command::Reset { source, limit } => ask::reset(source, limit, options),
        Command::Ban { cidrs, file, duration, force } => {
            ban::ban(&cidrs, file.as_deref(), duration, force.into(), options)
        }
        Command::Unban { all: true, .. } => ban::unban_all(options),
        Command::Unban { cidrs, file, .. } => ban::unban(&cidrs, file.as_deref(), options),
        Command::Bans => ban::bans(options),
        Command::Decide(question) => decide::decide(&question, options),
        Command::Groups { emergency: None } => groups::groups(options),
        Command::Groups { emergency: Some(command) } => groups::emergency(&command, options),
        Command::Reload { diff: true } => reload::compare(options),
        Command::Reload { diff: false } => reload::reload(options),
        Command::Try { duration, .. } => reload::try_config(&config, duration, options),
        Command::Confirm => reload::confirm(options),
        Command::Revert => reload::revert(options),
        Command::Detach(_) => detach::detach(named),
        Command::Doctor(_) => doctor::doctor(named, options.json.into()),
        Command::Completions { shell } => package::completions(shell),
        Command::Man => package::man(),
    }
}

/// Runs the agent if a config is named: nobody starts one by asking what there is.
fn without_a_verb(options: &Options) -> anyhow::Result<ExitCode> {
    match &options.config {
        Some(config) => run::run(Some(config)),
        None => Ok(usage(&"missing command: agent --help lists them; agent --config FILE runs the agent")),
    }
}

fn usage(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::from(USAGE)
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
