//! Executes the verb of a command line.

use std::path::Path;
use std::process::ExitCode;

use api::heavy_prefixes::SHARE;
use api::request::Request;
use host::PROGRAM;

use super::accepted::unused;
use super::exit::usage;
use super::top::Rows;
use super::{
    allow, ban, capture, check, completions, decide, detach, doctor, events, fleet, groups, import,
    limits, notify, package, record, reload, replay, reset, run, show, status, suggest, top, trace,
    until,
};
use crate::cli::arguments::{Cli, Command, ConfigFile, NotifyCommand, Options, TopBy};
use crate::pcapng::Sample;

/// Executes a command line.
///
/// # Errors
///
/// When the command failed while running. Wrong usage and invalid configs are printed here, with exit status 2.
pub fn execute(cli: Cli) -> anyhow::Result<ExitCode> {
    let (options, command) = (&cli.options, cli.command);
    let Some(command) = command else {
        return without_a_verb(options);
    };
    if !matches!(command, Command::Run(_)) {
        end_with_the_reader();
    }
    if let Some(error) = unused(&command, options) {
        return Ok(usage(&error));
    }
    let config = match &command {
        Command::Run(file) | Command::Doctor(file) | Command::Detach(file) => {
            options.config_file(file)
        }
        Command::Check(file) | Command::Try { config: file, .. } => {
            options.required_config(file).map(Some)
        }
        Command::Replay(_) => options.required_config(&ConfigFile::default()).map(Some),
        Command::Reload { file, .. } => options.named_config(file.as_deref()).and_then(|named| {
            let named_here = Options {
                config: named.clone(),
                ..Options::default()
            };
            named_here.readable_config().map(|()| named)
        }),
        _ => options.readable_config().map(|()| None),
    };
    let config = match config {
        Ok(config) => config.unwrap_or_default(),
        Err(error) => return Ok(usage(&error)),
    };
    let named = Some(config.as_path()).filter(|path| !path.as_os_str().is_empty());
    match command {
        Command::Run(_) => run::run(named, options),
        Command::Check(_) => check::check(&config, options.json.into()),
        Command::Status => status::status(options),
        Command::Limits {
            reset_counters: false,
        } => limits::limits(options),
        Command::Limits {
            reset_counters: true,
        } => limits::reset_counters(options),
        Command::Top {
            once,
            count,
            sort,
            by,
            share,
        } => {
            let rows = match by {
                TopBy::Source => Rows::Sources(sort),
                TopBy::Prefix => Rows::Prefixes(sort, share.unwrap_or(SHARE)),
            };
            top::top(once.into(), count, rows, options)
        }
        Command::Events {
            follow,
            last,
            source,
            limit,
            since,
        } => events::events(
            follow.into(),
            last,
            &events::Wanted {
                source,
                limit,
                since,
            },
            options,
        ),
        Command::Show { source } => show::show(source, options),
        Command::Trace { source } => trace::trace(source, options),
        Command::Reset {
            source,
            keys,
            limit,
        } => reset::reset(source, &keys, limit, options),
        Command::Ban {
            cidrs,
            file,
            duration,
            until,
            reason,
            owner,
            force,
        } => ban::ban(
            &cidrs,
            file.as_deref(),
            &ban::Terms {
                duration: duration.or_else(|| until.map(until::left)),
                reason,
                owner,
                force: force.into(),
            },
            options,
        ),
        Command::Unban {
            cidrs,
            file: None,
            all: true,
            ..
        } if cidrs.is_empty() => ban::unban_all(options),
        Command::Unban {
            cidrs,
            file,
            owner,
            all,
        } => ban::unban(&cidrs, file.as_deref(), owner, all, options),
        Command::Bans => ban::bans(options),
        Command::Allow { list: true, .. } => allow::list(options),
        Command::Allow {
            cidrs,
            duration,
            until,
            times,
            exempt: _,
            reason,
            owner,
            list: false,
        } => allow::allow(
            cidrs,
            allow::Terms {
                duration: duration
                    .or_else(|| until.map(until::left))
                    .unwrap_or_default(),
                times,
                reason,
                owner,
            },
            options,
        ),
        Command::Disallow { cidrs } => allow::disallow(cidrs, options),
        Command::Decide(question) => decide::decide(&question, options),
        Command::Groups { emergency: None } => groups::groups(options),
        Command::Groups {
            emergency: Some(command),
        } => groups::emergency(&command, options),
        Command::Usage {
            group,
            from,
            to,
            last,
            csv,
        } => {
            let from = from.or_else(|| last.map(cgroup::first_of_last));
            groups::usage(&Request::Usage { group, from, to }, csv.into(), options)
        }
        Command::Fleet { command } => fleet::fleet(command, options),
        Command::Notify {
            command: NotifyCommand::Test { name },
        } => notify::test(name, options),
        Command::Reload { diff, .. } => {
            // The agent that the file names, also by position.
            let options = &Options {
                config: named.map(Path::to_owned),
                ..options.clone()
            };
            if diff {
                reload::compare(named, options)
            } else {
                reload::reload(named, options)
            }
        }
        Command::Try { duration, .. } => reload::try_config(&config, duration, options),
        Command::Confirm => reload::confirm(options),
        Command::Revert => reload::revert(options),
        Command::Record {
            capture: Some(file),
            duration: length,
            sample: one_in,
            of,
            max_size,
            force,
            ..
        } => {
            let sample = Sample {
                one_in,
                of: of.into(),
            };
            capture::capture(
                &capture::Wanted {
                    file,
                    sample,
                    most_bytes: max_size,
                    length,
                    force,
                },
                options,
            )
        }
        Command::Record {
            duration,
            stop,
            status,
            ..
        } => record::record(duration, record::Wanted::of(stop, status), options),
        Command::Replay(question) => replay::replay(&config, &question, options.json.into()),
        Command::Suggest(question) => suggest::suggest(&question, options),
        Command::Import(question) => import::import(&question, options.json.into()),
        Command::Detach(_) => detach::detach(named),
        Command::Doctor(_) => doctor::doctor(named, options.json.into()),
        Command::Completions { shell } => completions::script(shell),
        Command::Man { page } => package::man(page),
        Command::Schema => package::schema(),
    }
}

/// Runs the agent if a config is named: a bare `weir` must not start one.
fn without_a_verb(options: &Options) -> anyhow::Result<ExitCode> {
    match &options.config {
        Some(config) => match unused(&Command::Run(ConfigFile::default()), options) {
            Some(error) => Ok(usage(&error)),
            None => run::run(Some(config), options),
        },
        None => Ok(usage(&format!(
            "missing command: {PROGRAM} --help lists them; {PROGRAM} --config FILE runs the agent"
        ))),
    }
}

/// Ends silently if the reader has closed the pipe, as in `weir top --once | head -1`, instead of failing to print.
fn end_with_the_reader() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: no existing handler is replaced: the runtime only ignores the signal. If it fails, printing to a closed
    // pipe fails as before.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
}
