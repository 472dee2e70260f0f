//! The command line as it is parsed, with an example in the help of each verb.

use clap::{Command, FromArgMatches as _, Parser as _};
use host::PROGRAM;

use super::arguments::Cli;
use super::as_called;
use super::suggestions;

/// A command line for each verb, as an operator types it.
const EXAMPLES: [&str; 40] = [
    "run --config /etc/weir/limits.toml",
    "check /etc/weir/limits.toml",
    "status",
    "limits --json",
    "top --once -n 10",
    "events --limit dns --since 10m",
    "show 203.0.113.7",
    "trace 203.0.113.7",
    "groups",
    "groups freeze builds",
    "groups thaw builds",
    "groups kill builds",
    "usage --group builds --last 7d",
    "reset 203.0.113.7 --limit dns",
    "decide --limit api --key user=alice --cost 3",
    "ban 203.0.113.7 --for 10m --reason \"scans ports\"",
    "unban 203.0.113.7",
    "bans",
    "allow 203.0.113.7 --for 1h --reason \"load test\"",
    "disallow 203.0.113.7",
    "reload --diff",
    "try limits.next.toml --for 5m",
    "confirm",
    "revert",
    "record --for 24h",
    "replay --config limits.toml --local 192.0.2.10 monday.pcap",
    "suggest --html day.html",
    "import --lists /etc/weir/lists rules sets",
    "detach --config /etc/weir/limits.toml",
    "fleet publish rules.toml --to https://rules.example.net/web --key fleet.key --canary 1% --bake 10m",
    "fleet status --to https://rules.example.net/web",
    "fleet abort --to https://rules.example.net/web --key fleet.key --reason \"complaints\"",
    "fleet history --to https://rules.example.net/web",
    "fleet diff rules.toml --to https://rules.example.net/web",
    "fleet keygen fleet.key",
    "notify test pager",
    "doctor --config /etc/weir/limits.toml",
    "completions bash",
    "man limits.toml",
    "schema",
];
/// Parses the command line; exits if it is invalid or asks for help.
#[must_use]
pub fn parsed() -> Cli {
    // Names and examples are for help and errors alone.
    Cli::try_parse().unwrap_or_else(|_| {
        let matches = command().try_get_matches();
        matches
            .and_then(|matches| Cli::from_arg_matches(&matches))
            .unwrap_or_else(|error| suggestions::without_risky(error).exit())
    })
}

/// The command line, with an example in each verb's help.
fn command() -> Command {
    EXAMPLES.iter().fold(as_called::command(), |command, line| {
        with_example(command, line, line)
    })
}

/// Adds the example to the verb that the words name.
fn with_example(command: Command, words: &str, line: &str) -> Command {
    let (word, rest) = words.split_once(' ').unwrap_or((words, ""));
    if command.find_subcommand(word).is_some() {
        return command.mut_subcommand(word, |verb| with_example(verb, rest, line));
    }
    let before = command
        .get_after_help()
        .map(|help| format!("{help}\n\n"))
        .unwrap_or_default();
    command.after_help(format!("{before}Example: {PROGRAM} {line}"))
}

#[cfg(test)]
mod tests {
    use super::super::accepted::unused;
    use super::*;

    /// Quotes join words.
    fn words(line: &str) -> Vec<String> {
        let part = |(nth, part): (usize, &str)| match nth % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect(),
            _ => vec![part.to_owned()],
        };
        line.split('"').enumerate().flat_map(part).collect()
    }

    #[test]
    fn each_example_is_a_valid_command_line() {
        for line in EXAMPLES {
            let cli = Cli::try_parse_from(words(&format!("agent {line}")));
            let cli = cli.unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!(unused(&cli.command.unwrap(), &cli.options), None, "{line}");
        }
    }

    fn verbs_without_an_example(command: &mut Command, name: &str, found: &mut Vec<String>) {
        if !command.has_subcommands() || name == "agent groups" {
            let example = format!("Example: {name}");
            if !command.render_help().to_string().contains(&example) {
                found.push(name.to_owned());
            }
        }
        let verbs = command.get_subcommands_mut();
        for verb in verbs.filter(|verb| verb.get_name() != "help") {
            let name = format!("{name} {}", verb.get_name());
            verbs_without_an_example(verb, &name, found);
        }
    }

    #[test]
    fn each_verb_has_an_example() {
        let mut found = Vec::new();
        verbs_without_an_example(&mut command(), "agent", &mut found);
        assert_eq!(found, Vec::<String>::new());
    }
}
