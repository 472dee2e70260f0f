//! `[[ban_list]]`.

use std::collections::HashMap;
use std::time::Duration;

use super::geo_keys;
use super::policy::{AgentConfig, BanList, Column, GeoKey, ListAction, ListFormat, ListSource};
use super::report::{Problems, Span};
use super::table::{Table, suggestion};

/// The most lists, as the kernel program numbers them.
pub const MOST_LISTS: usize = common::list::MOST_LISTS;
/// The range of `every`, in seconds.
const EVERY: (u64, u64) = (1, 30 * 24 * 60 * 60);
const DEFAULT_EVERY: u64 = 60 * 60;
/// The field of `format = "json"`.
const JSON_FIELD: &str = "cidr";
const NANOSECONDS: u64 = 1_000_000_000;

/// A list and the span of its name.
pub struct ReadBanList {
    pub list: BanList,
    pub name_span: Span,
    /// That of the table without `action`.
    pub action_span: Span,
    pub geo_spans: Vec<(GeoKey, Span)>,
}

pub fn read(mut table: Table<'_, '_>) -> Option<ReadBanList> {
    let name = table.name("ban list", "\"drop\"");
    if let Some((text, span)) = &name {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if text.len() > 64 || text.starts_with('.') || !text.chars().all(is_plain) {
            let help =
                "write at most 64 letters, digits, dots, dashes and underscores: name = \"drop\"";
            table.problems.error(
                span.clone(),
                format!("invalid name of a ban list {text:?}"),
                help,
            );
        }
    }
    let geo_spans = geo_keys::keys(&mut table);
    let source = source(&mut table, &geo_spans);
    if geo_keys::is_in(&mut table) {
        for key in ["format", "every"] {
            if table.value(key).is_some() {
                let message = format!(
                    "{key} conflicts with asn and country: their prefixes are in the databases of [geo]"
                );
                table
                    .problems
                    .error(table.span_of(key), message, format!("leave out {key}"));
            }
        }
    }
    let format = match table.string("format", "\"netset\"") {
        Some((text, span)) => format(text, span, table.problems),
        None => ListFormat::Plain,
    };
    let span = table.span_of("every");
    let every = table
        .time("every", "\"1h\"")
        .map_or(DEFAULT_EVERY, |nanoseconds| nanoseconds / NANOSECONDS);
    if !(EVERY.0..=EVERY.1).contains(&every) {
        table
            .problems
            .error(span, "invalid every", "write 1s to 30day: every = \"1h\"");
    }
    let (action, action_span) = action(&mut table);
    let allow_shrink =
        table
            .value("allow_shrink")
            .is_some_and(|value| match value.get_ref().as_bool() {
                Some(flag) => flag,
                None => {
                    table.wrong_type("allow_shrink", value, "true or false");
                    false
                }
            });
    table.finish();
    let (name, name_span) = name?;
    let every = Duration::from_secs(every);
    Some(ReadBanList {
        list: BanList {
            name: name.to_owned(),
            source: source?,
            format,
            every,
            action,
            allow_shrink,
        },
        name_span,
        action_span,
        geo_spans,
    })
}

/// `action` and its span.
fn action(table: &mut Table<'_, '_>) -> (ListAction, Span) {
    let Some((text, span)) = table.string("action", "\"ban\"") else {
        return (ListAction::Ban, table.span());
    };
    let action = match text.strip_prefix("class:") {
        Some(class) => ListAction::Class(class.to_owned()),
        None => {
            if text != "ban" {
                let help = "write action = \"ban\" or action = \"class:NAME\"";
                table
                    .problems
                    .error(span.clone(), format!("unknown action {text:?}"), help);
            }
            ListAction::Ban
        }
    };
    if matches!(action, ListAction::Class(_)) && geo_keys::is_in(table) {
        let message = format!("action {text:?} conflicts with asn and country");
        table.problems.error(
            span.clone(),
            message,
            "write asn and country in the [[class]]",
        );
    }
    (action, span)
}

