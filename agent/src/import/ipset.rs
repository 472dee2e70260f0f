//! The output of `ipset save`.

use super::iptables::set_key;
use super::prefixes;
use super::rule::{Ruleset, Set};

/// Parses all sets; lines that are none are counted.
pub fn parse(text: &str, ruleset: &mut Ruleset) -> u64 {
    let mut unread = 0;
    for line in text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let mut words = line.split_ascii_whitespace();
        let (verb, name) = (
            words.next().unwrap_or_default(),
            words.next().unwrap_or_default(),
        );
        let name: String = name.chars().take(64).collect();
        match (verb, words.next()) {
            ("create" | "-N", Some(kind)) => {
                let set = create(&name, kind, words);
                ruleset.sets.insert(set_key(&name), set);
                if ruleset.is_too_large() {
                    break;
                }
            }
            ("add" | "-A", Some(element)) => match ruleset.sets.get_mut(&set_key(&name)) {
                Some(set) => add(set, element, words),
                None => unread += 1,
            },
            _ => unread += 1,
        }
    }
    unread
}

fn create<'t>(name: &str, kind: &str, options: impl Iterator<Item = &'t str>) -> Set {
    let mut set = Set {
        name: name.to_owned(),
        origin: format!("ipset {name}"),
        ..Set::default()
    };
    let mut options = options.peekable();
    let has_netmask = options.any(|option| option == "netmask" || option == "bitmask");
    if !matches!(kind, "hash:ip" | "hash:net" | "bitmap:ip") {
        set.unusable = Some("its elements are not addresses alone".to_owned());
    } else if has_netmask {
        set.unusable = Some("its addresses stand for networks (netmask)".to_owned());
    }
    set
}

fn add<'t>(set: &mut Set, element: &str, options: impl Iterator<Item = &'t str>) {
    if set.unusable.is_some() {
        return;
    }
    // A comment is last, and may contain any word.
    let mut options = options.take_while(|option| *option != "comment").peekable();
    let mut into = &mut set.prefixes;
    while let Some(option) = options.next() {
        match (option, options.peek()) {
            ("nomatch", _) => into = &mut set.exceptions,
            ("timeout", Some(time)) if *time != "0" => into = &mut set.temporary,
            _ => {}
        }
    }
    if !prefixes::append(element, into) {
        set.invalid += 1;
    }
}
