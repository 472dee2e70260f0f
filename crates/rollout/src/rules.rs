//! The rules of a release: which tables and limits a stream may set.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use config::policy::{FleetRules, Followed};
use config::report::{Problems, Report, Span};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::document::limit_of;

/// Tables that a fleet may set. All others are the host's: a publisher does not choose interfaces, sockets, commands of
/// `[[notify]]`, credentials or the fleet itself. It does choose the files and URLs of `[[ban_list]]`.
pub const FLEET_TABLES: [&str; 5] = ["ban_list", "class", "group", "limit", "request"];
/// The only one of a team. Classes, lists and costs change what the limits of others do; a group moves processes.
const TEAM_TABLES: [&str; 1] = ["limit"];

/// The tables and limits that releases of a stream may set on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Of the fleet's own stream: all tables of a fleet, without limits whose names begin like those of a team.
    Fleet { teams: Vec<String> },
    /// Of a team's stream: at most so many limits, whose names begin so.
    Team { prefix: String, limits: u64 },
}

impl Rights {
    /// All tables of a fleet.
    #[must_use]
    pub const fn all() -> Self {
        Self::Fleet { teams: Vec::new() }
    }

    /// The rights of a stream that a host's file follows.
    #[must_use]
    pub fn of(fleet: &FleetRules, followed: &Followed<'_>) -> Self {
        match followed.team {
            None => Self::Fleet {
                teams: (fleet.team.iter())
                    .map(|team| team.prefix.clone())
                    .collect(),
            },
            Some(team) => Self::Team {
                prefix: team.prefix.clone(),
                limits: team.limits,
            },
        }
    }

    const fn tables(&self) -> &[&'static str] {
        match self {
            Self::Fleet { .. } => &FLEET_TABLES,
            Self::Team { .. } => &TEAM_TABLES,
        }
    }
}

/// Checks the texts of a release, which errors name as files of `folder`. They are not validated as a config: that takes the
/// host's own file.
///
/// # Errors
///
/// When a text is no TOML, sets a table that it may not, or has a limit that the stream may not set.
pub fn check(
    folder: &Path,
    texts: &BTreeMap<String, String>,
    rights: &Rights,
) -> Result<(), Report> {
    let mut limits = 0;
    let mut seen = BTreeSet::new();
    for (object, text) in texts {
        let mut problems = Problems::default();
        if let Some(document) = parse(text, &mut problems) {
            check_tables(&document, object, rights.tables(), &mut problems);
            check_names(&document, &mut seen, &mut problems);
            for limit in tables(&document, "limit") {
                limits += 1;
                check_limit(limit, limits, rights, &mut problems);
            }
        }
        if !problems.errors.is_empty() {
            return Err(Report::new(&folder.join(object), text, problems.errors));
        }
    }
    Ok(())
}

/// Checks the limit that is the `nth` of its release, from 1.
fn check_limit(limit: &Spanned<DeValue<'_>>, nth: u64, rights: &Rights, problems: &mut Problems) {
    let Some((name, span)) = text_of(limit, "name") else {
        // It is reported already.
        return;
    };
    match rights {
        Rights::Fleet { teams } => {
            if let Some(prefix) = teams
                .iter()
                .find(|prefix| name.starts_with(prefix.as_str()))
            {
                let message = format!("limit {name:?} has the prefix {prefix:?} of a team");
                problems.error(
                    span,
                    message,
                    "rename it, or publish it to the team's stream",
                );
            }
            if let Some((replaced, span)) = text_of(limit, "replaces")
                && teams
                    .iter()
                    .any(|prefix| replaced.starts_with(prefix.as_str()))
            {
                let message = format!("limit {name:?} replaces {replaced:?} of a team");
                let help = "leave out `replaces`; a team's limits are its own";
                problems.error(span, message, help);
            }
        }
        Rights::Team { prefix, limits } => {
            if !name.starts_with(prefix.as_str()) {
                let message = format!("limit {name:?} does not begin with {prefix:?}");
                let help = "rename it; a team sets limits with its own prefix only";
                problems.error(span, message, help);
            } else if nth > *limits {
                let message = format!("limit {name:?} is above the {limits} limits of this team");
                let help = "remove some, or raise `limits` of the team in [fleet]";
                problems.error(span, message, help);
            }
            if let Some((replaced, span)) = text_of(limit, "replaces")
                && !replaced.starts_with(prefix.as_str())
            {
                let message = format!(
                    "limit {name:?} replaces {replaced:?}, which does not begin with {prefix:?}"
                );
                let help = "leave out `replaces`; a team replaces its own limits only";
                problems.error(span, message, help);
            }
            if let Some((cluster, span)) = text_of(limit, "cluster")
                && cluster == "keys"
            {
                let message = format!("limit {name:?} of a team has cluster = \"keys\"");
                let help = "write cluster = \"shares\", or publish it to the fleet's stream: it would exclude limits and classes of others";
                problems.error(span, message, help);
            }
        }
    }
}

