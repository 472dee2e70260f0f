//! Text from outside, made fit for a terminal, a log and one line of JSON.

/// The longest text that is kept, in characters.
const LONGEST: usize = 120;

/// A text without control characters, line ends, and characters that reverse the text's direction or have no width; cut
/// to [`LONGEST`].
pub(crate) fn plain(text: &str) -> String {
    let is_control = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    text.chars()
        .take(LONGEST)
        .map(|c| if is_control(c) { '?' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_line_and_short() {
        assert_eq!(plain("crowdsecurity/ssh-bf"), "crowdsecurity/ssh-bf");
        assert_eq!(plain("a\n\u{1b}[2J\u{202e}b"), "a??[2J?b");
        assert_eq!(plain(&"x".repeat(5_000)).len(), LONGEST);
    }
}
