//! `[geo]`.

use std::collections::HashMap;
use std::path::PathBuf;

use super::ban_list::ReadBanList;
use super::class::ReadClass;
use super::policy::{Geo, GeoKey, GeoKind, Key, Networks};
use super::read_limit::ReadLimit;
use super::report::{Problems, Span};
use super::table::Table;

/// `[geo]` and the spans of its keys.
#[derive(Default)]
pub struct ReadGeo {
    pub geo: Geo,
    /// Also those of invalid values.
    spans: Vec<(GeoKind, Span)>,
}

pub fn read(root: &mut Table<'_, '_>) -> ReadGeo {
    let Some(value) = root.value("geo") else {
        return ReadGeo::default();
    };
    let Some(content) = value.get_ref().as_table() else {
        root.wrong_type("geo", value, "a table: [geo]");
        return ReadGeo::default();
    };
    let mut table = Table::new(content, value.span(), "[geo]", root.problems);
    let mut spans = Vec::new();
    let mut file = |kind, key, example| -> Option<PathBuf> {
        spans.push((kind, table.value(key)?.span()));
        let (text, span) = table.string(key, example)?;
        if text.starts_with('/') {
            return Some(text.into());
        }
        table.problems.error(
            span,
            format!("{text:?} is not an absolute path"),
            "begin it with /",
        );
        None
    };
    let asn = file(GeoKind::Asn, "asn", "\"/var/lib/GeoIP/asn.mmdb\"");
    let country = file(
        GeoKind::Country,
        "country",
        "\"/var/lib/GeoIP/country.mmdb\"",
    );
    table.finish();
    ReadGeo {
        geo: Geo {
            asn,
            country,
            networks: Networks::default(),
        },
        spans,
    }
}

/// Checks that each key has a database and is in one class, and that each database is used.
pub fn check(
    read: &ReadGeo,
    classes: &[ReadClass],
    lists: &[ReadBanList],
    limits: &[ReadLimit],
    problems: &mut Problems,
) {
    let mut owners: HashMap<GeoKey, &str> = HashMap::new();
    for class in classes {
        for (key, span) in &class.geo_spans {
            if let Some(other) = owners.insert(*key, &class.class.name) {
                let message = format!("duplicate source {key}: it is in class {other:?} already");
                problems.error(
                    span.clone(),
                    message,
                    "write it once: a source has one class",
                );
            }
        }
    }
    let of_limits = || limits.iter().map(|read| &read.scope_spans.geo);
    for spans in lists.iter().map(|list| &list.geo_spans).chain(of_limits()) {
        for (nth, (key, span)) in spans.iter().enumerate() {
            if spans[..nth].iter().any(|(other, _)| other == key) {
                problems.error(
                    span.clone(),
                    format!("duplicate source {key}"),
                    "write it once",
                );
            }
        }
    }
    let used: Vec<&(GeoKey, Span)> = classes
        .iter()
        .flat_map(|class| &class.geo_spans)
        .chain(lists.iter().flat_map(|list| &list.geo_spans))
        .chain(of_limits().flatten())
        .collect();
    let by_network = limits.iter().find(|read| read.limit.uses_networks());
    for kind in GeoKind::ALL {
        let of_limit = by_network.filter(|_| kind == GeoKind::Asn);
        let name = kind.key();
        let first = used.iter().find(|(key, _)| key.kind() == kind);
        let configured = read.spans.iter().find(|(of, _)| *of == kind);
        if let (Some(limit), None) = (of_limit, configured) {
            let help = "set [geo] asn = \"/var/lib/GeoIP/asn.mmdb\"";
            let message = "key = \"asn\" requires a database: [geo] asn is not set";
            let span = if limit.limit.key == Key::Asn {
                &limit.key_span
            } else {
                &limit.levels_span
            };
            problems.error(span.clone(), message, help);
        }
        match (first, configured) {
            (Some((key, span)), None) => {
                let help = format!("set [geo] {name} = \"/var/lib/GeoIP/{name}.mmdb\"");
                problems.error(
                    span.clone(),
                    format!("{key} requires a database: [geo] {name} is not set"),
                    help,
                );
            }
            (None, Some((_, span))) if of_limit.is_none() => {
                let message =
                    format!("[geo] {name} has no effect: no class, ban list or limit has {name}");
                problems.warning(
                    span.clone(),
                    message,
                    format!("leave it out, or add {name} to a class, a ban list or a limit"),
                );
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