fn source(table: &mut Table<'_, '_>, geo_spans: &[(GeoKey, Span)]) -> Option<ListSource> {
    let file = table.string("file", "\"/etc/weir/drop.netset\"");
    let url = table.string("url", "\"https://lists.example/drop.txt\"");
    if geo_keys::is_in(table) {
        for (key, text) in [("file", &file), ("url", &url)] {
            if let Some((_, span)) = text {
                let message = format!("{key} conflicts with asn and country");
                table.problems.error(
                    span.clone(),
                    message,
                    "leave out one of them: write two lists",
                );
            }
        }
        if geo_spans.is_empty() {
            let help = "write asn = [64500] or country = [\"XX\"]";
            table.problems.error(
                table.span(),
                "missing source of a ban list: asn and country are empty",
                help,
            );
        }
        return Some(ListSource::Geo(
            geo_spans.iter().map(|(key, _)| *key).collect(),
        ));
    }
    match (file, url) {
        (Some((text, span)), None) => {
            if text.starts_with('/') {
                return Some(ListSource::File(text.into()));
            }
            table.problems.error(
                span,
                format!("{text:?} is not an absolute path"),
                "begin it with /",
            );
            None
        }
        (None, Some((text, span))) => match http_client::check(text) {
            Ok(()) => Some(ListSource::Url(text.to_owned())),
            Err(why) => {
                let help = "write url = \"https://lists.example/drop.txt\"";
                table
                    .problems
                    .error(span, format!("invalid url: {why}"), help);
                None
            }
        },
        (Some(_), Some((_, span))) => {
            table
                .problems
                .error(span, "url conflicts with file", "leave out one of them");
            None
        }
        (None, None) => {
            // A value of the wrong type has been reported.
            if table.value("file").is_none() && table.value("url").is_none() {
                let help =
                    "write file = \"/etc/weir/drop.netset\", url = \"https://…\", asn or country";
                table.problems.error(
                    table.span(),
                    "missing source of a ban list: it has no file and no url",
                    help,
                );
            }
            None
        }
    }
}

fn format(text: &str, span: Span, problems: &mut Problems) -> ListFormat {
    match (text, text.strip_prefix("csv:")) {
        ("plain", _) => return ListFormat::Plain,
        ("netset", _) => return ListFormat::Netset,
        ("json", _) => return ListFormat::Json(JSON_FIELD.to_owned()),
        (_, Some(column)) if !column.is_empty() => match column.parse() {
            Ok(0) => {}
            Ok(number) => return ListFormat::Csv(Column::Number(number)),
            Err(_) => return ListFormat::Csv(Column::Name(column.to_owned())),
        },
        _ => {}
    }
    if let Some(field) = text.strip_prefix("json:").filter(|field| !field.is_empty()) {
        return ListFormat::Json(field.to_owned());
    }
    let help = "write \"plain\", \"netset\", \"json:\" and a field, or \"csv:\" and a column: format = \"json:cidr\", \
                \"csv:1\" or \"csv:address\"";
    problems.error(span, format!("invalid format {text:?}"), help);
    ListFormat::Plain
}

/// Checks names, classes and numbers of lists, and what they require.
pub fn check(
    lists: &[ReadBanList],
    classes: &[&str],
    agent: &AgentConfig,
    problems: &mut Problems,
) {
    let mut names = HashMap::new();
    for read in lists {
        if names.insert(&read.list.name, ()).is_some() {
            let message = format!("duplicate ban list name {:?}", read.list.name);
            problems.error(
                read.name_span.clone(),
                message,
                "give one of them another name",
            );
        }
        let Some(class) = read.list.class() else {
            continue;
        };
        if !classes.contains(&class) {
            let add = format!("add a [[class]] with name = {class:?}");
            let help = if classes.is_empty() {
                add
            } else {
                format!("{add}; {}", suggestion(class, classes))
            };
            problems.error(
                read.action_span.clone(),
                format!("unknown class {class:?}"),
                help,
            );
        }
    }
    let Some(first) = lists.first() else { return };
    if lists.len() > MOST_LISTS {
        let message = format!("too many ban lists: {}", lists.len());
        problems.error(
            first.name_span.clone(),
            message,
            format!("write at most {MOST_LISTS}"),
        );
    }
    let banning = lists
        .iter()
        .find(|read| read.list.action == ListAction::Ban);
    if let Some(first) = banning.filter(|_| agent.interfaces.is_empty()) {
        let message = format!("ban list {:?} requires interfaces", first.list.name);
        problems.error(
            first.name_span.clone(),
            message,
            "set [agent] interfaces = [\"eth0\"]",
        );
    }
}
