//! Corrections of misspelt words.

/// The closest known word, or all of them.
pub fn suggestion(written: &str, known: &[&str]) -> String {
    let nearest = known
        .iter()
        .map(|word| (strsim::damerau_levenshtein(written, word), *word))
        .min();
    match nearest {
        // At least half of the letters differ: not a typo of this word.
        Some((distance, word))
            if distance <= 1 + word.len() / 3 && 2 * distance < word.len().max(written.len()) =>
        {
            format!("did you mean {word:?}?")
        }
        _ => format!("write one of {}", known.join(", ")),
    }
}
