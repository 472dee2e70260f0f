//! The config to start with, and where it comes from.

use std::io::{self, IsTerminal as _};
use std::path::Path;

use anyhow::Context as _;
use config::policy::Config;
use config::ssh;
use datapath::default_route_interfaces;
use host::PROGRAM;

use crate::daemon::reload::{EndedTrial, LastValid, Source};
use crate::daemon::rollout;

/// The config to start with.
#[derive(Clone)]
pub(super) struct Configured {
    pub(super) source: Source,
    /// The file's text, which differs from that of `source` after an unconfirmed trial.
    pub(super) seen: Option<String>,
    pub(super) not_in_effect: Option<NotInEffect>,
    pub(super) ended_trial: Option<EndedTrial>,
    /// Whether `weir allow --times` raises limits.
    pub(super) raises_limits: bool,
}

/// Why the last valid config is in effect instead of the file.
#[derive(Clone)]
pub(super) struct NotInEffect {
    /// In capitals, for the service manager's status line.
    pub(super) why: &'static str,
    pub(super) errors: Vec<String>,
}

/// Reads the config, or takes the built-in one; `None` if it is invalid or declined, which has been printed.
pub(super) fn configuration(file: Option<&Path>) -> anyhow::Result<Option<Configured>> {
    let Some(file) = file else {
        let interfaces =
            default_route_interfaces().context("finding the interfaces of the default route")?;
        let names = interfaces.join(", ");
        if io::stdin().is_terminal()
            && !agrees(&format!(
                "no config: observe {names} with built-in limits? [y/N] "
            ))?
        {
            return Ok(None);
        }
        tracing::warn!("no config: observing {names} with built-in limits, refusing nothing");
        let source = Source::new(Config::built_in(&interfaces), None);
        let ended_trial = EndedTrial::of(&source.config.agent, "the built-in limits are in effect");
        return Ok(Some(Configured {
            source,
            seen: None,
            not_in_effect: None,
            ended_trial,
            raises_limits: true,
        }));
    };
    let (source, warnings) = match Source::read(file) {
        Ok(read) => read,
        Err(error) => {
            tracing::error!("{error}");
            let errors = error.to_string().lines().map(str::to_owned).collect();
            let not_in_effect = Some(NotInEffect {
                why: "IS INVALID",
                errors,
            });
            return Ok(last_valid(file, "is invalid").map(|last| Configured {
                not_in_effect,
                ..last
            }));
        }
    };
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let seen = source.text.clone();
    let (source, ended_trial) = EndedTrial::before(file, source);
    let source = with_confirmed_rules(file, source);
    if let Some(warning) = config::ssh_warning(&source.config, ssh::client()) {
        tracing::warn!("{warning}");
    }
    Ok(Some(Configured {
        source,
        seen,
        not_in_effect: None,
        ended_trial,
        raises_limits: true,
    }))
}

/// The config with the rules of the fleet that an earlier agent has confirmed, as far as they go with it. The file alone has
/// to be enough for a start.
fn with_confirmed_rules(file: &Path, source: Source) -> Source {
    let Some(fleet) = &source.config.fleet else {
        return source;
    };
    let rules = rollout::confirmed(&source.config.agent.state_dir, fleet);
    let (with_rules, left_out) = source.with_rules_where_possible(file, &rules);
    for (stream, error) in left_out {
        tracing::error!("{error}\nthe file is in effect without the rules of {stream}");
    }
    with_rules
}

fn agrees(question: &str) -> anyhow::Result<bool> {
    eprint!("{question}");
    let mut answer = String::new();
    io::stdin()
        .read_line(&mut answer)
        .context("reading the reply from the terminal")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// The last valid config instead of the file's, if a service manager started the agent.
pub(super) fn last_valid(file: &Path, why: &str) -> Option<Configured> {
    let copy = LastValid::of_service()?;
    let source = with_confirmed_rules(file, copy.read(file)?);
    tracing::error!(
        "{} {why}: the agent uses the last valid config, {}; correct the file, then run {PROGRAM} reload",
        file.display(),
        copy.path().display()
    );
    let ended_trial = EndedTrial::of(&source.config.agent, "the last valid config is in effect");
    Some(Configured {
        source,
        seen: None,
        not_in_effect: None,
        ended_trial,
        raises_limits: true,
    })
}
