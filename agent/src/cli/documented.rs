//! Checks that the command line takes each command of the documents.

use clap::Parser as _;
use clap::error::ErrorKind;
use testbed::documents;

use super::accepted::unused;
use super::arguments::Cli;

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
        |word: &String| ["agent", "weir"].contains(&word.rsplit('/').next().unwrap_or_default());
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

#[test]
fn wrong_commands_are_problems() {
    let problems = |line: &str, extent| {
        let found = of_the_agent(&typed(line));
        assert_eq!(found.len(), 1, "{line}");
        problem(&found[0], extent)
    };
    for line in [
        "sudo target/release/agent shw 192.0.2.1",
        "agent ban IP --fro 1h",
        "X=1 agent top --once --sort soon | head",
        "agent allow --list --until",
        "agent man --json",
    ] {
        assert!(problems(line, Extent::Whole).is_some(), "{line}");
    }
    assert!(problems("agent ban", Extent::Whole).is_some());
    for line in [
        "agent ban",
        "agent ban --until",
        "agent check <(command)",
        "agent status --json 2> /dev/null",
        "agent decide --limit NAME [--source IP] [--peek | --wait soon]",
    ] {
        assert_eq!(problems(line, Extent::Named), None, "{line}");
    }
}
