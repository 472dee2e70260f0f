//! `ports` of `[[limit]]`.

use super::policy::PortSet;
use super::services;
use super::table::{Table, Value, integer};

pub fn ports(table: &mut Table<'_, '_>) -> Option<PortSet> {
    let example = "[443, \"8000-8100\", \"ssh\"]";
    let value = table.value("ports")?;
    let values = value
        .get_ref()
        .as_array()
        .map_or_else(|| vec![value], |array| array.iter().collect());
    if values.is_empty() {
        let span = table.span_of("ports");
        table.problems.error(
            span,
            "ports is empty, so that nothing would be limited",
            "name one, or leave ports out for all",
        );
    }
    let mut ranges = Vec::new();
    for value in values {
        match range(value) {
            Some(range) => ranges.push(range),
            None => {
                let help = format!(
                    "write ports from 1 to 65535, ranges (the lower first) or services: ports = {example}"
                );
                table.problems.error(
                    value.span(),
                    "invalid port: not a number, a range or a known service",
                    help,
                );
            }
        }
    }
    Some(PortSet::new(ranges))
}

fn range(value: Value<'_>) -> Option<(u16, u16)> {
    let port = |number: u64| u16::try_from(number).ok().filter(|port| *port > 0);
    if let Some(number) = integer(value) {
        return port(number).map(|port| (port, port));
    }
    let text = value.get_ref().as_str()?;
    if let Some(port) = services::port(text) {
        return Some((port, port));
    }
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let parse = |text: &str| text.trim().parse().ok().and_then(port);
    Some((parse(first)?, parse(last)?)).filter(|(first, last)| first <= last)
}
