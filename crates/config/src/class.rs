//! `[[class]]`.

use ipnet::IpNet;

use super::policy::{AgentConfig, Class, GeoKey, Multiplier, Prefix, Service};
use super::report::{Problems, Span};
use super::table::{self, Table};
use super::{geo_keys, prefix};

/// A class and its spans.
pub struct ReadClass {
    pub class: Class,
    pub name_span: Span,
    pub prefix_spans: Vec<(Prefix, Span)>,
    pub geo_spans: Vec<(GeoKey, Span)>,
    /// The table's span, if it has neither `sources` nor `asn` nor `country`.
    without_sources: Option<Span>,
}

pub fn read(mut table: Table<'_, '_>) -> Option<ReadClass> {
    table.required("name", "\"payer\"");
    let name = table.string("name", "\"payer\"");
    if let Some((text, span)) = &name {
        if text.is_empty() {
            table.problems.error(
                span.clone(),
                "empty name of a class",
                "write name = \"payer\"",
            );
        } else if *text == "default" {
            let help = "give it another name: sources in no class are in \"default\"";
            table
                .problems
                .error(span.clone(), "the name \"default\" is reserved", help);
        }
    }
    let has_sources = table.value("sources").is_some() || geo_keys::is_in(&mut table);
    let without_sources = (!has_sources).then(|| table.span());
    let mut prefix_spans = Vec::new();
    for (text, span) in table.strings("sources", "[\"198.51.100.0/24\"]") {
        match prefix::parse(text) {
            Ok(prefix) => prefix_spans.push((prefix, span)),
            Err(wrong) => table.problems.error(span, wrong.message, wrong.help),
        }
    }
    let geo_spans = geo_keys::keys(&mut table);
    let multiplier = table.value("multiplier").and_then(|value| {
        let multiplier = table::float(value).and_then(Multiplier::new);
        if multiplier.is_none() {
            let help = "write a number from 0.000001 to 1000000: multiplier = 5";
            table
                .problems
                .error(value.span(), "invalid multiplier", help);
        }
        multiplier
    });
    let unlimited = table
        .value("unlimited")
        .is_some_and(|value| match value.get_ref().as_bool() {
            Some(unlimited) => unlimited,
            None => {
                table.wrong_type("unlimited", value, "true or false");
                false
            }
        });
    if unlimited && multiplier.is_some() {
        let span = table.span_of("multiplier");
        table.problems.error(
            span,
            "multiplier conflicts with unlimited = true",
            "leave out multiplier or unlimited",
        );
    }
    let service = if unlimited {
        Service::Unlimited
    } else {
        Service::Multiplier(multiplier.unwrap_or(Multiplier::ONE))
    };
    table.finish();
    let (name, name_span) = name?;
    let sources = prefix_spans.iter().map(|(prefix, _)| *prefix).collect();
    let geo = geo_spans.iter().map(|(key, _)| *key).collect();
    let class = Class {
        name: name.to_owned(),
        sources,
        geo,
        service,
    };
    Some(ReadClass {
        class,
        name_span,
        prefix_spans,
        geo_spans,
        without_sources,
    })
}

/// A prefix and the index of its class; `None` for one of `never_limit`.
pub type ClassPrefix = (IpNet, Option<usize>);

/// The prefixes of classes and of `never_limit`, in order: each precedes all that it contains.
pub fn in_order(classes: &[ReadClass], agent: &AgentConfig) -> Vec<ClassPrefix> {
    let of_classes = classes.iter().enumerate().flat_map(|(nth, read)| {
        read.prefix_spans
            .iter()
            .map(move |(prefix, _)| (prefix.0.trunc(), Some(nth)))
    });
    let never = agent
        .never_limit
        .iter()
        .map(|prefix| (prefix.0.trunc(), None));
    let mut all: Vec<ClassPrefix> = of_classes.chain(never).collect();
    // As numbers, since there may be many.
    all.sort_unstable_by_key(|(prefix, class)| (bits(prefix), prefix.prefix_len(), *class));
    all
}

/// The address's bits, after those of all IPv4 addresses if it is of IPv6.
fn bits(prefix: &IpNet) -> (bool, u128) {
    match prefix {
        IpNet::V4(prefix) => (false, u32::from(prefix.addr()).into()),
        IpNet::V6(prefix) => (true, prefix.addr().into()),
    }
}

/// Checks that classes have sources, and warns where longer prefixes of other classes and of `never_limit` cover all their
/// prefixes, which are [`in_order`]. `listed` are the classes of lists.
pub fn check_reach(
    classes: &[ReadClass],
    prefixes: &[ClassPrefix],
    listed: &[&str],
    problems: &mut Problems,
) {
    let mut is_reached = vec![false; classes.len()];
    for (at, (prefix, class)) in prefixes.iter().enumerate() {
        let Some(class) = class.filter(|class| !is_reached[*class]) else {
            continue;
        };
        let inside = prefixes[at + 1..]
            .iter()
            .take_while(|(other, _)| prefix.contains(other));
        let taken: Vec<IpNet> = inside
            .filter(|(_, other)| *other != Some(class))
            .map(|(other, _)| *other)
            .collect();
        is_reached[class] = !IpNet::aggregate(&taken).contains(prefix);
    }
    // The prefixes of databases and lists are not known yet.
    let has_list = |read: &ReadClass| listed.contains(&read.class.name.as_str());
    let unreached = classes
        .iter()
        .zip(is_reached)
        .filter(|(read, is_reached)| !is_reached && read.geo_spans.is_empty() && !has_list(read));
    for (read, _) in unreached {
        let name = &read.class.name;
        if let Some(span) = &read.without_sources {
            let help = format!(
                "add sources = [\"198.51.100.0/24\"], or asn or country, or a [[ban_list]] with action = \"class:{name}\""
            );
            problems.error(span.clone(), "missing key \"sources\" in [[class]]", help);
            continue;
        }
        let (message, help) = if read.prefix_spans.is_empty() {
            (
                format!("class {name:?} has no effect: sources is empty"),
                "name its sources, or leave out the class",
            )
        } else {
            let message = format!(
                "class {name:?} has no effect: longer prefixes of others cover all of its sources"
            );
            (message, "leave out the class, or a prefix of the others")
        };
        problems.warning(read.name_span.clone(), message, help);
    }
}
