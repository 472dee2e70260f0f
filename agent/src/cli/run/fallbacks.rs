//! Starts with less than the file's config, where that cannot be put in effect.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use datapath::compile::CompileError;
use datapath::{AttachError, LoadError};
use decide::EngineError;
use host::PROGRAM;

use super::configured::{Configured, NotInEffect, configuration, last_valid};
use super::enforce::{Stage, enforce};
use crate::allowances;
use crate::cli::exit::USAGE;
use crate::daemon::reload::Source;
use crate::daemon::{self, StartError};
use crate::geo::Databases;

/// The pause of a service after a failed start: the service manager restarts it without a delay, so that a killed agent
/// is back soon.
pub(super) const PAUSE: Duration = Duration::from_secs(4);

/// The pause before a socket of the previous attempt is tried again: it is released when its threads have ended.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Runs with the config of `file`, or with the last valid one if `file` is invalid or cannot be enforced.
pub(super) fn run_until_stopped(
    file: Option<&Path>,
    stage: &mut Stage,
) -> anyhow::Result<ExitCode> {
    let Some(configured) = configuration(file)? else {
        return Ok(ExitCode::from(USAGE));
    };
    let text = configured.source.text.clone();
    let error = match run_with(file, configured, stage) {
        Err(error) if matches!(stage, Stage::Starting) && is_of_the_config(&error) => error,
        ended => return ended,
    };
    if let Some(file) = file
        && let Some(alone) = without_rules(file, text.as_deref(), &error)
    {
        let ended = again(stage, |stage| run_with(Some(file), alone.clone(), stage));
        if ended.is_ok() || matches!(stage, Stage::Running) {
            return ended;
        }
    }
    let Some((file, last)) =
        file.and_then(|file| Some((file, last_valid(file, "could not be put in effect")?)))
    else {
        return Err(error);
    };
    if last.source.text == text {
        return Err(error);
    }
    let lines: Vec<String> = format!("{error:#}").lines().map(str::to_owned).collect();
    lines.iter().for_each(|line| tracing::error!("{line}"));
    let not_in_effect = Some(NotInEffect {
        why: "COULD NOT BE PUT IN EFFECT",
        errors: lines,
    });
    let configured = Configured {
        not_in_effect,
        ..last
    };
    again(stage, |stage| {
        run_with(Some(file), configured.clone(), stage)
    })
    .map_err(|second| match stage {
        Stage::Starting => {
            tracing::error!("the last valid config could not be put in effect either: {second:#}");
            error
        }
        Stage::Running => second,
    })
}

/// The file without the rules of the fleet, if these may be why it cannot be enforced: they must not prevent a start.
fn without_rules(file: &Path, text: Option<&str>, error: &anyhow::Error) -> Option<Configured> {
    let configured = configuration(Some(file)).ok()??;
    if configured.source.rules.is_empty() {
        return None;
    }
    tracing::error!("{error:#}\nthe file is in effect without the fleet's rules");
    let (source, _) = Source::parse(file, text?.to_owned()).ok()?;
    Some(Configured {
        source,
        ..configured
    })
}

/// Starts again after a failed start, whose addresses may be in use for a moment.
fn again(
    stage: &mut Stage,
    start: impl Fn(&mut Stage) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    let until = Instant::now() + PAUSE;
    loop {
        match start(stage) {
            Err(error)
                if matches!(stage, Stage::Starting)
                    && is_taken(&error)
                    && Instant::now() < until =>
            {
                thread::sleep(RETRY_DELAY);
            }
            ended => return ended,
        }
    }
}

/// Whether a start failed because of the config. Missing features of the host may be present at the next attempt.
fn is_of_the_config(error: &anyhow::Error) -> bool {
    let is_of_load =
        |error: &LoadError| matches!(error, LoadError::Policy(_) | LoadError::Memory(_));
    error.is::<CompileError>()
        || matches!(
            error.downcast_ref(),
            Some(StartError::Engine(EngineError::Policy { .. }))
        )
        || matches!(error.downcast_ref(), Some(AttachError::Load(error)) if is_of_load(error))
}

/// Whether an address is in use.
fn is_taken(error: &anyhow::Error) -> bool {
    let is_taken = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
    error
        .chain()
        .any(|cause| cause.downcast_ref::<io::Error>().is_some_and(is_taken))
}

/// Runs with a config. If it cannot be enforced with what others than its file add to it, that is left out, since it must not
/// prevent a start: the prefixes of databases, which change by themselves, and limits raised by `weir allow --times`.
fn run_with(
    file: Option<&Path>,
    configured: Configured,
    stage: &mut Stage,
) -> anyhow::Result<ExitCode> {
    let config = &configured.source.config;
    // The notes are in the log when lists are started.
    let (lists, _) = daemon::lists::of_classes(config);
    let databases = Databases::read(config, &Databases::default(), lists);
    let first = match enforce_possible(file, configured.clone(), databases.clone(), stage) {
        Err(error) if matches!(stage, Stage::Starting) && is_of_the_config(&error) => error,
        ended => return ended,
    };
    let without_databases = (!databases.have_same_prefixes(&Databases::default(), config))
        .then(|| databases.left_out(&format!("{first:#}")));
    let lowered = allowances::are_limits_raised(config).then(|| Configured {
        raises_limits: false,
        ..configured.clone()
    });
    let (as_configured, with_databases) = (Some(&configured), Some(&databases));
    let attempts = [
        (as_configured, without_databases.as_ref()),
        (lowered.as_ref(), with_databases),
        (lowered.as_ref(), without_databases.as_ref()),
    ];
    for (configured, databases) in attempts {
        let (Some(configured), Some(databases)) = (configured, databases) else {
            continue;
        };
        if !configured.raises_limits {
            tracing::warn!(
                "trying without the limits raised by {PROGRAM} allow --times: {first:#}"
            );
        }
        let ended = again(stage, |stage| {
            enforce_possible(file, configured.clone(), databases.clone(), stage)
        });
        if ended.is_ok() || matches!(stage, Stage::Running) {
            return ended;
        }
    }
    Err(first)
}

/// Enforces a config, without the limits that this kernel cannot enforce unless `[agent] strict` is set: a host that comes
/// up with another kernel keeps its other limits.
fn enforce_possible(
    file: Option<&Path>,
    configured: Configured,
    databases: Databases,
    stage: &mut Stage,
) -> anyhow::Result<ExitCode> {
    let error = match enforce(file, configured.clone(), databases.clone(), stage) {
        Err(error) if matches!(stage, Stage::Starting) => error,
        ended => return ended,
    };
    let Some(reason) = why_no_connections(&error) else {
        return Err(error);
    };
    let source = &configured.source;
    if source.config.agent.strict {
        return Err(error.context("[agent] strict is set, and the kernel cannot enforce a limit"));
    }
    let Some(source) = source.without_connections(reason) else {
        return Err(error);
    };
    let possible = Configured {
        source,
        ..configured
    };
    again(stage, |stage| {
        enforce(file, possible.clone(), databases.clone(), stage)
    })
}

/// The reason of a start that failed because the kernel cannot count open connections.
fn why_no_connections(error: &anyhow::Error) -> Option<&str> {
    match error.downcast_ref() {
        Some(AttachError::Load(LoadError::Connections { reason })) => Some(reason),
        _ => None,
    }
}
