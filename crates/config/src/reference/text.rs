//! The type and default of a key, in words.

use super::{Absent, Kind};

impl Kind {
    /// The type and its range, in Markdown.
    #[must_use]
    pub fn description(&self) -> String {
        match self {
            Self::Boolean => "`true` or `false`".to_owned(),
            Self::Integer(least, most) => {
                format!("integer, {} to {}", grouped(*least), grouped(*most))
            }
            Self::Number(least, most) => format!("number, {} to {}", number(*least), number(*most)),
            Self::Text(examples) => with_examples("string", examples),
            Self::Words(words) => words()
                .iter()
                .map(|word| format!("`\"{word}\"`"))
                .collect::<Vec<_>>()
                .join(", "),
            Self::Rate(examples) => with_examples("rate", examples),
            Self::Size(examples) => with_examples("size", examples),
            Self::Time(examples) => with_examples("time", examples),
            Self::Percent(examples) => with_examples("percentage", examples),
            Self::Path(examples) => with_examples("absolute path", examples),
            Self::Prefix(examples) => with_examples("address or prefix", examples),
            Self::List(kind) => format!("list of: {}", kind.description()),
            Self::Table(_) => "table".to_owned(),
            Self::OneKey(_) => "table of one key".to_owned(),
            Self::Either(kinds) => kinds
                .iter()
                .map(Self::description)
                .collect::<Vec<_>>()
                .join("; or "),
        }
    }
}

impl Absent {
    /// The default, in Markdown.
    #[must_use]
    pub fn description(self) -> String {
        match self {
            Self::Invalid => "required".to_owned(),
            Self::Unless(other) => format!("required without `{other}`"),
            Self::Value(value) => format!("`{value}`"),
            Self::Described(text) => text.to_owned(),
        }
    }
}

fn with_examples(what: &str, examples: &[&str]) -> String {
    let examples: Vec<String> = examples
        .iter()
        .map(|example| format!("`\"{example}\"`"))
        .collect();
    if examples.is_empty() {
        what.to_owned()
    } else {
        format!("{what}, as {}", examples.join(", "))
    }
}

/// A number with underscores between thousands, as in TOML.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) && digits.len() > 4 {
            text.push('_');
        }
        text.push(digit);
    }
    text
}

fn number(number: f64) -> String {
    if number.fract() == 0.0 && number >= 0.0 {
        grouped(number as u64)
    } else {
        number.to_string()
    }
}