/// The document of a text without syntax errors.
fn parse<'t>(text: &'t str, problems: &mut Problems) -> Option<DeTable<'t>> {
    let (document, errors) = DeTable::parse_recoverable(text);
    match errors.first() {
        None => Some(document.into_inner()),
        Some(error) => {
            let span = error.span().unwrap_or(0..0);
            problems.error(span, error.message(), "correct the TOML syntax here");
            None
        }
    }
}

fn check_tables(document: &DeTable<'_>, object: &str, tables: &[&str], problems: &mut Problems) {
    for (name, value) in document {
        let (key, span) = (name.get_ref(), name.span());
        if !tables.contains(&key.as_ref()) {
            let message = format!("table {key:?} cannot be set by this release");
            let help = format!(
                "leave it to the host's own file; a release may have {}",
                tables.join(", ")
            );
            problems.error(span, message, help);
        } else if !is_list_of_tables(value) {
            let help = format!("write [[{key}]]");
            problems.error(span, format!("{key:?} is no list of tables"), help);
        }
    }
    let Some(limit) = limit_of(object) else {
        return;
    };
    let found = names(document, "limit");
    if document.len() != 1 || found.len() != 1 || found[0].0 != limit {
        let message = format!("{object} has other contents than limit {limit:?}");
        let help = format!("write one [[limit]] with name = {limit:?}");
        problems.conflict(0..0, message, help);
    }
}

fn is_list_of_tables(value: &Spanned<DeValue<'_>>) -> bool {
    let list = value.get_ref().as_array();
    list.is_some_and(|list| list.iter().all(|one| one.get_ref().is_table()))
}

/// Names are unique over all objects of a release; a config with two of one name would be refused without its position.
fn check_names(
    document: &DeTable<'_>,
    seen: &mut BTreeSet<(&'static str, String)>,
    problems: &mut Problems,
) {
    for table in FLEET_TABLES {
        for (name, span) in names(document, table) {
            if name.is_empty() {
                let message = format!("a [[{table}]] has no name");
                problems.error(span, message, "add name = \"NAME\"");
            } else if seen.contains(&(table, name.clone())) {
                let message = format!("duplicate [[{table}]] {name:?} in this release");
                problems.error(span, message, "leave out one of them");
            } else {
                seen.insert((table, name));
            }
        }
    }
}

/// The tables of a list; none where there is none.
fn tables<'d, 't>(
    document: &'d DeTable<'t>,
    table: &str,
) -> impl Iterator<Item = &'d Spanned<DeValue<'t>>> {
    let list = document
        .get(table)
        .and_then(|list| list.get_ref().as_array());
    list.into_iter().flat_map(|list| list.iter())
}

/// The text of a table's key, with its span.
fn text_of(table: &Spanned<DeValue<'_>>, key: &str) -> Option<(String, Span)> {
    let value = table.get_ref().as_table()?.get(key)?;
    Some((value.get_ref().as_str()?.to_owned(), value.span()))
}

/// The names in a list of tables with their spans; empty where there is none.
fn names(document: &DeTable<'_>, table: &str) -> Vec<(String, Span)> {
    tables(document, table)
        .map(|table| text_of(table, "name").unwrap_or_else(|| (String::new(), table.span())))
        .collect()
}
