//! `min(a, b)` and `max(a, b, c)` in formulas, written as operators between what they choose from.
//!
//! The crate that evaluates formulas looks for operators at the start of names (`maximum` would be `max imum`) and does
//! not nest calls of two arguments, so that it is given signs that nobody can type instead of words.

use thiserror::Error;

/// The lesser of two.
pub const MIN: &str = "&";
/// The greater of two.
pub const MAX: &str = "|";

/// What is wrong with a call.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// It does not end.
    #[error("{0}( has no closing parenthesis")]
    Open(&'static str),
    /// There is nothing to choose.
    #[error("{0}( needs something between its parentheses and commas")]
    Empty(&'static str),
    /// A comma elsewhere.
    #[error("commas stand between what min( and max( choose from, and nowhere else")]
    Comma,
    /// A sign that is not the writer's to use.
    #[error("{0:?} means nothing here")]
    Sign(char),
}

/// The same formula without calls of `min` and `max`.
///
/// # Errors
///
/// When a call has no end or nothing in it, or a comma or one of the operators' signs is where it means nothing.
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
        let word = rest.split(|c: char| !is_of_a_name(c)).next().unwrap_or_default();
        let call = [("min", MIN), ("max", MAX)].into_iter().find(|(name, _)| *name == word);
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

/// What is between the commas up to the parenthesis that closes, and what is behind it.
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
