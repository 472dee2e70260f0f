//! Checks that the command line takes each command of the documents.

use clap::Parser as _;
use clap::error::ErrorKind;
use testbed::documents;

use super::accepted::unused;
use super::arguments::Cli;
use super::as_called::{NAME, renamed_commands};

/// The name of the file that cargo builds.
const FILE: &str = "agent";
/// Decisions name commands as they were when they were made; the summary has their titles.
const HISTORY: [&str; 2] = ["docs/decisions/", "docs/SUMMARY.md"];
/// Files that packages install beside the pages, and files for contributors.
const OTHERS: [&str; 4] = ["ARCHITECTURE.md", "SECURITY.md", "config", "packaging"];

/// What the documents write for a value, and a value.
const PLACEHOLDERS: [(&str, &str); 7] = [
    ("IP", "192.0.2.1"),
    ("ADDRESS", "192.0.2.1"),
    ("PREFIX", "192.0.2.0/24"),
    ("TIME", "1h"),
    ("SHELL", "bash"),
    ("…", ""),
    ("...", ""),
];

/// How much of a command is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// All of it, to be typed.
    Whole,
    /// Perhaps its name alone, in a sentence.
    Named,
}

/// The words of each command of a shell's line; quotes join words.
fn commands(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut quote = None;
    for letter in line.chars().chain([' ', ';']) {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            (None, '|' | ';' | '&' | '>' | '<' | '(' | ')') => {
                // `2>` is no word and a redirection.
                words.extend(word.take().filter(|word| letter != '>' || word != "2"));
                commands.push(std::mem::take(&mut words));
            }
            _ => word.get_or_insert_default().push(letter),
        }
    }
    commands
}

/// The arguments of the commands of this program in a line.
fn of_the_agent(line: &str) -> Vec<Vec<String>> {
    let is_agent =
        |word: &String| [NAME, FILE].contains(&word.rsplit('/').next().unwrap_or_default());
    commands(line)
        .into_iter()
        .filter_map(|words| {
            let words: Vec<String> = words
                .into_iter()
                .skip_while(|word| word == "sudo" || word.contains('='))
                .collect();
            words.first().is_some_and(is_agent).then_some(words)
        })
        .collect()
}

/// A line of the documents as it can be typed: of alternatives in brackets the first.
fn typed(text: &str) -> String {
    let mut typed = String::new();
    let mut is_other = false;
    for letter in text.replace("<(command)", "FILE").chars() {
        match letter {
            '[' => {}
            ']' => is_other = false,
            '|' if text.contains('[') => is_other = true,
            _ if is_other => {}
            _ => typed.push(letter),
        }
    }
    typed
}

/// Why the command line refuses the arguments.
fn problem(arguments: &[String], extent: Extent) -> Option<String> {
    let value = |word: &String| {
        let found = PLACEHOLDERS
            .iter()
            .find(|(placeholder, _)| word == placeholder);
        found.map_or_else(|| word.clone(), |(_, value)| (*value).to_owned())
    };
    let words = arguments.iter().map(value).filter(|word| !word.is_empty());
    match Cli::try_parse_from(words) {
        Ok(cli) => unused(&cli.command?, &cli.options),
        Err(error) => {
            let is_prefix = matches!(
                error.kind(),
                ErrorKind::MissingRequiredArgument
                    | ErrorKind::MissingSubcommand
                    | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            ) || error.to_string().contains("a value is required");
            let is_help = matches!(
                error.kind(),
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
            );
            let is_fine = is_help || (extent == Extent::Named && is_prefix);
            (!is_fine).then(|| error.to_string())
        }
    }
}

/// The documents' commands of the agent: place, line and extent. Those of the tour are run, mistakes included.
fn documented() -> Vec<(String, String, Extent)> {
    let mut lines = Vec::new();
    for page in documents::pages() {
        let place = |line: usize| format!("{}:{line}", page.path);
        // `[agent] control` is a key of the config.
        let spans = page.spans().into_iter();
        let spans = spans.filter(|(_, text)| !text.starts_with('['));
        lines.extend(spans.map(|(line, text)| (place(line), typed(&text), Extent::Named)));
        if page.path != "docs/TOUR.md" {
            let commands = page.commands().into_iter();
            lines
                .extend(commands.map(|command| (place(command.line), command.text, Extent::Whole)));
        }
    }
    lines
}

