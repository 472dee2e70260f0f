//! The output of `iptables-save` and `ip6tables-save`.

mod connlimit;
mod hashlimit;

use std::collections::HashMap;
use std::rc::Rc;

use self::connlimit::Connlimit;
use self::hashlimit::Hashlimit;
use super::names::cut;
use super::prefixes;
use super::rule::{
    Chain, Conditions, Connection, Family, Hook, Protocol, Rule, Ruleset, Sources, Verdict,
};

/// Targets after which the next rule decides.
const CONTINUING: [&str; 14] = [
    "LOG", "NFLOG", "TRACE", "CT", "NOTRACK", "CONNMARK", "TCPMSS", "DSCP", "TOS", "TTL", "HL",
    "SET", "CHECKSUM", "CLASSIFY",
];
/// The key of a set of ipset among a ruleset's sets.
pub fn set_key(name: &str) -> String {
    format!("ipset {name}")
}

/// Parses the rules of all tables; lines that are none are counted.
pub fn parse(text: &str, ruleset: &mut Ruleset) -> u64 {
    let mut table = "filter".to_owned();
    let mut family = Family::V4;
    let mut unread = 0;
    let mut chains = Chains {
        ruleset,
        names: HashMap::new(),
    };
    for line in text.lines().map(str::trim) {
        if chains.ruleset.is_too_large() {
            break;
        }
        if let Some(comment) = line.strip_prefix('#') {
            if comment.contains("ip6tables-save") || comment.contains("iptables-save") {
                family = if comment.contains("ip6tables-save") {
                    Family::V6
                } else {
                    Family::V4
                };
            }
            continue;
        }
        // `iptables-save -c` writes counters before rules.
        let line = line
            .strip_prefix('[')
            .and_then(|rest| rest.split_once("] "))
            .map_or(line, |(_, rule)| rule);
        if line.is_empty() || line == "COMMIT" {
        } else if let Some(name) = line.strip_prefix('*') {
            table = cut(name);
        } else if let Some(chain) = line.strip_prefix(':') {
            chains.get(family, &table, chain.split(' ').next().unwrap_or(chain));
        } else if let Some(name) = line
            .strip_prefix("-N ")
            .or_else(|| line.strip_prefix("-P "))
        {
            chains.get(family, &table, name.split(' ').next().unwrap_or(name));
        } else if let Some((name, rest)) = line
            .strip_prefix("-A ")
            .map(|rest| rest.split_once(' ').unwrap_or((rest, "")))
        {
            let rule = rule(rest, family, &table, name);
            chains.get(family, &table, name).rules.push(rule);
            chains.ruleset.rules += 1;
        } else {
            unread += 1;
        }
    }
    name_targets(&mut ruleset.chains);
    unread
}

/// The chains of a text, by table and name.
struct Chains<'c> {
    ruleset: &'c mut Ruleset,
    names: HashMap<(String, String), usize>,
}

impl Chains<'_> {
    fn get(&mut self, family: Family, table: &str, name: &str) -> &mut Chain {
        let (table, name) = (format!("{} {table}", program(family)), cut(name));
        let chains = &mut self.ruleset.chains;
        let next = chains.len();
        let at = *self
            .names
            .entry((table.clone(), name.clone()))
            .or_insert(next);
        if at == next {
            let (hook, order) = (hook(&table, &name), order(&table, &name));
            chains.push(Chain {
                table,
                name,
                hook,
                order,
                rules: Vec::new(),
            });
        }
        &mut chains[at]
    }
}

fn program(family: Family) -> &'static str {
    if family == Family::V6 {
        "ip6tables"
    } else {
        "iptables"
    }
}

fn hook(table: &str, name: &str) -> Hook {
    match (table.rsplit(' ').next().unwrap_or_default(), name) {
        ("nat", "INPUT" | "PREROUTING") => {
            Hook::Other("address translation is not a limit".to_owned())
        }
        (_, "INPUT" | "PREROUTING") => Hook::Incoming(None),
        (_, "FORWARD") => {
            Hook::Other("Weir does not tell forwarded packets from others".to_owned())
        }
        (_, "OUTPUT" | "POSTROUTING") => Hook::Other("it is about outgoing packets".to_owned()),
        _ => Hook::None,
    }
}

