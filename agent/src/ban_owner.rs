//! Owners of bans: the names of users and programs.

use thiserror::Error;

use crate::ban_reason::find_control;

/// The longest name, in characters.
pub const LONGEST: usize = 64;
/// The superuser, the owner of a ban by a client that names nobody.
pub const ROOT: &str = "root";
/// The owner that documents have for bans whose owner is not known.
pub const UNRECORDED: &str = "operator";

/// Names of owners that are no users, and the beginnings of others.
const RESERVED: [&str; 5] = [UNRECORDED, "crowdsec", "limit", "host", "list"];

/// An invalid name.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum OwnerError {
    #[error("the owner is empty: write a name, such as sshd, or leave out the owner")]
    Empty,
    #[error("the owner has {0} characters: write at most {LONGEST}")]
    TooLong(usize),
    /// A control character, which a terminal or a log would interpret.
    #[error("the owner has the control character {0:?}: write a name of plain text")]
    Control(char),
    #[error("the owner {0:?} begins or ends with a space")]
    Space(String),
    #[error("the owner {0:?} is reserved for bans that no user orders: choose another name")]
    Reserved(String),
}

/// Checks the name of a user or a program.
///
/// # Errors
///
/// When it is empty or too long, contains control characters, or is reserved.
pub fn check(name: &str) -> Result<(), OwnerError> {
    let length = name.chars().count();
    if name.trim().is_empty() {
        return Err(OwnerError::Empty);
    }
    if length > LONGEST {
        return Err(OwnerError::TooLong(length));
    }
    if let Some(found) = find_control(name) {
        return Err(OwnerError::Control(found));
    }
    if name.trim() != name {
        return Err(OwnerError::Space(name.to_owned()));
    }
    let is_reserved = RESERVED.contains(&name)
        || ["limit:", "host:", "list:"]
            .iter()
            .any(|prefix| name.starts_with(prefix));
    if is_reserved {
        return Err(OwnerError::Reserved(name.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_a_plain_name_that_no_limit_or_feed_has() {
        for name in [
            "root",
            "sshd",
            "nginx-http-auth",
            "EXAMPLE\\alice",
            "limits",
            "日本",
        ] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        for name in ["", " "] {
            assert_eq!(check(name), Err(OwnerError::Empty));
        }
        let long = "x".repeat(LONGEST + 1);
        assert_eq!(check(&long), Err(OwnerError::TooLong(LONGEST + 1)));
        for (name, found) in [
            ("a\nb", '\n'),
            ("\u{1b}[2J", '\u{1b}'),
            ("a\u{202e}b", '\u{202e}'),
        ] {
            assert_eq!(check(name), Err(OwnerError::Control(found)), "{name:?}");
        }
        assert_eq!(check(" a"), Err(OwnerError::Space(" a".to_owned())));
        for name in [
            "operator",
            "crowdsec",
            "limit",
            "limit:web",
            "host:a",
            "list:x",
            "list",
        ] {
            assert_eq!(check(name), Err(OwnerError::Reserved(name.to_owned())));
        }
    }
}
