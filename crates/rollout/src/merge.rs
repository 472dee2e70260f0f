//! A host's own file together with the rules of its fleet.
//!
//! The host's file takes precedence: its tables stay as they are, and a limit, class, list, group or request of the same
//! name replaces the fleet's. The fleet's are added behind the host's own, and those of teams behind them.

use std::collections::BTreeMap;
use std::path::Path;

use config::report::{Problems, Report};
use toml::{Table, Value};

use crate::rules::{self, FLEET_TABLES, Rights};

/// A host's file with the rules of its fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// The text of the config, without comments.
    pub text: String,
    /// Rules of streams that the host's file, or an earlier stream, replaces.
    pub replaced: Vec<Replaced>,
}

/// A rule that is not in effect, since another one has its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    pub stream: String,
    pub table: &'static str,
    pub name: String,
}

/// The rules of a stream, as they are merged.
#[derive(Clone, Copy, Debug)]
pub struct Part<'t> {
    pub stream: &'t str,
    /// Those of the host's present file: it may have changed since the release was accepted.
    pub rights: &'t Rights,
    pub texts: &'t BTreeMap<String, String>,
}

/// Merges the rules of streams into a host's file.
///
/// # Errors
///
/// When one of the texts is no TOML, a stream may not set its rules, or the host's file has another value where the fleet has
/// a list of tables.
pub fn merge<'t>(
    file: &Path,
    own: &str,
    fleet: impl IntoIterator<Item = Part<'t>>,
) -> Result<Merged, Report> {
    let mut merged = parse(file, own)?;
    let mut replaced = Vec::new();
    // Rules of the host's file take precedence, and so do those of the first of several streams.
    for Part {
        stream,
        rights,
        texts,
    } in fleet
    {
        let folder = Path::new(stream);
        rules::check(folder, texts, rights)?;
        for (object, text) in texts {
            let mut rules = parse(&folder.join(object), text)?;
            for name in FLEET_TABLES {
                let Some(Value::Array(added)) = rules.remove(name) else {
                    continue;
                };
                let list = merged
                    .entry(name)
                    .or_insert_with(|| Value::Array(Vec::new()));
                let Value::Array(list) = list else {
                    return Err(no_list(file, own, name));
                };
                for rule in added {
                    match name_of(&rule) {
                        Some(rule) if list.iter().any(|own| name_of(own) == Some(rule)) => {
                            replaced.push(Replaced {
                                stream: stream.to_owned(),
                                table: name,
                                name: rule.to_owned(),
                            });
                        }
                        _ => list.push(rule),
                    }
                }
            }
        }
    }
    Ok(Merged {
        // Tables that were parsed can be written.
        text: toml::to_string(&merged).unwrap_or_default(),
        replaced,
    })
}

fn name_of(rule: &Value) -> Option<&str> {
    rule.get("name")?.as_str()
}

fn parse(file: &Path, text: &str) -> Result<Table, Report> {
    text.parse().map_err(|error: toml::de::Error| {
        let mut problems = Problems::default();
        let span = error.span().unwrap_or(0..0);
        problems.error(span, error.message(), "correct the TOML syntax here");
        Report::new(file, text, problems.errors)
    })
}

fn no_list(file: &Path, own: &str, name: &str) -> Report {
    let mut problems = Problems::default();
    let start = own.find(name).unwrap_or(0);
    let message =
        format!("{name:?} is no list of tables, so that the fleet's rules cannot be added");
    problems.error(
        start..start + name.len(),
        message,
        format!("write [[{name}]]"),
    );
    Report::new(file, own, problems.errors)
}