#[test]
fn the_command_line_takes_what_the_documents_write() {
    let mut counts = [0, 0];
    let mut problems = Vec::new();
    for (place, line, extent) in documented() {
        for arguments in of_the_agent(&line) {
            counts[usize::from(extent == Extent::Whole)] += 1;
            let problem = problem(&arguments, extent);
            problems.extend(problem.map(|problem| format!("{place}: {line}\n{problem}")));
        }
    }
    println!(
        "{} commands in sentences, {} to be typed",
        counts[0], counts[1]
    );
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(counts[0] > 300 && counts[1] > 40, "{counts:?}");
}

/// The lines of code in the documents, and all lines of other files, each with its place.
fn lines_with_commands() -> Vec<(String, String)> {
    let mut lines = Vec::new();
    for page in documents::pages() {
        if HISTORY.iter().any(|start| page.path.starts_with(start)) {
            continue;
        }
        let mut add = |line: usize, text: &str| {
            lines.push((format!("{}:{line}", page.path), text.to_owned()));
        };
        for (line, text) in page.spans() {
            add(line, &text);
        }
        for block in page.blocks() {
            for (nth, text) in block.text.lines().enumerate() {
                add(block.line + 1 + nth, text);
            }
        }
    }
    for file in documents::files(&OTHERS, |_| true) {
        let numbered = file.text.lines().enumerate();
        lines.extend(
            numbered.map(|(nth, text)| (format!("{}:{}", file.path, nth + 1), text.to_owned())),
        );
    }
    lines
}

/// The line as it should be, if it names a command by the name of the file that cargo builds.
fn corrected(line: &str) -> Option<String> {
    // `-p agent` is the package of the sources, for cargo.
    let named: Vec<String> = line
        .split("-p agent")
        .map(|part| renamed_commands(part, FILE, NAME))
        .collect();
    let named = named.join("-p agent");
    (named != line).then_some(named)
}

#[test]
fn documents_name_commands_as_packages_install_them() {
    let lines = lines_with_commands();
    let problems: Vec<String> = lines
        .iter()
        .filter_map(|(place, line)| {
            let named = corrected(line)?;
            Some(format!("{place}: {line}\nwrite: {named}"))
        })
        .collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    let is_named = |(_, line): &&(String, String)| renamed_commands(line, NAME, FILE) != *line;
    assert!(lines.iter().filter(is_named).count() > 500);
}

#[test]
fn a_command_by_the_name_of_the_built_file_is_corrected() {
    for (line, named) in [
        ("agent check FILE", "weir check FILE"),
        (
            "sudo agent --config limits.toml",
            "sudo weir --config limits.toml",
        ),
        (
            "actionunban = agent unban <ip>",
            "actionunban = weir unban <ip>",
        ),
    ] {
        assert_eq!(corrected(line).as_deref(), Some(named));
    }
    for line in [
        "weir check FILE",
        "sudo target/release/agent --config limits.toml",
        "cargo test -p agent --test groups",
        "# limits while the agent runs",
        "agent",
    ] {
        assert_eq!(corrected(line), None, "{line}");
    }
}

#[test]
fn wrong_commands_are_problems() {
    let problems = |line: &str, extent| {
        let found = of_the_agent(&typed(line));
        assert_eq!(found.len(), 1, "{line}");
        problem(&found[0], extent)
    };
    for line in [
        "sudo target/release/agent shw 192.0.2.1",
        "weir ban IP --fro 1h",
        "X=1 weir top --once --sort soon | head",
        "weir allow --list --until",
        "weir man --json",
    ] {
        assert!(problems(line, Extent::Whole).is_some(), "{line}");
    }
    assert!(problems("weir ban", Extent::Whole).is_some());
    for line in [
        "weir ban",
        "weir ban --until",
        "weir check <(command)",
        "weir status --json 2> /dev/null",
        "weir decide --limit NAME [--source IP] [--peek | --wait soon]",
    ] {
        assert_eq!(problems(line, Extent::Named), None, "{line}");
    }
}
