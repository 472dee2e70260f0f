//! The options of all verbs: which of them a verb uses. The others are refused, so that none is ignored.

use super::arguments::{Command, FleetCommand, Options, Suggest, TopBy};

/// An option of all verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shared {
    Config,
    Control,
    Json,
    LogLevel,
    LogFormat,
}

impl Shared {
    const ALL: [Self; 5] = [
        Self::Config,
        Self::Control,
        Self::Json,
        Self::LogLevel,
        Self::LogFormat,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Config => "--config",
            Self::Control => "--control",
            Self::Json => "--json",
            Self::LogLevel => "--log-level",
            Self::LogFormat => "--log-format",
        }
    }

    const fn is_given(self, options: &Options) -> bool {
        match self {
            Self::Config => options.config.is_some(),
            Self::Control => options.control.is_some(),
            Self::Json => options.json,
            Self::LogLevel => options.log_level.is_some(),
            Self::LogFormat => options.log_format.is_some(),
        }
    }

    /// Where the value comes from instead.
    const fn instead(self, command: &Command) -> &'static str {
        match (self, command) {
            (Self::Json, Command::Run(_)) => "; --log-format json writes the log as JSON",
            (Self::LogLevel | Self::LogFormat, _) => "; the verb run has a log",
            (
                Self::Control,
                Command::Run(_) | Command::Check(_) | Command::Detach(_) | Command::Doctor(_),
            ) => "; [agent] control in the config names the socket",
            (Self::Control | Self::Config, Command::Suggest(_)) => "; the traffic is from files",
            _ => "; leave it out",
        }
    }
}

/// The name of a verb and the options of all verbs that it uses.
const fn uses(command: &Command) -> (&'static str, &'static [Shared]) {
    use Shared::{Config, Control, Json, LogFormat, LogLevel};
    /// Of verbs that query the running agent.
    const AGENT: &[Shared] = &[Config, Control, Json];
    match command {
        Command::Run(_) => ("run", &[Config, LogLevel, LogFormat]),
        Command::Check(_) => ("check", &[Config, Json]),
        Command::Status => ("status", AGENT),
        Command::Limits { .. } => ("limits", AGENT),
        Command::Top { .. } => ("top", AGENT),
        Command::Events { .. } => ("events", AGENT),
        Command::Show { .. } => ("show", AGENT),
        Command::Trace { .. } => ("trace", AGENT),
        Command::Groups { .. } => ("groups", AGENT),
        Command::Usage { csv: false, .. } => ("usage", AGENT),
        Command::Usage { csv: true, .. } => ("usage --csv", &[Config, Control]),
        Command::Fleet { command } => match command {
            FleetCommand::Publish(_) => ("fleet publish", &[Config]),
            FleetCommand::Status { .. } => ("fleet status", &[Config, Json]),
            FleetCommand::Abort { .. } => ("fleet abort", &[Config]),
            FleetCommand::History { .. } => ("fleet history", &[Config, Json]),
            FleetCommand::Diff { .. } => ("fleet diff", &[Config, Json]),
            FleetCommand::Keygen { .. } => ("fleet keygen", &[]),
        },
        Command::Notify { .. } => ("notify test", AGENT),
        Command::Reset { .. } => ("reset", AGENT),
        Command::Decide(_) => ("decide", AGENT),
        Command::Ban { .. } => ("ban", AGENT),
        Command::Unban { .. } => ("unban", AGENT),
        Command::Bans => ("bans", AGENT),
        Command::Allow { .. } => ("allow", AGENT),
        Command::Disallow { .. } => ("disallow", AGENT),
        Command::Reload { .. } => ("reload", AGENT),
        Command::Try { .. } => ("try", AGENT),
        Command::Confirm => ("confirm", AGENT),
        Command::Revert => ("revert", AGENT),
        Command::Record { .. } => ("record", AGENT),
        Command::Replay(_) => ("replay", &[Config, Json]),
        Command::Suggest(Suggest {
            from: None,
            captures,
            ..
        }) if captures.is_empty() => ("suggest", AGENT),
        Command::Suggest(_) => ("suggest FILE", &[Json]),
        Command::Import(_) => ("import", &[Json]),
        Command::Detach(_) => ("detach", &[Config]),
        Command::Doctor(_) => ("doctor", &[Config, Json]),
        Command::Completions { .. } => ("completions", &[]),
        Command::Man { .. } => ("man", &[]),
        Command::Schema => ("schema", &[Json]),
    }
}

