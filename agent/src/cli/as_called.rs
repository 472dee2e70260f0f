//! Help and manual pages with the name by which the program was called.

use std::sync::LazyLock;

use clap::{Arg, Command, CommandFactory as _};
use host::PROGRAM;

use super::arguments::Cli;

/// The name in sources.
const NAME: &str = "agent";
static VERBS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let command = Cli::command();
    let verbs = command.get_subcommands();
    verbs.map(|verb| verb.get_name().to_owned()).collect()
});
/// The commit, if `cargo xtask` built this program.
const COMMIT: Option<&str> = option_env!("WEIR_COMMIT");

/// The command line, with this name in its help.
pub fn command() -> Command {
    let command = match PROGRAM.name() {
        NAME => Cli::command(),
        name => renamed(Cli::command(), name),
    };
    command
        .bin_name(PROGRAM.name())
        .long_version(Box::leak(long_version().into_boxed_str()) as &str)
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

/// Replaces the name in each command of a text: `agent reload`, but not "the agent reloads".
pub fn as_called(text: &str) -> String {
    with_name(text, PROGRAM.name())
}

fn renamed(mut command: Command, name: &'static str) -> Command {
    if command.get_name() == NAME {
        command = command.name(name);
    }
    let text = |text: Option<&clap::builder::StyledStr>| {
        text.map(|text| with_name(&text.to_string(), name))
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

fn with_name(text: &str, name: &str) -> String {
    if name == NAME {
        return text.to_owned();
    }
    let (mut named, mut end) = (String::with_capacity(text.len()), 0);
    for (start, word) in text.match_indices(NAME) {
        let after = start + word.len();
        if is_word(text, start, after) && text[after..].strip_prefix(' ').is_some_and(is_arguments)
        {
            named.push_str(&text[end..start]);
            named.push_str(name);
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
    text.starts_with("--") || VERBS.iter().any(|verb| verb == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_name_called_and_prose_keeps_its_own() {
        for (text, named) in [
            (
                "agent --config FILE is short",
                "weir --config FILE is short",
            ),
            ("keep it: agent confirm", "keep it: weir confirm"),
            ("`agent check` and agent top.", "`weir check` and weir top."),
            ("the agent reloads", "the agent reloads"),
            ("an agent is running", "an agent is running"),
            ("/usr/bin/agent --help", "/usr/bin/agent --help"),
            ("agent", "agent"),
        ] {
            assert_eq!(with_name(text, "weir"), named);
            assert_eq!(with_name(text, "agent"), text);
        }
    }

    /// The help names no command by another name.
    fn assert_named(command: &mut Command) {
        let help = command.render_long_help().to_string();
        assert_eq!(with_name(&help, "weir"), help);
        command.get_subcommands_mut().for_each(assert_named);
    }

    #[test]
    fn the_help_of_every_verb_has_the_name_called() {
        let mut command = renamed(Cli::command(), "weir").bin_name("weir");
        command.build();
        assert_named(&mut command);
    }
}