fn order(table: &str, name: &str) -> i64 {
    let of_table = ["raw", "mangle", "nat", "filter"]
        .iter()
        .position(|known| table.ends_with(known))
        .unwrap_or(4);
    of_table as i64 + if name == "PREROUTING" { 0 } else { 10 }
}

/// Jumps to chains that do not exist are targets that Weir does not know.
fn name_targets(chains: &mut [Chain]) {
    let known: std::collections::BTreeSet<(String, String)> = chains
        .iter()
        .map(|chain| (chain.table.clone(), chain.name.clone()))
        .collect();
    for chain in chains {
        for rule in &mut chain.rules {
            if let Verdict::Jump(target) | Verdict::Goto(target) = &rule.verdict
                && !known.contains(&(chain.table.clone(), target.clone()))
            {
                rule.verdict = Verdict::Other(format!("target {target}"));
            }
        }
    }
}

/// The words of a rule.
struct Words<'t> {
    rest: &'t str,
}

impl Words<'_> {
    /// Whether the next word is the value of an option.
    fn is_at_value(&self) -> bool {
        let rest = self.rest.trim_start();
        let is_option = rest.starts_with('-')
            && rest[1..].starts_with(|c: char| c == '-' || c.is_ascii_alphabetic());
        !rest.is_empty() && !is_option && !rest.starts_with("! ")
    }

    fn value(&mut self) -> String {
        if self.is_at_value() {
            self.next().unwrap_or_default()
        } else {
            String::new()
        }
    }
}

impl Iterator for Words<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let rest = self.rest.trim_start();
        let Some(inside) = rest.strip_prefix('"') else {
            let end = rest.find(' ').unwrap_or(rest.len());
            self.rest = &rest[end..];
            return Some(rest[..end].to_owned()).filter(|word| !word.is_empty());
        };
        let mut word = String::new();
        let mut characters = inside.char_indices();
        self.rest = "";
        while let Some((at, character)) = characters.next() {
            match character {
                '"' => {
                    self.rest = &inside[at + 1..];
                    break;
                }
                '\\' => word.extend(characters.next().map(|(_, escaped)| escaped)),
                other => word.push(other),
            }
        }
        Some(word)
    }
}

fn rule(text: &str, family: Family, table: &str, chain: &str) -> Rule {
    let program = program(family);
    let origin = format!(
        "{program} {table} {}: {}",
        cut(chain),
        text.chars().take(400).collect::<String>()
    );
    let mut conditions = Conditions {
        family: Some(family),
        ..Conditions::default()
    };
    let mut hashlimit = Hashlimit::default();
    let mut connlimit = Connlimit::default();
    let mut verdict = Verdict::Continue;
    let mut words = Words { rest: text };
    let mut is_not = false;
    while let Some(word) = words.next() {
        if word == "!" {
            is_not = true;
            continue;
        }
        let is_negated = std::mem::take(&mut is_not);
        if is_negated {
            let value = words.value();
            if !(word == "-i" && value == "lo") {
                conditions.other(format!("! {}", cut(&word)));
            }
            while words.is_at_value() {
                words.next();
            }
            continue;
        }
        match word.as_str() {
            "-m" | "--match" | "--comment" => {
                words.next();
            }
            "-j" | "-g" => {
                let target = words.value();
                verdict = match target.as_str() {
                    "DROP" => Verdict::Drop,
                    "REJECT" => Verdict::Reject,
                    "ACCEPT" => Verdict::Accept,
                    "RETURN" => Verdict::Return,
                    "MARK" => Verdict::Continue,
                    name if CONTINUING.contains(&name) => Verdict::Continue,
                    _ if word == "-g" => Verdict::Goto(cut(&target)),
                    _ => Verdict::Jump(cut(&target)),
                };
                if target == "MARK" {
                    verdict = mark(&mut words);
                }
                // The options of the target follow.
                break;
            }
            _ => {
                let value = words.value();
                if !(condition(&word, &value, &mut words, &mut conditions)
                    || hashlimit::read(&word, &value, &mut hashlimit)
                    || connlimit::read(&word, &value, &mut connlimit))
                {
                    conditions.other(unknown(&word));
                }
                while words.is_at_value() {
                    words.next();
                }
            }
        }
    }
    let rate = hashlimit::limit(hashlimit, &mut conditions);
    let open = connlimit::limit(&connlimit, family);
    if rate.is_some() && open.is_some() {
        conditions.other("several limits in one rule");
    }
    let limit = rate.or(open);
    Rule {
        origin,
        conditions,
        limit,
        verdict,
    }
}

