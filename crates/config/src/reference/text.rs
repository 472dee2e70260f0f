//! The type and default of a key, in words.

use std::time::Duration;

use crate::human;
use crate::schema::{Absent, Key, Kind};

impl Key {
    /// The type and its range, in Markdown.
    #[must_use]
    pub fn type_in_words(&self) -> String {
        self.in_words(&self.kind)
    }

    fn in_words(&self, kind: &Kind) -> String {
        let with_examples = |what: &str, examples: &[&str]| {
            let examples = if examples.is_empty() {
                self.examples
            } else {
                examples
            };
            let examples: Vec<String> = examples
                .iter()
                .map(|example| format!("`\"{example}\"`"))
                .collect();
            if examples.is_empty() {
                what.to_owned()
            } else {
                format!("{what}, as {}", examples.join(", "))
            }
        };
        match kind {
            Kind::Boolean => "`true` or `false`".to_owned(),
            Kind::Integer(..) | Kind::Number(..) => {
                let (least, most) = self.bounds(kind);
                let noun = match kind {
                    Kind::Integer(..) => "integer",
                    _ => "number",
                };
                format!("{noun}, {} to {}", number(least), number(most))
            }
            Kind::Text(examples) => with_examples("string", examples),
            Kind::Words(words) => words()
                .iter()
                .map(|word| format!("`\"{word}\"`"))
                .collect::<Vec<_>>()
                .join(", "),
            Kind::Rate(examples) => with_examples("rate", examples),
            Kind::Size(examples) => with_examples("size", examples),
            Kind::Time(examples) => {
                let of = |seconds| human::time(Duration::from_secs_f64(seconds));
                let range = self
                    .range
                    .map(|(least, most)| format!("time, {} to {}", of(least), of(most)));
                with_examples(range.as_deref().unwrap_or("time"), examples)
            }
            Kind::Percent(examples) => with_examples("percentage", examples),
            Kind::Path(examples) => with_examples("absolute path", examples),
            Kind::Prefix(examples) => with_examples("address or prefix", examples),
            Kind::List(kind) => format!("list of: {}", self.in_words(kind)),
            Kind::Table(_) => "table".to_owned(),
            Kind::OneKey(_) => "table of one key".to_owned(),
            Kind::Map(value) => format!("table of names, each with: {}", self.in_words(value)),
            Kind::Either(kinds) => kinds
                .iter()
                .map(|kind| self.in_words(kind))
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
            Self::Default(_) => {
                format!("`{}`", self.toml().unwrap_or_default())
            }
            Self::Described(text) => text.to_owned(),
        }
    }

    /// The default in TOML, if it is a value.
    #[must_use]
    pub fn toml(self) -> Option<String> {
        match self {
            Self::Default(write) => Some(match write()? {
                toml::Value::Integer(value) => match u64::try_from(value) {
                    Ok(value) => grouped(value),
                    Err(_) => value.to_string(),
                },
                other => other.to_string(),
            }),
            Self::Invalid | Self::Unless(_) | Self::Described(_) => None,
        }
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
