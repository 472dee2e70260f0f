//! `min(a, b)` and `max(a, b, c)` in formulas, rewritten to infix operators.
//!
//! `exmex` matches operators at the start of names (`maximum` would be `max imum`) and does not nest calls of two
//! arguments. So it gets signs that formulas must not contain.

use thiserror::Error;

/// The operator for the smaller operand.
pub const MIN: &str = "&";
/// The operator for the larger operand.
pub const MAX: &str = "|";

/// The functions of one argument.
const FUNCTIONS: [&str; 3] = ["ceil", "floor", "round"];

/// An error in a call.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// The closing parenthesis is missing.
    #[error("{0}( has no closing parenthesis")]
    Open(&'static str),
    /// The call has no arguments.
    #[error("{0}( has an empty argument")]
    Empty(&'static str),
    /// A comma outside of a call.
    #[error("unexpected comma: only min( and max( take several arguments")]
    Comma,
    /// A function that does not exist.
    #[error("unknown function {0:?}; use ceil, floor, round, min or max")]
    Unknown(String),
    /// A reserved sign.
    #[error("unexpected {0:?}")]
    Sign(char),
}

/// Rewrites calls of `min` and `max` to infix operators.
///
/// # Errors
///
/// When a call is not closed or empty, or a comma or a reserved sign is out of place.
pub fn to_infix(text: &str) -> Result<String, CallError> {
    if let Some(sign) = text.chars().find(|sign| ['&', '|'].contains(sign)) {
        return Err(CallError::Sign(sign));
    }
    translate(text)
}

fn translate(text: &str) -> Result<String, CallError> {
    let mut infix = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = rest
            .split(|c: char| !is_of_a_name(c))
            .next()
            .unwrap_or_default();
        let call = [("min", MIN), ("max", MAX)]
            .into_iter()
            .find(|(name, _)| *name == word);
        let (length, after) = (word.len(), rest[word.len()..].trim_start());
        match call {
            Some((name, sign)) if after.starts_with('(') => {
                let (arguments, behind) = arguments(&after[1..]).ok_or(CallError::Open(name))?;
                let mut chosen = Vec::new();
                for argument in arguments {
                    if argument.trim().is_empty() {
                        return Err(CallError::Empty(name));
                    }
                    chosen.push(format!("({})", translate(argument)?));
                }
                infix.push_str(&format!("({})", chosen.join(sign)));
                rest = behind;
            }
            None if after.starts_with('(')
                && word.starts_with(char::is_alphabetic)
                && !FUNCTIONS.contains(&word) =>
            {
                return Err(CallError::Unknown(word.to_owned()));
            }
            _ if length > 0 => {
                infix.push_str(word);
                rest = &rest[length..];
            }
            _ if first == ',' => return Err(CallError::Comma),
            _ => {
                infix.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
    }
    Ok(infix)
}

/// The comma-separated arguments up to the closing parenthesis, and the rest.
fn arguments(text: &str) -> Option<(Vec<&str>, &str)> {
    let mut found = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (at, sign) in text.char_indices() {
        match sign {
            '(' => depth += 1,
            ')' if depth > 0 => depth -= 1,
            ')' => {
                found.push(&text[start..at]);
                return Some((found, &text[at + 1..]));
            }
            ',' if depth == 0 => {
                found.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    None
}

fn is_of_a_name(sign: char) -> bool {
    sign.is_alphanumeric() || sign == '_'
}
