//! `[geo]`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::policy::{BanList, Class, GeoKey, GeoKind, Key, Limit, Networks};
use super::report::{Problems, Span};
use super::schema::{self, Located, Table};

/// Databases of networks and countries, for `asn` and `country` in `[[class]]` and `[[ban_list]]`. Both are files in
/// MaxMind's format (mmdb), of at most 256 MiB. The agent compiles their prefixes into the policy, so a packet costs the
/// same as with prefixes in limits.toml. Changes of a file take effect within seconds. A file that is missing or damaged
/// changes nothing: the prefixes in effect stay.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(heading = "[geo]", since = "0.1.0")]
#[table(
    example = "[geo]\nasn = \"/var/lib/GeoIP/asn.mmdb\"\ncountry = \"/var/lib/GeoIP/country.mmdb\"\n\n\
                   [[class]]\nname = \"partner\"\nasn = [64500]\nmultiplier = 5\n\n\
                   [[ban_list]]\nname = \"region\"\ncountry = [\"XX\"]\n\n\
                   [agent]\ninterfaces = [\"eth0\"]\n\n\
                   [[limit]]\nname = \"packets-per-source\"\nrate = \"1000/s\"\n"
)]
pub struct Geo {
    /// The file with autonomous systems. Records have `autonomous_system_number` or `asn`.
    #[key(absent = "none; `asn` in a class or ban list requires it")]
    #[key(examples = ["/var/lib/GeoIP/asn.mmdb"])]
    pub asn: Option<PathBuf>,
    /// The file with countries. Records have `country.iso_code`, `country_code` or `country`.
    #[key(absent = "none; `country` in a class or ban list requires it")]
    #[key(examples = ["/var/lib/GeoIP/country.mmdb"])]
    pub country: Option<PathBuf>,
    /// In a policy in effect, all prefixes of the database of networks, if a limit has `key = "asn"`.
    #[key(skip)]
    pub networks: Networks,
}

impl Geo {
    /// The file of a database.
    #[must_use]
    pub fn file(&self, kind: GeoKind) -> Option<&Path> {
        match kind {
            GeoKind::Asn => self.asn.as_deref(),
            GeoKind::Country => self.country.as_deref(),
        }
    }

    const fn key_of(kind: GeoKind) -> schema::Key {
        match kind {
            GeoKind::Asn => Self::ASN,
            GeoKind::Country => Self::COUNTRY,
        }
    }
}

/// Checks that each key has a database and is in one class, and that each database is used.
pub fn check(
    read: Option<&Located<'_, Geo>>,
    classes: &[Located<'_, Class>],
    lists: &[Located<'_, BanList>],
    limits: &[Located<'_, Limit>],
    problems: &mut Problems,
) {
    let mut owners: HashMap<GeoKey, &str> = HashMap::new();
    let of_classes: Vec<Vec<(GeoKey, Span)>> = classes
        .iter()
        .map(|class| located(class, &Class::ASN, &Class::COUNTRY))
        .collect();
    let of_lists: Vec<Vec<(GeoKey, Span)>> = lists
        .iter()
        .map(|list| located(list, &BanList::ASN, &BanList::COUNTRY))
        .collect();
    for (class, spans) in classes.iter().zip(&of_classes) {
        for (key, span) in spans {
            if let Some(other) = owners.insert(*key, &class.table.name) {
                let message = format!("duplicate source {key}: it is in class {other:?} already");
                problems.error(
                    span.clone(),
                    message,
                    "write it once: a source has one class",
                );
            }
        }
    }
    let of_limits: Vec<Vec<(GeoKey, Span)>> = limits
        .iter()
        .map(|limit| located(limit, &Limit::ASN, &Limit::COUNTRY))
        .collect();
    for spans in of_lists.iter().chain(&of_limits) {
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
    let used: Vec<&(GeoKey, Span)> = of_classes
        .iter()
        .chain(&of_lists)
        .chain(&of_limits)
        .flatten()
        .collect();
    let by_network = limits.iter().find(|read| read.table.uses_networks());
    for kind in GeoKind::ALL {
        let of_limit = by_network.filter(|_| kind == GeoKind::Asn);
        let name = kind.key();
        let first = used.iter().find(|(key, _)| key.kind() == kind);
        // Also of an invalid value.
        let configured = read.and_then(|read| read.find(&Geo::key_of(kind)));
        if let (Some(limit), None) = (of_limit, configured) {
            let help = "set [geo] asn = \"/var/lib/GeoIP/asn.mmdb\"";
            let message = "key = \"asn\" requires a database: [geo] asn is not set";
            let key = if limit.table.key == Key::Asn {
                Limit::KEY
            } else {
                Limit::LEVELS
            };
            problems.error(limit.span_of(&key), message, help);
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
            (None, Some(written)) if of_limit.is_none() => {
                let message =
                    format!("[geo] {name} has no effect: no class, ban list or limit has {name}");
                problems.warning(
                    written.span(),
                    message,
                    format!("leave it out, or add {name} to a class, a ban list or a limit"),
                );
            }
            _ => {}
        }
    }
}

/// The entries of `asn` and `country` with their spans.
fn located<T>(
    read: &Located<'_, T>,
    asn: &schema::Key,
    country: &schema::Key,
) -> Vec<(GeoKey, Span)> {
    let asn = read.elements(asn).into_iter();
    let country = read.elements(country).into_iter();
    asn.map(|(number, span)| (GeoKey::Asn(number), span))
        .chain(country.map(|(code, span)| (GeoKey::Country(code), span)))
        .collect()
}

#[cfg(test)]
mod tests;
