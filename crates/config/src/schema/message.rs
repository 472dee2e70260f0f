//! What errors say of a key: the kind of its value, and an example.

use super::{Absent, At, Key, Kind};
use crate::report::Problems;
use crate::table::article;

impl Key {
    /// A valid line: `interfaces = ["eth0"]`.
    #[must_use]
    pub fn example(&self) -> String {
        format!("{} = {}", self.name, self.example_of(&self.kind))
    }

    /// A correction: `write a list of strings: interfaces = ["eth0"]`.
    #[must_use]
    pub fn help(&self) -> String {
        let words = self.words(&self.kind, false);
        match self.kind {
            Kind::Integer(..) | Kind::Number(..) if self.examples.is_empty() => {
                format!("write {words}")
            }
            _ => format!("write {words}: {}", self.example()),
        }
    }

    /// Reports a value of the wrong type.
    pub fn wrong_type(&self, at: At<'_>, problems: &mut Problems) {
        self.not_a(at, self.help(), problems);
    }

    /// Reports a value of the wrong type, with another correction than that of the kind.
    pub fn not_a(&self, at: At<'_>, help: String, problems: &mut Problems) {
        let found = at.get_ref().type_str();
        let message = format!("{} is {} {found}", self.name, article(found));
        problems.error(at.span(), message, help);
    }

    /// The least and the most number, or time in seconds, of the key or else of a kind.
    #[must_use]
    pub fn bounds(&self, kind: &Kind) -> (f64, f64) {
        match kind {
            Kind::Integer(least, most) => self.range.unwrap_or((*least as f64, *most as f64)),
            Kind::Number(least, most) => self.range.unwrap_or((*least, *most)),
            _ => self.range.unwrap_or((0.0, f64::INFINITY)),
        }
    }

    /// A value of a kind, in TOML.
    fn example_of(&self, kind: &Kind) -> String {
        match kind {
            Kind::Boolean => "true".to_owned(),
            Kind::Integer(..) | Kind::Number(..) => match self.examples.first() {
                Some(number) => (*number).to_owned(),
                None => self.bounds(kind).0.to_string(),
            },
            Kind::Text(examples)
            | Kind::Rate(examples)
            | Kind::Size(examples)
            | Kind::Time(examples)
            | Kind::Percent(examples)
            | Kind::Path(examples)
            | Kind::Prefix(examples) => {
                let first = examples.first().or(self.examples.first());
                format!("{:?}", first.copied().unwrap_or("a"))
            }
            Kind::Words(words) => format!("{:?}", words()[0]),
            Kind::List(element) => format!("[{}]", self.example_of(element)),
            Kind::Table(keys) => {
                let is_shown = |(nth, key): &(usize, &Self)| {
                    *nth == 0 || matches!(key.default, Absent::Invalid)
                };
                let shown = keys.iter().enumerate().filter(is_shown);
                let shown: Vec<String> = shown.map(|(_, key)| key.example()).collect();
                format!("{{ {} }}", shown.join(", "))
            }
            Kind::OneKey(keys) => format!("{{ {} }}", keys[0].example()),
            Kind::Map(value) => format!("{{ name = {} }}", self.example_of(value)),
            Kind::Either(kinds) => {
                let is_plain = |kind: &&Kind| matches!(kind, Kind::Boolean | Kind::Integer(..));
                let telling = kinds.iter().find(|kind| !is_plain(kind));
                self.example_of(telling.unwrap_or(&kinds[0]))
            }
        }
    }

    /// A kind as a noun: `a whole number from 1 to 5`.
    fn words(&self, kind: &Kind, is_plural: bool) -> String {
        let noun = |one: &str, many: &str| if is_plural { many } else { one }.to_owned();
        match kind {
            Kind::Boolean => "true or false".to_owned(),
            Kind::Integer(..) | Kind::Number(..) => {
                let (least, most) = self.bounds(kind);
                let noun = match kind {
                    Kind::Integer(..) => noun("a whole number", "whole numbers"),
                    _ => noun("a number", "numbers"),
                };
                format!("{noun} from {least} to {most}")
            }
            Kind::Text(_) | Kind::Percent(_) => noun("a string", "strings"),
            Kind::Words(words) => {
                let noun = noun("one of", "words of");
                format!("{noun} {}", words().join(", "))
            }
            Kind::Rate(_) => noun("a rate", "rates"),
            Kind::Size(_) => noun("a size", "sizes"),
            Kind::Time(_) => noun("a time", "times"),
            Kind::Path(_) => noun("an absolute path", "absolute paths"),
            Kind::Prefix(_) => noun("an address or prefix", "addresses or prefixes"),
            Kind::List(element) => format!("a list of {}", self.words(element, true)),
            Kind::Table(_) | Kind::OneKey(_) | Kind::Map(_) => noun("a table", "tables"),
            // Of `OneOrMore`.
            Kind::Either([one, Kind::List(_)]) if !matches!(one, Kind::Boolean) => {
                format!("{}, or a list", self.words(one, is_plural))
            }
            Kind::Either(kinds) => {
                let word = |kind| match kind {
                    &Kind::Boolean => "true, false,".to_owned(),
                    kind => self.words(kind, is_plural),
                };
                kinds.iter().map(word).collect::<Vec<_>>().join(" or ")
            }
        }
    }
}