/// The error for an option that the verb does not use.
pub(super) fn unused(command: &Command, options: &Options) -> Option<String> {
    let (verb, used) = uses(command);
    let shared = Shared::ALL
        .into_iter()
        .find(|shared| shared.is_given(options) && !used.contains(shared));
    if let Some(shared) = shared {
        let (name, instead) = (shared.name(), shared.instead(command));
        return Some(format!(
            "{name} conflicts with agent {verb}, which does not use it{instead}"
        ));
    }
    match command {
        Command::Top {
            by: TopBy::Source,
            share: Some(_),
            ..
        } => Some("--share requires --by prefix".to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;
    use crate::cli::arguments::Cli;

    /// A command line of each verb, without options of all verbs.
    const LINES: [&str; 40] = [
        "run",
        "check",
        "status",
        "limits",
        "top",
        "events",
        "show 192.0.2.1",
        "trace 192.0.2.1",
        "groups",
        "usage",
        "usage --csv",
        "reset 192.0.2.1",
        "notify test",
        "fleet publish x --to /srv/web --key k",
        "fleet status",
        "fleet abort --key k --reason r",
        "fleet history",
        "fleet diff x",
        "fleet keygen x",
        "decide --limit a",
        "decide --release 4f",
        "ban 192.0.2.1",
        "unban 192.0.2.1",
        "bans",
        "allow 192.0.2.1 --for 1h",
        "disallow 192.0.2.1",
        "reload",
        "try",
        "confirm",
        "revert",
        "record",
        "replay x.pcap",
        "suggest",
        "suggest x.pcap",
        "import",
        "detach",
        "doctor",
        "completions bash",
        "man",
        "schema",
    ];

    fn error(line: &str) -> Option<String> {
        let cli = Cli::try_parse_from(format!("agent {line}").split(' ')).unwrap();
        unused(&cli.command.unwrap(), &cli.options)
    }

    #[test]
    fn each_verb_refuses_the_options_that_it_does_not_use() {
        let command = Cli::command();
        let verbs: Vec<&str> = command
            .get_subcommands()
            .map(clap::Command::get_name)
            .collect();
        let named = |verb: &&&str| {
            LINES
                .iter()
                .any(|line| line.split(' ').next() == Some(verb))
        };
        assert_eq!(verbs.iter().filter(named).count(), verbs.len());
        let options = [
            ("--config x", Shared::Config),
            ("--control x", Shared::Control),
            ("--json", Shared::Json),
            ("--log-level info", Shared::LogLevel),
            ("--log-format text", Shared::LogFormat),
        ];
        for line in LINES {
            assert_eq!(error(line), None, "{line}");
            for (option, shared) in options {
                let cli = Cli::try_parse_from(format!("agent {line}").split(' ')).unwrap();
                let is_used = uses(&cli.command.unwrap()).1.contains(&shared);
                let error = error(&format!("{line} {option}"));
                assert_eq!(error.is_none(), is_used, "{line} {option}: {error:?}");
                assert!(
                    error.is_none_or(|error| error.starts_with(shared.name())),
                    "{line}"
                );
            }
        }
    }

    #[test]
    fn a_share_requires_rows_by_prefix() {
        assert!(
            error("top --once --share 2%")
                .unwrap()
                .contains("--by prefix")
        );
        assert_eq!(error("top --once --by prefix --share 2%"), None);
    }
}
