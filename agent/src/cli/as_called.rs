//! Help and manual pages with the name by which the program was called.

use std::sync::LazyLock;

use clap::{Arg, Command, CommandFactory as _};
use host::PROGRAM;

use super::arguments::Cli;

/// The name in the texts of the sources, which packages give the program.
pub const NAME: &str = "weir";
static VERBS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let command = Cli::command();
    let verbs = command.get_subcommands();
    verbs.map(|verb| verb.get_name().to_owned()).collect()
});
/// The commit, if `cargo xtask` built this program.
const COMMIT: Option<&str> = option_env!("WEIR_COMMIT");

/// The command line, with this name in its help.
pub fn command() -> Command {
    named(PROGRAM.name()).long_version(Box::leak(long_version().into_boxed_str()) as &str)
}

/// The command line with this name; without a walk over its texts where it is that of the sources.
fn named(name: &'static str) -> Command {
    let command = match name {
        NAME => Cli::command(),
        name => renamed(Cli::command(), name),
    };
    command.bin_name(name)
}

/// Version, commit, target, and the hash of the kernel programs inside.
fn long_version() -> String {
    let libc = if cfg!(target_env = "musl") {
        "musl"
    } else {
        "gnu"
    };
    format!(
        "{}\ncommit: {}\ntarget: {}-unknown-linux-{libc}\nkernel programs: {}",
        env!("CARGO_PKG_VERSION"),
        COMMIT
            .filter(|commit| !commit.is_empty())
            .unwrap_or("unknown"),
        std::env::consts::ARCH,
        bpf::objects::HASH,
    )
}

/// The text with the name by which the program was called in its commands.
pub fn as_called(text: &str) -> String {
    renamed_commands(text, NAME, PROGRAM.name())
}

fn renamed(mut command: Command, name: &'static str) -> Command {
    if command.get_name() == NAME {
        command = command.name(name);
    }
    let text = |text: Option<&clap::builder::StyledStr>| {
        text.map(|text| renamed_commands(&text.to_string(), NAME, name))
    };
    let (about, long, after) = (
        text(command.get_about()),
        text(command.get_long_about()),
        text(command.get_after_help()),
    );
    if let Some(about) = about {
        command = command.about(about);
    }
    if let Some(long) = long {
        command = command.long_about(long);
    }
    if let Some(after) = after {
        command = command.after_help(after);
    }
    command
        .mut_args(|argument: Arg| match text(argument.get_help()) {
            Some(help) => argument.help(help),
            None => argument,
        })
        .mut_subcommands(|verb| renamed(verb, name))
}

/// Replaces a name of the program in each command of a text: `agent reload`, but not "the agent reloads".
pub fn renamed_commands(text: &str, from: &str, to: &str) -> String {
    if from == to {
        return text.to_owned();
    }
    let (mut named, mut end) = (String::with_capacity(text.len()), 0);
    for (start, word) in text.match_indices(from) {
        let after = start + word.len();
        if is_word(text, start, after) && text[after..].strip_prefix(' ').is_some_and(is_arguments)
        {
            named.push_str(&text[end..start]);
            named.push_str(to);
            end = after;
        }
    }
    named + &text[end..]
}

fn is_word(text: &str, start: usize, end: usize) -> bool {
    let is_part = |character: char| character.is_alphanumeric() || "/-_.".contains(character);
    !text[..start].ends_with(is_part) && !text[end..].starts_with(is_part)
}

/// Whether a text begins with a verb, or with an option.
fn is_arguments(text: &str) -> bool {
    let end = text.find(|character: char| !character.is_ascii_lowercase());
    let word = &text[..end.unwrap_or(text.len())];
    let is_option = |rest: &str| rest.starts_with(|next: char| next == '-' || next.is_alphabetic());
    text.strip_prefix('-').is_some_and(is_option) || VERBS.iter().any(|verb| verb == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_name_called_and_prose_keeps_its_own() {
        for (text, named) in [
            (
                "weir --config FILE is short",
                "agent --config FILE is short",
            ),
            ("weir -V", "agent -V"),
            ("keep it: weir confirm", "keep it: agent confirm"),
            ("`weir check` and weir top.", "`agent check` and agent top."),
            (
                "systemctl stop weir && weir detach",
                "systemctl stop weir && agent detach",
            ),
            (
                "weir.service and the group weir",
                "weir.service and the group weir",
            ),
            ("/usr/bin/weir --help", "/usr/bin/weir --help"),
            ("weir", "weir"),
        ] {
            assert_eq!(renamed_commands(text, "weir", "agent"), named);
            assert_eq!(renamed_commands(named, "agent", "weir"), text);
            assert_eq!(renamed_commands(text, "weir", "weir"), text);
        }
        let prose = "the agent reloads, an agent is running";
        assert_eq!(renamed_commands(prose, "agent", "weir"), prose);
    }

    /// The help names no command by this other name.
    fn assert_without(other: &str, command: &mut Command) {
        let help = command.render_long_help().to_string();
        assert_eq!(renamed_commands(&help, other, "another"), help);
        for verb in command.get_subcommands_mut() {
            assert_without(other, verb);
        }
    }

    #[test]
    fn the_help_of_every_verb_has_the_name_called() {
        for (name, other) in [("agent", "weir"), ("weir", "agent")] {
            let mut command = named(name);
            command.build();
            assert_without(other, &mut command);
        }
    }
}
