//! The rule for names of limits, classes and groups.

use crate::human;
use crate::report::Wrong;
use crate::schema::Key;

/// The most characters of a name.
pub const LONGEST: usize = 64;

/// Checks that a name has 1 to [`LONGEST`] characters, none of which is a control character.
///
/// # Errors
///
/// When it has not; `what` is what it names.
pub fn check(text: &str, what: &str, key: &Key) -> Result<(), Wrong> {
    if text.is_empty() {
        let help = format!("write {}", key.example());
        return Err(Wrong::new(format!("empty name of a {what}"), help));
    }
    if text.chars().count() > LONGEST || text.chars().any(char::is_control) {
        return Err(Wrong::new(
            format!("invalid name of a {what} {:?}", human::cut(text, LONGEST)),
            format!("write at most {LONGEST} characters, without control characters"),
        ));
    }
    Ok(())
}
