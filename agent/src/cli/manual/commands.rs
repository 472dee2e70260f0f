//! The reference page of the commands.

use std::fmt::Write as _;

use clap::{Arg, Command, CommandFactory as _};

use super::{about, is_built_in, value_names};
use crate::cli::arguments::Cli;
use crate::cli::as_called::NAME;

/// The page, in Markdown.
pub fn page() -> String {
    let mut command = Cli::command();
    command.build();
    let mut page =
        "# Commands\n\n`weir --config FILE` is short for `weir run --config FILE`.\n".to_owned();
    page.push_str("\n## Options of all commands\n\n");
    options(&mut page, command.get_arguments());
    page.push_str("\nA command refuses those that it does not use.\n");
    for verb in verbs(&command) {
        section(&mut page, NAME, verb);
    }
    page.push_str(
        "\n## Exit status\n\n| status | meaning |\n|---|---|\n| 0 | done |\n| 1 | failed while running, or a negative \
         result (`doctor`, `decide --exit-status`, a ban without effect) |\n| 2 | wrong usage or config; nothing was changed \
         |\n\n<!-- This page is made from agent/src/cli/arguments.rs: change it there. -->\n",
    );
    page
}

fn verbs(command: &Command) -> impl Iterator<Item = &Command> {
    command
        .get_subcommands()
        .filter(|verb| verb.get_name() != "help" && !verb.is_hide_set())
}

fn section(page: &mut String, parent: &str, verb: &Command) {
    let name = format!("{parent} {}", verb.get_name());
    let _ = write!(
        page,
        "\n## `{name}`\n\n{}.\n",
        about(verb).trim_end_matches('.')
    );
    let own: Vec<&Arg> = verb
        .get_arguments()
        .filter(|argument| !argument.is_global_set())
        .collect();
    if own.iter().any(|argument| !is_built_in(argument)) {
        page.push('\n');
        options(page, own.into_iter());
    }
    for inner in verbs(verb) {
        section(page, &name, inner);
    }
}

fn options<'a>(page: &mut String, arguments: impl Iterator<Item = &'a Arg>) {
    page.push_str("| option | meaning |\n|---|---|\n");
    for argument in arguments.filter(|argument| !is_built_in(argument) && !argument.is_hide_set()) {
        let short = argument.get_short().map(|short| format!("-{short}"));
        let long = argument.get_long().map(|long| format!("--{long}"));
        let mut name = short.into_iter().chain(long).collect::<Vec<_>>().join(", ");
        if name.is_empty() || argument.get_action().takes_values() {
            let space = if name.is_empty() { "" } else { " " };
            name = format!("{name}{space}{}", value_names(argument));
        }
        let mut text = argument
            .get_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        let defaults: Vec<_> = argument
            .get_default_values()
            .iter()
            .map(|value| value.to_string_lossy())
            .collect();
        if !defaults.is_empty()
            && argument.get_action().takes_values()
            && !argument.is_hide_default_value_set()
        {
            let _ = write!(text, " (default: {})", defaults.join(" "));
        }
        let _ = writeln!(page, "| `{name}` | {} |", text.replace('|', "\\|"));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::{env, fs};

    use super::*;

    #[test]
    fn the_page_is_the_one_in_docs() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/commands.md");
        if env::var_os("WEIR_REFERENCE").is_some_and(|value| value == "write") {
            fs::write(&path, page()).unwrap();
        }
        let fix = "run `WEIR_REFERENCE=write cargo test -p agent -p config --lib -- in_docs`";
        assert!(
            fs::read_to_string(path).is_ok_and(|text| text == page()),
            "docs/reference/commands.md is outdated: {fix}"
        );
    }
}
