//! Reasons of operators' bans: one line of text each.

use thiserror::Error;

/// The longest reason, in characters.
pub const LONGEST: usize = 200;

/// An invalid reason.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum ReasonError {
    /// It has no text.
    #[error("the reason is empty: write why, such as \"brute force\", or leave out the reason")]
    Empty,
    #[error("the reason has {0} characters: write at most {LONGEST}")]
    TooLong(usize),
    /// A control character, which a terminal or a log would interpret.
    #[error("the reason has the control character {0:?}: write it in one line of plain text")]
    Control(char),
}

/// Checks a reason.
///
/// # Errors
///
/// When it is empty, too long, or contains control characters.
pub fn check(reason: &str) -> Result<(), ReasonError> {
    let length = reason.chars().count();
    if reason.trim().is_empty() {
        return Err(ReasonError::Empty);
    }
    if length > LONGEST {
        return Err(ReasonError::TooLong(length));
    }
    find_control(reason).map_or(Ok(()), |found| Err(ReasonError::Control(found)))
}

/// Whether a terminal prints a text as it is.
#[must_use]
pub fn is_printable(text: &str) -> bool {
    find_control(text).is_none()
}

/// The first character of a text that a terminal would interpret.
#[must_use]
pub fn find_control(text: &str) -> Option<char> {
    text.chars().find(|character| is_control(*character))
}

/// Control characters, line ends, and characters that reverse the text's direction or have no width.
fn is_control(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_line_of_text_that_a_terminal_prints_as_it_is() {
        for reason in [
            "brute force",
            "fail2ban: sshd",
            "gesperrt: zu viele Anfragen, siehe #12",
            "日本",
        ] {
            assert_eq!(check(reason), Ok(()), "{reason}");
        }
        assert_eq!(check(&"x".repeat(LONGEST)), Ok(()));
        assert_eq!(
            check(&"x".repeat(LONGEST + 1)),
            Err(ReasonError::TooLong(LONGEST + 1))
        );
        for empty in ["", " "] {
            assert_eq!(check(empty), Err(ReasonError::Empty));
        }
        for (reason, found) in [
            ("a\nb", '\n'),
            ("\u{1b}[2J", '\u{1b}'),
            ("a\u{202e}b", '\u{202e}'),
            ("a\u{9b}b", '\u{9b}'),
        ] {
            assert_eq!(
                check(reason),
                Err(ReasonError::Control(found)),
                "{reason:?}"
            );
        }
    }
}
