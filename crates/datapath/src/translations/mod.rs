//! TCP ports of this host whose connections netfilter sends elsewhere: published ports of containers, `DNAT`, `REDIRECT`.
//!
//! A process may listen on such a port all the same, as Podman and Docker's proxy do. It is not the destination: a SYN cookie of
//! that listener is unknown to whoever is, and open connections are not this host's. Rules tell of a port before its first
//! connection, connection tracking also of rules that cannot be read.

mod rules;
mod target;
mod tracked;

use std::collections::BTreeSet;
use std::io::Read as _;
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use std::{fs, io, thread};

use config::policy::{Config, Limit};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::AddressMessage;

use crate::devices::netlink::{dump, local};
use rules::Rules;
use target::target_of;
pub use target::{Target, Translations, unite};

/// nft and its rules, without the contents of named sets, which may be large.
const NFT: [&str; 5] = ["nft", "-j", "-t", "list", "ruleset"];
/// Commands that print iptables' rules in nftables: nft does not show all of their conditions.
const IN_NFTABLES: [&str; 2] = ["iptables-nft-save", "ip6tables-nft-save"];
/// Commands that print rules of the older iptables. They would load the kernel's module for them.
const LEGACY: [&str; 2] = ["iptables-legacy-save", "ip6tables-legacy-save"];
/// The tables of the older iptables that a kernel has, of both IP versions.
const LEGACY_TABLES: [&str; 2] = ["/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"];
/// A command that takes longer is ended, and its rules stay unknown.
const LONGEST: Duration = Duration::from_secs(2);
/// The most that is read of a command's output.
const MOST_BYTES: u64 = 16 << 20;

/// The result of reading a host's rules.
#[derive(Debug, Default)]
pub struct ReadRules {
    pub translations: Translations,
    /// Commands whose rules could not be read: others than these may be translated.
    pub unread: Vec<&'static str>,
}

/// The ports that rules of nftables and iptables translate before routing. A rule that names no port is not followed.
#[must_use]
pub fn by_rules() -> ReadRules {
    let own = own_addresses().unwrap_or_default();
    let mut read = ReadRules::default();
    let legacy = LEGACY
        .into_iter()
        .zip(LEGACY_TABLES)
        .filter(|(_, names)| has_nat(names))
        .map(|(program, _)| program);
    let of_iptables = IN_NFTABLES.into_iter().chain(legacy);
    let of_iptables = of_iptables.map(|program| (program, printed(&[program, "-t", "nat"])));
    for (program, text) in std::iter::once((NFT[0], printed(&NFT))).chain(of_iptables) {
        let rules = text.map(|text| match text {
            Some(text) if program == NFT[0] => Rules::of_json(&text, &own),
            Some(text) => Some(Rules::of_text(&text, &own)),
            None => Some(Rules::default()),
        });
        let Ok(Some(rules)) = rules else {
            read.unread.push(program);
            continue;
        };
        unite(&mut read.translations, rules.translated(&own));
    }
    read
}

/// Whether the older iptables has a table for translations.
fn has_nat(names: &str) -> bool {
    fs::read_to_string(names).is_ok_and(|names| names.lines().any(|name| name == "nat"))
}

/// The ports that connections were translated from which connection tracking knows at present.
///
/// # Errors
///
/// When the kernel does not tell, as without connection tracking.
pub fn by_connections() -> io::Result<Translations> {
    let own = own_addresses()?;
    let connections = tracked::translated()?.into_iter();
    // Connections of this host's own processes are translated by another chain.
    let received = connections.filter(|it| own.contains(&it.meant) && !own.contains(&it.from));
    let mut translations = Translations::new();
    unite(
        &mut translations,
        received.map(|it| (it.port, target_of(it.sent_to, &own))),
    );
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
        let mut limits = config.limits.iter();
        limits.any(|limit| limit.proves_by_cookies() && is_for(limit, **port))
    };
    translations.keys().filter(proves).copied().collect()
}

/// Notes for the operator on limits without effect on translated ports.
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

/// The output of a command; `None` if it is not installed.
fn printed(command: &[&str]) -> io::Result<Option<String>> {
    let [program, arguments @ ..] = command else {
        return Ok(None);
    };
    let spawned = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = match spawned {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        spawned => spawned?,
    };
    let (sender, receiver) = mpsc::channel();
    let started = child.stdout.take().map(|output| {
        let read = move || {
            let mut text = String::new();
            let result = output.take(MOST_BYTES).read_to_string(&mut text);
            // Nobody waits any more if it took too long.
            let _ = sender.send(result.map(|_| text));
        };
        thread::Builder::new()
            .name("weir-rules".to_owned())
            .spawn(read)
    });
    let text = match started {
        Some(Ok(_)) => receiver.recv_timeout(LONGEST).map_err(io::Error::other),
        _ => Err(io::Error::other("no thread to read its output")),
    };
    if text.is_err() {
        let _ = child.kill();
    }
    let status = child.wait()?;
    let text = text??;
    if status.success() {
        Ok(Some(text))
    } else {
        Err(io::Error::other(format!("{program}: {status}")))
    }
}

/// The addresses that others reach this host by.
fn own_addresses() -> io::Result<BTreeSet<IpAddr>> {
    let mut own = BTreeSet::new();
    for reply in dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()))? {
        let RouteNetlinkMessage::NewAddress(message) = reply else {
            continue;
        };
        own.extend(local(&message).filter(|address| !address.is_loopback()));
    }
    Ok(own)
}
