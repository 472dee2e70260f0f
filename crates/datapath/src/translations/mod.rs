//! TCP ports of this host whose connections netfilter sends elsewhere: published ports of containers, `DNAT`, `REDIRECT`.
//!
//! A process may listen on such a port all the same, as Podman and Docker's proxy do. It is not the destination: a SYN cookie of
//! that listener is unknown to whoever is. Rules tell of a port before its first connection, connection tracking also of
//! rules that cannot be read.

mod rules;
mod tracked;

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::process::{Command, Stdio};

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};

use crate::devices::netlink::dump;
use rules::Rules;

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
pub fn by_rules() -> BTreeSet<u16> {
    let own = own_addresses().unwrap_or_default();
    let mut ports = BTreeSet::new();
    for (command, format) in COMMANDS {
        let Some(text) = printed(command) else {
            continue;
        };
        let rules = match format {
            Format::Json => Rules::of_json(&text),
            Format::Text => Rules::of_text(&text),
        };
        ports.extend(rules.translated(&own));
    }
    ports
}

/// The ports that connections were translated from which connection tracking knows at present.
///
/// # Errors
///
/// When the kernel does not tell, as without connection tracking.
pub fn by_connections() -> io::Result<BTreeSet<u16>> {
    let own = own_addresses()?;
    let entries = tracked::translated()?;
    Ok(entries
        .into_iter()
        .filter(|entry| own.contains(&entry.destination))
        .map(|entry| entry.port)
        .collect())
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