/// The name of a condition that Weir lacks.
fn unknown(option: &str) -> String {
    let of_recent = [
        "--update",
        "--rcheck",
        "--set",
        "--remove",
        "--seconds",
        "--hitcount",
        "--reap",
        "--rttl",
        "--rsource",
        "--rdest",
        "--name",
        "--mask",
    ];
    match option {
        _ if option.starts_with("--connlimit") => {
            "open connections that are not counted by their source".to_owned()
        }
        _ if of_recent.contains(&option) => {
            "recent; algorithm = \"sliding-log\" comes closest".to_owned()
        }
        _ => cut(option),
    }
}

/// The options of `-j MARK`.
fn mark(words: &mut Words<'_>) -> Verdict {
    let (option, value) = (words.next().unwrap_or_default(), words.value());
    let (mark, mask) = value.split_once('/').unwrap_or((&value, "0xffffffff"));
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    match (option.as_str(), number(mark), number(mask)) {
        ("--set-xmark" | "--set-mark", Some(mark), Some(u32::MAX)) => Verdict::Mark(mark),
        _ => Verdict::Continue,
    }
}

/// Reads an option about packets; `false` if it is none that Weir has.
fn condition(
    option: &str,
    value: &str,
    words: &mut Words<'_>,
    conditions: &mut Conditions,
) -> bool {
    match option {
        "-p" => match value {
            "tcp" | "6" => conditions.protocol = Some(Protocol::Tcp),
            "udp" | "17" => conditions.protocol = Some(Protocol::Udp),
            "icmp" | "ipv6-icmp" | "icmpv6" | "1" | "58" => {
                conditions.protocol = Some(Protocol::Icmp);
            }
            "all" => {}
            other => conditions.other(format!("-p {}", cut(other))),
        },
        "-i" => conditions.interfaces = Some(vec![interface(value, conditions)]),
        "-s" => {
            let mut sources = Vec::new();
            match prefixes::append(value, &mut sources) {
                true if sources.iter().all(|prefix| prefix.prefix_len() > 0) => {
                    conditions.sources = Some(Sources::Prefixes(Rc::from(sources)));
                }
                true => {}
                false => return false,
            }
        }
        "--dport" | "--dports" | "--destination-port" | "--destination-ports" => match ports(value)
        {
            Some(ports) => conditions.ports = Some(ports),
            None => return false,
        },
        "--syn" => conditions.connection = Connection::Syn,
        "--tcp-flags" => {
            let set = words.value();
            let mut mask: Vec<&str> = value.split(',').collect();
            mask.sort_unstable();
            match (mask.as_slice(), set.as_str()) {
                (
                    ["ACK", "FIN", "RST", "SYN"] | ["ACK", "RST", "SYN"] | ["ACK", "SYN"] | ["SYN"],
                    "SYN",
                ) => {
                    conditions.connection = Connection::Syn;
                }
                _ => return false,
            }
        }
        "--ctstate" | "--state" => {
            let states: Vec<&str> = value.split(',').collect();
            let is_of = |known: &[&str]| states.iter().all(|state| known.contains(state));
            match () {
                () if is_of(&["NEW"]) => conditions.connection = Connection::New,
                () if is_of(&["ESTABLISHED", "RELATED"]) => {
                    conditions.connection = Connection::Established;
                }
                () => return false,
            }
        }
        "--match-set" if words.value() == "src" && conditions.sources.is_none() => {
            conditions.sources = Some(Sources::Set(set_key(value)));
        }
        _ => return false,
    }
    true
}

/// A name or pattern as Weir writes it.
pub fn interface(name: &str, conditions: &mut Conditions) -> String {
    let name = name
        .strip_suffix('+')
        .map_or_else(|| name.to_owned(), |start| format!("{start}*"));
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:@*".contains(c);
    if name.is_empty() || name.len() > 15 || !name.chars().all(is_plain) {
        conditions.other("an unusual name of an interface");
    }
    name
}

fn ports(text: &str) -> Option<Vec<(u16, u16)>> {
    let range = |text: &str| {
        let (first, last) = text.split_once(':').unwrap_or((text, text));
        Some((
            first.parse().ok().filter(|port| *port > 0)?,
            last.parse().ok()?,
        ))
        .filter(|(first, last)| first <= last)
    };
    text.split(',').map(range).collect()
}
