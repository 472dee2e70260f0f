//! TCP ports of this host whose connections netfilter sends elsewhere: published ports of containers, `DNAT`, `REDIRECT`.
//!
//! A process may listen on such a port all the same, as Podman and Docker's proxy do. It is not the destination: a SYN cookie of
//! that listener is unknown to whoever is, and open connections are not this host's. Rules tell of a port before its first connection, connection tracking also of
//! rules that cannot be read.

mod rules;
mod target;
mod tracked;

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::process::{Command, Stdio};

use config::policy::{Config, Limit};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};

use crate::devices::netlink::dump;
use rules::Rules;
use target::target_of;
pub use target::{Target, Translations, add};

/// The commands that print a host's rules; those that are not installed made none.
const COMMANDS: [(&[&str], Format); 5] = [
    // Without the contents of named sets, which may be large.
    (&["nft", "-j", "-t", "list", "ruleset"], Format::Json),
    (&["iptables-save", "-t", "nat"], Format::Text),
    (&["ip6tables-save", "-t", "nat"], Format::Text),
    (&["iptables-legacy-save", "-t", "nat"], Format::Text),
    (&["ip6tables-legacy-save", "-t", "nat"], Format::Text),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Json,
    Text,
}

/// The ports that rules of nftables and iptables translate before routing. A rule that names no port is not followed.
#[must_use]
pub fn by_rules() -> Translations {
    let own = own_addresses().unwrap_or_default();
    let mut translations = Translations::new();
    for (command, format) in COMMANDS {
        let Some(text) = printed(command) else {
            continue;
        };
        let rules = match format {
            Format::Json => Rules::of_json(&text, &own),
            Format::Text => Rules::of_text(&text, &own),
        };
        for (port, target) in rules.translated(&own) {
            add(&mut translations, port, target);
        }
    }
    translations
}

/// The ports that connections were translated from which connection tracking knows at present.
///
/// # Errors
///
/// When the kernel does not tell, as without connection tracking.
pub fn by_connections() -> io::Result<Translations> {
    let own = own_addresses()?;
    let mut translations = Translations::new();
    for connection in tracked::translated()? {
        if own.contains(&connection.meant) {
            let target = target_of(connection.sent_to, &own);
            add(&mut translations, connection.port, target);
        }
    }
    Ok(translations)
}

/// Whether the config has limits to which translations make a difference.
#[must_use]
pub fn matter(config: &Config) -> bool {
    let matter = |limit: &Limit| limit.proves_by_cookies() || limit.concurrent.is_some();
    config.limits.iter().any(matter)
}

/// The ports of limits with `prove` that are left alone.
#[must_use]
pub fn unproven(config: &Config, translations: &Translations) -> Vec<u16> {
    let proves = |port: &&u16| {
        let of = |limit: &&Limit| limit.proves_by_cookies() && is_for(limit, **port);
        config.limits.iter().find(of).is_some()
    };
    translations.keys().filter(proves).copied().collect()
}

/// What limits have no effect on translated ports, for the operator.
#[must_use]
pub fn notes(config: &Config, translations: &Translations) -> Vec<String> {
    let unproven = unproven(config, translations);
    let unproven = (!unproven.is_empty()).then(|| {
        format!(
            "prove has no effect on port {}: netfilter sends its connections elsewhere, as to a container; use prove = \
             \"reset\" for it",
            list(&unproven)
        )
    });
    let uncounted = config
        .limits
        .iter()
        .filter(|limit| limit.concurrent.is_some());
    let uncounted = uncounted.filter_map(|limit| {
        let elsewhere: Vec<u16> = translations
            .iter()
            .filter(|(port, target)| **target == Target::Elsewhere && is_for(limit, **port))
            .map(|(port, _)| *port)
            .collect();
        (!elsewhere.is_empty()).then(|| {
            format!(
                "limit {:?} counts no connections to port {}: netfilter sends them to another host or a container; put the \
                 limit where they end, or write a rate",
                limit.name,
                list(&elsewhere)
            )
        })
    });
    unproven.into_iter().chain(uncounted).collect()
}

fn is_for(limit: &Limit, port: u16) -> bool {
    limit
        .ports
        .as_ref()
        .is_none_or(|ports| ports.contains(port))
}

fn list(ports: &[u16]) -> String {
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    ports.join(", ")
}

/// What a command prints; `None` if it is not installed or fails.
fn printed(command: &[&str]) -> Option<String> {
    let (program, arguments) = command.split_first()?;
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()
}

fn own_addresses() -> io::Result<BTreeSet<IpAddr>> {
    let mut own = BTreeSet::new();
    for reply in dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()))? {
        let RouteNetlinkMessage::NewAddress(message) = reply else {
            continue;
        };
        for attribute in message.attributes {
            // On a point-to-point link the latter is the peer's.
            if let AddressAttribute::Local(address) | AddressAttribute::Address(address) = attribute
            {
                own.insert(address);
            }
        }
    }
    Ok(own)
}
