//! TCP ports of this host whose connections netfilter sends elsewhere: published ports of containers, `DNAT`, `REDIRECT`.
//!
//! A process may listen on such a port all the same, as Podman and Docker's proxy do. It is not the destination: a SYN cookie of
//! that listener is unknown to whoever is, and open connections are not this host's. Rules tell of a port before its first
//! connection, connection tracking also of rules that cannot be read.

mod named;
mod rules;
mod target;
mod tracked;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use config::human;
use config::policy::{Config, Limit, ProtocolFilter, Signal};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::AddressMessage;

use crate::devices::netlink::{dump, local};
use named::Name;
use rules::{Rules, Translated};
use target::target_of;
pub use target::{Target, Translations, unite};
pub use tracked::{NewConnections, Translated as TranslatedConnection};

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
/// The most ports that a note names.
const MOST_NAMED: usize = 20;
/// The most that is read of a command's output.
const MOST_BYTES: u64 = 16 << 20;

/// The module of the kernel that translates by nftables' rules, also those of newer iptables.
const NAT_OF_NFTABLES: &str = "/sys/module/nft_chain_nat";

/// The kernel's setting: whether connection tracking reports connections.
const EVENTS: &str = "net.netfilter.nf_conntrack_events";
const EVENTS_PATH: &str = "/proc/sys/net/netfilter/nf_conntrack_events";

/// The result of reading a host's rules.
#[derive(Clone, Debug, Default)]
pub struct ReadRules {
    /// By the command that printed them.
    of_commands: BTreeMap<&'static str, Translations>,
    pub unknown: Unknown,
}

/// Reasons why further ports may be translated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unknown {
    /// Commands that failed.
    failed: Vec<&'static str>,
    /// Commands that are not installed, although the kernel has rules that they would print.
    missing: Vec<&'static str>,
    /// A rule has unknown ports.
    of_a_rule: bool,
    /// Besides another reason: connection tracking does not report connections.
    is_unreported: bool,
}

impl Unknown {
    /// Why ports may be translated that are not known to be; `None` if there are none.
    #[must_use]
    pub fn why(&self) -> Option<String> {
        let mut reasons = Vec::new();
        if !self.failed.is_empty() {
            reasons.push(format!("{} failed", self.failed.join(", ")));
        }
        if !self.missing.is_empty() {
            reasons.push(format!(
                "the kernel may have rules of {}, which is not installed",
                self.missing.join(", ")
            ));
        }
        if self.of_a_rule {
            reasons.push(
                "a rule of netfilter names no ports, more than 1,024, or a set that cannot be listed"
                    .to_owned(),
            );
        }
        if self.is_unreported {
            reasons.push(format!(
                "{EVENTS} is 0, so that no port is known by a connection that fails"
            ));
        }
        (!reasons.is_empty()).then(|| {
            format!(
                "ports that netfilter sends elsewhere, as to a container, may be unknown: {}",
                reasons.join("; ")
            )
        })
    }
}

impl ReadRules {
    fn add(&mut self, command: &'static str, translated: Translated, by_iptables: bool) {
        self.unknown.of_a_rule |= translated.has_unknown_ports(by_iptables);
        self.of_commands.insert(command, translated.ports);
    }

    /// The translated ports.
    #[must_use]
    pub fn translations(&self) -> Translations {
        let mut all = Translations::new();
        for of_command in self.of_commands.values() {
            unite(
                &mut all,
                of_command.iter().map(|(port, target)| (*port, *target)),
            );
        }
        all
    }

    /// Keeps what commands printed before that have failed now, also in part: their rules may still be in effect.
    #[must_use]
    pub fn after(mut self, before: Self) -> Self {
        for (command, translations) in before.of_commands {
            if self.unknown.failed.contains(&command) {
                unite(self.of_commands.entry(command).or_default(), translations);
            }
        }
        self
    }
}

