//! A found limit as `[[limit]]`.

use std::collections::BTreeSet;
use std::path::Path;

use super::found::{Action, FoundLimit};
use super::names::{quoted_list, unique};
use super::prefixes::short;
use super::rates::{Allowed, allowed};
use super::rule::{Conditions, Family, Key, Protocol, Unit};

/// The table, and notes about it.
///
/// # Errors
///
/// When Weir has no such limit; the text says why.
pub fn limit_toml(
    of: &FoundLimit,
    names: &mut BTreeSet<String>,
) -> Result<(String, Vec<String>), String> {
    let FoundLimit {
        limit, conditions, ..
    } = of;
    let Some(Allowed {
        rate,
        burst,
        mut notes,
    }) = allowed(limit, conditions.protocol)
    else {
        return Err("its rate or burst is too large for a limit".to_owned());
    };
    let mut before = names.clone();
    let name = unique(
        &limit.name.clone().unwrap_or_else(|| named(conditions)),
        &mut before,
    );
    let mut lines = vec!["[[limit]]".to_owned(), format!("name = \"{name}\"")];
    if let Some(protocol) = conditions.protocol {
        lines.push(format!("protocol = \"{}\"", protocol_name(protocol)));
    }
    if let Some(ports) = &conditions.ports {
        lines.push(format!("ports = {}", ports_toml(ports)));
    }
    if let Some(sources) = sources(of) {
        lines.push(format!("sources = [{sources}]"));
    }
    let interfaces: Vec<&String> = conditions
        .interfaces
        .iter()
        .flatten()
        .filter(|name| *name != "lo")
        .collect();
    if !interfaces.is_empty() {
        lines.push(format!(
            "interfaces = [{}]",
            quoted_list(interfaces.into_iter().cloned())
        ));
    }
    match limit.key {
        Key::All if limit.unit == Unit::Open => {
            lines.push("key = \"all\"".to_owned());
            notes.push("All sources share this limit.".to_owned());
        }
        Key::All => {
            lines.push("key = \"interface\"".to_owned());
            notes.push("All sources share this limit, on each interface.".to_owned());
        }
        Key::Source { prefix, has_port } => {
            if has_port {
                lines.push("key = \"source-port\"".to_owned());
            }
            match conditions.family {
                Some(Family::V4) => {
                    lines.extend(prefix.map(|prefix| format!("ipv4_prefix = {prefix}")));
                }
                _ => lines.push(format!("ipv6_prefix = {}", prefix.unwrap_or(128))),
            }
        }
    }
    match (of.is_syn, limit.unit) {
        (true, _) => lines.push("unit = \"connections\"".to_owned()),
        (false, Unit::Bytes) => lines.push("unit = \"bytes\"".to_owned()),
        (false, Unit::Packets | Unit::Open) => {}
    }
    let burst = if limit.unit == Unit::Bytes {
        format!("\"{burst}\"")
    } else {
        burst
    };
    if limit.unit == Unit::Open {
        lines.push(format!("concurrent = {}", limit.count));
        notes.push(
            "Weir counts connections to sockets of this host, until they are closed.".to_owned(),
        );
    } else {
        lines.extend([format!("rate = \"{rate}\""), format!("burst = {burst}")]);
    }
    match of.action {
        Action::Drop => {}
        Action::Reject => lines.push("action = \"reject\"".to_owned()),
        Action::Mark(mark) => lines.push(format!("action = {{ mark = {{ mark = {mark} }} }}")),
    }
    if limit.is_open_when_full && limit.key != Key::All {
        lines.push("on_full = \"pass\"".to_owned());
    }
    let text = format!("{}\n", lines.join("\n"));
    check(&text)?;
    *names = before;
    Ok((text, notes))
}

/// A limit on connections with bans, as a jail has them.
pub fn jail_limit(
    name: &str,
    ports: &[String],
    (attempts, seconds): (u64, u64),
    escalate: Option<(u64, u64)>,
) -> Option<String> {
    let name = unique(name, &mut BTreeSet::new());
    let ports = ports.iter().map(|port| {
        if port.parse::<u16>().is_ok() {
            port.clone()
        } else {
            format!("{port:?}")
        }
    });
    let block = format!(
        "[[limit]]\nname = \"{name}\"\nprotocol = \"tcp\"\nports = [{}]\nunit = \"connections\"\nrate = \"{attempts}/{seconds}s\"\n\
         burst = {attempts}\n",
        ports.collect::<Vec<_>>().join(", ")
    );
    let banned = escalate.map(|(within, ban)| {
        format!("{block}escalate = {{ after = 1, within = \"{within}s\", ban = \"{ban}s\" }}\n")
    });
    banned
        .into_iter()
        .chain([block])
        .find(|block| check(block).is_ok())
}

/// Whether the table is valid.
fn check(text: &str) -> Result<(), String> {
    let interfaces = "[agent]\ninterfaces = [\"*\"]\n";
    match config::parse(Path::new("limits.toml"), &format!("{interfaces}{text}")) {
        Ok(_) => Ok(()),
        Err(report) => {
            let message = report
                .errors
                .first()
                .map(|error| error.message.clone())
                .unwrap_or_default();
            Err(format!("Weir has no such limit: {message}"))
        }
    }
}

fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Icmp => "icmp",
    }
}

/// A name for a limit without one: protocol and first port.
fn named(conditions: &Conditions) -> String {
    let protocol = conditions.protocol.map_or("all", protocol_name);
    let port = conditions.ports.as_ref().and_then(|ports| ports.first());
    port.map_or_else(
        || protocol.to_owned(),
        |(first, _)| format!("{protocol}-{first}"),
    )
}

fn ports_toml(ports: &[(u16, u16)]) -> String {
    let port = |(first, last): &(u16, u16)| {
        if first == last {
            first.to_string()
        } else {
            format!("\"{first}-{last}\"")
        }
    };
    match ports {
        [one] => port(one),
        many => format!("[{}]", many.iter().map(port).collect::<Vec<_>>().join(", ")),
    }
}

/// The sources of the limit: prefixes of the rule, or all of its family.
fn sources(of: &FoundLimit) -> Option<String> {
    match (&of.sources, of.conditions.family) {
        (Some(prefixes), _) => Some(quoted_list(
            ipnet::IpNet::aggregate(prefixes).iter().map(short),
        )),
        (None, Some(Family::V4)) => Some("\"0.0.0.0/0\"".to_owned()),
        (None, Some(Family::V6)) => Some("\"!0.0.0.0/0\"".to_owned()),
        (None, None) => None,
    }
}
