//! Suggestions for mistyped words: only verbs and options that change nothing.

use clap::error::{ContextKind, ContextValue};

/// Verbs that may be suggested for a typo: they change nothing.
const READING: [&str; 13] = [
    "bans",
    "check",
    "completions",
    "doctor",
    "events",
    "groups",
    "help",
    "limits",
    "man",
    "show",
    "status",
    "suggest",
    "top",
];
/// Options that extend what a verb changes.
const WIDENING: [&str; 2] = ["--all", "--force"];

/// Removes destructive verbs and options from an error's suggestions.
pub(super) fn without_risky(mut error: clap::Error) -> clap::Error {
    keep_suggestions(&mut error, ContextKind::SuggestedSubcommand, |verb| {
        READING.contains(&verb)
    });
    keep_suggestions(&mut error, ContextKind::SuggestedArg, |option| {
        !WIDENING.contains(&option)
    });
    error
}

fn keep_suggestions(error: &mut clap::Error, kind: ContextKind, is_safe: impl Fn(&str) -> bool) {
    let kept = match error.remove(kind) {
        None => return,
        Some(ContextValue::Strings(words)) => {
            words.into_iter().filter(|word| is_safe(word)).collect()
        }
        Some(ContextValue::String(word)) if is_safe(&word) => vec![word],
        Some(_) => Vec::new(),
    };
    match kind {
        _ if kept.is_empty() => None,
        // The formatter expects one option and a list of verbs.
        ContextKind::SuggestedArg => error.insert(kind, ContextValue::String(kept.concat())),
        _ => error.insert(kind, ContextValue::Strings(kept)),
    };
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::super::arguments::Cli;
    use super::*;

    /// The suggestions of an error.
    fn tip(arguments: &[&str]) -> Option<String> {
        let error = Cli::try_parse_from([&["agent"], arguments].concat()).err()?;
        let text = without_risky(error).to_string();
        text.lines()
            .find(|line| line.contains("tip:"))
            .map(str::to_owned)
    }

    /// Every variant of the word with one letter missing or two swapped.
    fn typos(word: &str) -> Vec<String> {
        let letters: Vec<char> = word.chars().collect();
        let short = (0..letters.len()).map(|nth| {
            let mut letters = letters.clone();
            letters.remove(nth);
            letters.into_iter().collect()
        });
        let swapped = (1..letters.len()).map(|nth| {
            let mut letters = letters.clone();
            letters.swap(nth - 1, nth);
            letters.into_iter().collect()
        });
        short.chain(swapped).collect()
    }

    #[test]
    fn suggestions_offer_nothing_that_changes_anything() {
        let command = Cli::command();
        let verbs: Vec<&str> = command
            .get_subcommands()
            .map(clap::Command::get_name)
            .collect();
        let changing: Vec<&str> = verbs
            .iter()
            .copied()
            .filter(|verb| !READING.contains(verb))
            .collect();
        assert!(
            changing.contains(&"detach") && changing.contains(&"unban"),
            "{changing:?}"
        );
        for typo in verbs.iter().flat_map(|verb| typos(verb)) {
            let Some(tip) = tip(&[&typo]) else { continue };
            for verb in &changing {
                assert!(!tip.contains(&format!("'{verb}'")), "{typo}: {tip}");
            }
        }
        assert!(tip(&["statsu"]).is_some_and(|tip| tip.contains("'status'")));
        for arguments in [
            &["detahc"][..],
            &["groups", "kil", "web"],
            &["unban", "--al"],
            &["ban", "192.0.2.1", "--forc"],
        ] {
            assert!(
                tip(arguments).is_none_or(|tip| !tip.contains("similar")),
                "{arguments:?}"
            );
        }
    }
}
