//! `[[class]]`.

use super::policy::{Class, Multiplier, Prefix, Service};
use super::prefix;
use super::report::Span;
use super::table::{self, Table};

/// A class, and where its parts stand.
pub struct ReadClass {
    pub class: Class,
    pub name_span: Span,
    pub prefix_spans: Vec<(Prefix, Span)>,
}

pub fn read(mut table: Table<'_, '_>) -> Option<ReadClass> {
    table.required("name", "\"payer\"");
    let name = table.string("name", "\"payer\"");
    if let Some((text, span)) = &name {
        if text.is_empty() {
            table.problems.error(span.clone(), "a class needs a name", "write name = \"payer\"");
        } else if *text == "default" {
            let help = "give it another name: sources in no class are in \"default\"";
            table.problems.error(span.clone(), "the name \"default\" is taken", help);
        }
    }
    table.required("sources", "[\"198.51.100.0/24\"]");
    let mut prefix_spans = Vec::new();
    for (text, span) in table.strings("sources", "[\"198.51.100.0/24\"]") {
        match prefix::parse(text) {
            Ok(prefix) => prefix_spans.push((prefix, span)),
            Err(wrong) => table.problems.error(span, wrong.message, wrong.help),
        }
    }
    let multiplier = table.value("multiplier").and_then(|value| {
        let multiplier = table::float(value).and_then(Multiplier::new);
        if multiplier.is_none() {
            let help = "write a number from 0.000001 to 1000000: multiplier = 5";
            table.problems.error(value.span(), "the multiplier is not one", help);
        }
        multiplier
    });
    let unlimited = table.value("unlimited").is_some_and(|value| match value.get_ref().as_bool() {
        Some(unlimited) => unlimited,
        None => {
            table.wrong_type("unlimited", value, "true or false");
            false
        }
    });
    if unlimited && multiplier.is_some() {
        let span = table.span_of("multiplier");
        table.problems.error(span, "an unlimited class has nothing to multiply", "leave out multiplier or unlimited");
    }
    let service =
        if unlimited { Service::Unlimited } else { Service::Multiplier(multiplier.unwrap_or(Multiplier::ONE)) };
    table.finish();
    let (name, name_span) = name?;
    let sources = prefix_spans.iter().map(|(prefix, _)| *prefix).collect();
    Some(ReadClass { class: Class { name: name.to_owned(), sources, service }, name_span, prefix_spans })
}
