//! Corrections of misspelt words.

/// The most known words that a message lists.
const MOST_LISTED: usize = 50;

/// The closest known word, or the known words.
pub fn suggestion(written: &str, known: &[&str]) -> String {
    let letters = written.chars().count();
    let nearest = known
        .iter()
        .filter(|word| {
            // At least the difference in length: a client may send 256 KiB.
            word.chars().count().abs_diff(letters) <= farthest(word)
        })
        .map(|word| (strsim::damerau_levenshtein(written, word), *word))
        .min();
    match nearest {
        // At least half of the letters differ: not a typo of this word.
        Some((distance, word))
            if distance <= farthest(word) && 2 * distance < word.len().max(written.len()) =>
        {
            format!("did you mean {word:?}?")
        }
        _ => format!("write one of {}", list(known)),
    }
}

/// The largest distance of a typo of this word.
const fn farthest(word: &str) -> usize {
    1 + word.len() / 3
}

/// The words, or the first of very many.
fn list(known: &[&str]) -> String {
    match known.len().saturating_sub(MOST_LISTED) {
        0 => known.join(", "),
        more => format!("{} and {more} more", known[..MOST_LISTED].join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_are_corrected_and_other_words_listed() {
        let known = ["burst", "rate", "größe"];
        for (written, corrected) in [
            ("burts", "did you mean \"burst\"?"),
            ("rates", "did you mean \"rate\"?"),
            ("grösse", "did you mean \"größe\"?"),
            ("algorithm", "write one of burst, rate, größe"),
            ("", "write one of burst, rate, größe"),
        ] {
            assert_eq!(suggestion(written, &known), corrected, "{written}");
        }
    }

    /// Of a client's longest request. A distance for each of these words would take hours.
    #[test]
    fn a_long_text_is_compared_with_no_known_word() {
        let names: Vec<String> = (0..2_000).map(|nth| format!("limit-{nth}")).collect();
        let known: Vec<&str> = names.iter().map(String::as_str).collect();
        let text = "limit-1".repeat(35_000);
        let corrected = suggestion(&text, &known);
        assert!(corrected.ends_with("limit-48, limit-49 and 1950 more"));
    }
}
