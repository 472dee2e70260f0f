//! The output of `nft -j list ruleset` and `nft -j list set`.

mod conditions;
mod statements;

use std::collections::BTreeMap;

use self::conditions::append;
use self::statements::Timeouts;
use super::json::Json;
use super::rule::{Chain, Hook, Rule, Ruleset, Set};

/// Parses the chains, rules and sets of a document; `None` if it is none of nftables.
pub fn parse(document: &Json, ruleset: &mut Ruleset) -> Option<()> {
    let objects = document.get("nftables")?.elements();
    let of = |kind: &'static str| objects.iter().filter_map(move |object| object.get(kind));
    let timeouts = of("set").filter_map(|set| Some((key(set)?, set.get("timeout")?.number()?)));
    let timeouts = timeouts.collect();
    for set in of("set") {
        if let Some(key) = key(set) {
            ruleset.sets.insert(key, read_set(set));
        }
    }
    let first = ruleset.chains.len();
    ruleset.chains.extend(of("chain").filter_map(chain));
    let name =
        |(at, chain): (usize, &Chain)| ((chain.table.clone(), chain.name.clone()), first + at);
    let names: BTreeMap<(String, String), usize> = ruleset.chains[first..]
        .iter()
        .enumerate()
        .map(name)
        .collect();
    for object in of("rule") {
        let Some((table, name)) = table(object).zip(object.text_of("chain")) else {
            continue;
        };
        let rules = rules(object, &table, &timeouts);
        ruleset.rules += rules.len();
        if ruleset.is_too_large() {
            break;
        }
        if let Some(at) = names.get(&(table, name.to_owned())) {
            ruleset.chains[*at].rules.extend(rules);
        }
    }
    Some(())
}

/// Family and table.
fn table(object: &Json) -> Option<String> {
    Some(format!(
        "{} {}",
        object.text_of("family")?,
        object.text_of("table")?
    ))
}

/// The key of a set among a ruleset's sets.
fn key(set: &Json) -> Option<String> {
    Some(format!("{} {}", table(set)?, set.text_of("name")?))
}

fn chain(chain: &Json) -> Option<Chain> {
    let (table, name) = (table(chain)?, chain.text_of("name")?.to_owned());
    let family = chain.text_of("family").unwrap_or_default();
    let device = chain
        .get("dev")
        .and_then(|device| device.elements().first()?.text().map(str::to_owned));
    let hook = match (chain.text_of("hook"), chain.text_of("type")) {
        (None, _) => Hook::None,
        _ if matches!(family, "bridge" | "arp") => {
            Hook::Other(format!("Weir has no rules of family {family}"))
        }
        // nftables 1.0.6 does not print the device.
        (Some("ingress"), Some("filter")) if device.is_none() => Hook::IncomingUnnamed,
        (Some("input" | "prerouting" | "ingress"), Some("filter")) => Hook::Incoming(device),
        (Some("forward"), _) => {
            Hook::Other("Weir does not tell forwarded packets from others".to_owned())
        }
        (Some("output" | "postrouting" | "egress"), _) => {
            Hook::Other("it is about outgoing packets".to_owned())
        }
        (Some(_), kind) => Hook::Other(format!(
            "a chain of type {} is not a limit",
            kind.unwrap_or("unknown")
        )),
    };
    let order = match chain.text_of("hook") {
        Some("ingress") => 0,
        Some("prerouting") => 1 << 40,
        _ => 2 << 40,
    };
    let priority = chain
        .get("prio")
        .and_then(Json::signed)
        .unwrap_or(0)
        .clamp(-(1 << 32), 1 << 32);
    Some(Chain {
        table,
        name,
        hook,
        order: order + priority,
        rules: Vec::new(),
    })
}

/// The rules of an nftables rule: a map of verdicts is several.
fn rules(object: &Json, table: &str, timeouts: &Timeouts) -> Vec<Rule> {
    let chain = object.text_of("chain").unwrap_or_default();
    let handle = object
        .get("handle")
        .and_then(Json::number)
        .map(|handle| format!(" handle {handle}"));
    let comment = object
        .text_of("comment")
        .map(|comment| format!(" {comment:?}"));
    let origin = format!(
        "{table} {chain}{}{}",
        handle.unwrap_or_default(),
        comment.unwrap_or_default()
    );
    let statements = object.get("expr").map(Json::elements).unwrap_or_default();
    statements::rules(
        statements,
        &statements::Place {
            origin,
            table,
            timeouts,
        },
    )
}

/// The addresses of a set.
fn read_set(set: &Json) -> Set {
    let name = set.text_of("name").unwrap_or_default().to_owned();
    let origin = format!("{} set {name}", table(set).unwrap_or_default());
    let mut read = Set {
        name,
        origin,
        ..Set::default()
    };
    let kind = set.get("type").and_then(Json::text);
    if !matches!(kind, Some("ipv4_addr" | "ipv6_addr")) && set.get("elem").is_some() {
        read.unusable = Some("its elements are not addresses alone".to_owned());
        return read;
    }
    for element in set.get("elem").map(Json::elements).unwrap_or_default() {
        let (value, is_temporary) = match element.get("elem") {
            Some(inner) => (
                inner.get("val").unwrap_or(inner),
                inner.get("timeout").is_some(),
            ),
            None => (element, false),
        };
        // The set's own timeout, which nft prints with each element only where it differs.
        let is_temporary = is_temporary || set.get("timeout").is_some();
        let into = if is_temporary {
            &mut read.temporary
        } else {
            &mut read.prefixes
        };
        if !append(value, into) {
            read.invalid += 1;
        }
    }
    read
}