/// The ports that rules of nftables and iptables translate before routing.
#[must_use]
pub fn by_rules() -> ReadRules {
    let own = own_addresses().unwrap_or_default();
    let mut read = ReadRules::default();
    let legacy = LEGACY
        .into_iter()
        .zip(LEGACY_TABLES)
        .filter(|(_, names)| has_nat(names))
        .map(|(program, _)| program);
    let of_iptables = |program| -> io::Result<Option<Rules>> {
        let printed = printed(&[program, "-t", "nat"])?;
        Ok(printed.map(|text| Rules::of_text(&text, &own)))
    };
    for program in IN_NFTABLES.into_iter().chain(legacy) {
        match of_iptables(program) {
            Ok(Some(rules)) => read.add(program, rules.translated(&own), true),
            Ok(None) if LEGACY.contains(&program) => read.unknown.missing.push(program),
            Ok(None) => {}
            Err(_) => read.unknown.failed.push(program),
        }
    }
    let is_printed = |program| read.of_commands.contains_key(program);
    let by_iptables = IN_NFTABLES.into_iter().all(is_printed);
    let is_silent = !IN_NFTABLES.into_iter().any(is_printed);
    match rules_of_nftables(&own) {
        Ok(Some((rules, is_whole))) => {
            read.add(NFT[0], rules.translated(&own), by_iptables);
            if !is_whole {
                read.unknown.failed.push(NFT[0]);
            }
        }
        Ok(None) if is_silent && Path::new(NAT_OF_NFTABLES).exists() => {
            read.unknown.missing.push(NFT[0]);
        }
        Ok(None) => {}
        Err(_) => read.unknown.failed.push(NFT[0]),
    }
    read.unknown.is_unreported = read.unknown.why().is_some()
        && fs::read_to_string(EVENTS_PATH).is_ok_and(|value| value.trim() == "0");
    read
}

/// The rules of nftables, and whether all of their sets were listed; `None` if its program is not installed.
fn rules_of_nftables(own: &BTreeSet<IpAddr>) -> io::Result<Option<(Rules, bool)>> {
    let start = Instant::now();
    let Some(text) = printed(&NFT)? else {
        return Ok(None);
    };
    let mut is_whole = true;
    let mut list = |name: &Name| {
        let kind = name.kind.word();
        let command = [
            NFT[0],
            "-j",
            "list",
            kind,
            &name.family,
            &name.table,
            &name.name,
        ];
        let text = if start.elapsed() < LONGEST {
            printed(&command).ok().flatten()
        } else {
            None
        };
        let listed = text.and_then(|text| serde_json::from_str(&text).ok());
        is_whole &= listed.is_some();
        listed
    };
    let rules = Rules::of_json(&text, own, &mut list);
    let rules = rules.ok_or_else(|| io::Error::other("nft printed something else than rules"))?;
    Ok(Some((rules, is_whole)))
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
    of_connections(tracked::translated()?)
}

/// The ports that these connections were translated from.
///
/// # Errors
///
/// When the kernel does not tell the host's addresses.
pub fn of_connections(connections: Vec<TranslatedConnection>) -> io::Result<Translations> {
    let own = own_addresses()?;
    // Connections of this host's own processes are translated by another chain.
    let connections = connections.into_iter();
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
    let matter = |limit: &Limit| {
        limit.proves_by_cookies() || limit.concurrent.is_some() || reads_listeners(limit)
    };
    config.limits.iter().any(matter)
}

/// Whether the queues of the listeners on its own ports are signals of a limit.
fn reads_listeners(limit: &Limit) -> bool {
    let shares = limit.shares.as_ref();
    [ProtocolFilter::Any, ProtocolFilter::Tcp].contains(&limit.protocol)
        && shares.is_some_and(|shares| shares.signals.contains(&Signal::Sockets))
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
pub fn notes(config: &Config, translations: &Translations, unknown: &Unknown) -> Vec<String> {
    if !matter(config) {
        return Vec::new();
    }
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
    let fair = config.limits.iter().filter(|limit| reads_listeners(limit));
    let without_signal = fair.filter_map(|limit| {
        let shares = limit.shares.as_ref()?;
        let has_backend = shares
            .signals
            .iter()
            .any(|signal| matches!(signal, Signal::Port(_)));
        let sent_on = translations.iter().filter(|(port, target)| {
            is_for(limit, **port) && (**target == Target::Elsewhere || !has_backend)
        });
        let ports: Vec<u16> = sent_on.map(|(port, _)| *port).collect();
        (!ports.is_empty()).then(|| {
            format!(
                "limit {:?} has no signal of port {}: netfilter sends its connections elsewhere, as to a container; name the port \
                 of a server on this host in signals, or write a rate",
                limit.name,
                list(&ports)
            )
        })
    });
    let unknown = unknown.why().map(|why| {
        let advice = if config.proves_by_cookies() {
            "use prove = \"reset\" where such ports have limits"
        } else if config.limits.iter().any(reads_listeners) {
            "limits with rate = \"fair\" have no signal of them, and limits with concurrent count no connections to them"
        } else {
            "limits with concurrent count no connections to them"
        };
        format!("{why}; {advice}")
    });
    unproven
        .into_iter()
        .chain(uncounted)
        .chain(without_signal)
        .chain(unknown)
        .collect()
}

fn is_for(limit: &Limit, port: u16) -> bool {
    limit
        .ports
        .as_ref()
        .is_none_or(|ports| ports.contains(port))
}

fn list(ports: &[u16]) -> String {
    human::listed(ports.iter().map(u16::to_string), MOST_NAMED)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(of_commands: &[(&'static str, u16)], failed: &[&'static str]) -> ReadRules {
        let of_commands = of_commands
            .iter()
            .map(|(command, port)| (*command, Translations::from([(*port, Target::Elsewhere)])));
        ReadRules {
            of_commands: of_commands.collect(),
            unknown: Unknown {
                failed: failed.to_vec(),
                ..Unknown::default()
            },
        }
    }

    #[test]
    fn ports_of_a_command_that_fails_stay_and_those_of_others_do_not() {
        let before = read(&[("nft", 80), ("iptables-legacy-save", 81)], &[]);
        let now = read(&[("nft", 82)], &["iptables-legacy-save"]).after(before);
        let ports = |read: &ReadRules| Vec::from_iter(read.translations().into_keys());
        assert_eq!(ports(&now), [81, 82]);
        assert_eq!(
            now.unknown.why().unwrap(),
            "ports that netfilter sends elsewhere, as to a container, may be unknown: iptables-legacy-save failed"
        );
        let now = read(&[("nft", 82)], &["iptables-legacy-save"]).after(now);
        assert_eq!(ports(&now), [81, 82]);
        let now = read(&[], &[]).after(now);
        assert_eq!((ports(&now), now.unknown.why()), (vec![], None));
    }

    #[test]
    fn fair_limits_have_no_signal_of_ports_that_are_sent_elsewhere() {
        let config = |lines: &str| {
            let text = format!(
                "[agent]\ninterfaces = [\"lo\"]\n[[limit]]\nname = \"web\"\nports = [80, 443]\nrate = \"fair\"\n{lines}\n"
            );
            let loaded = config::parse(Path::new("limits.toml"), &text);
            loaded.unwrap_or_else(|report| panic!("{report}")).config
        };
        let translations = Translations::from([
            (80, Target::Elsewhere),
            (443, Target::ThisHost),
            (8080, Target::Elsewhere),
        ]);
        let notes = |lines| notes(&config(lines), &translations, &Unknown::default());
        let found = notes("");
        assert!(found.len() == 1 && matter(&config("")), "{found:?}");
        assert!(
            found[0].starts_with("limit \"web\" has no signal of port 80, 443: netfilter"),
            "{found:?}"
        );
        // The server to which port 443 is sent may be the backend.
        let found = notes("fair = { signals = [\"sockets\", 9090] }");
        assert!(found[0].contains("of port 80: "), "{found:?}");
        for without in ["fair = { signals = [9090] }", "protocol = \"udp\""] {
            assert!(notes(without).is_empty() && !matter(&config(without)));
        }
    }
}
