//! Lists of banned addresses that `fail2ban-client` prints, and its `jail.local`.

use std::collections::BTreeMap;

use config::human;

use super::found::Found;
use super::limit::jail_limit;
use super::names::quoted;
use super::prefixes;
use super::rule::Set;

/// The most jails.
const MOST_JAILS: usize = 1_000;

/// Reads what any of fail2ban's commands prints, or a plain list; lines that are none are counted.
pub fn parse_bans(text: &str, sets: &mut BTreeMap<String, Set>) -> u64 {
    let mut unread = 0;
    let mut jail = "fail2ban".to_owned();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(name) = line.strip_prefix("Status for the jail:") {
            jail = name.trim().chars().take(64).collect();
        } else if let Some((_, addresses)) = line.split_once("Banned IP list:") {
            unread += add_all(addresses, &jail, sets);
        } else if line.starts_with(['|', '`']) {
            // Other lines of a jail's status.
        } else if line.starts_with('[') {
            unread += by_jail(line, sets);
        } else if let Some((address, rest)) = line.split_once(char::is_whitespace)
            && let Some((_, time)) = rest.split_once(" + ")
        {
            let is_lasting = time.trim_start().starts_with("-1 ");
            let set = set_of(&jail, sets);
            let into = if is_lasting {
                &mut set.prefixes
            } else {
                &mut set.temporary
            };
            unread += u64::from(!prefixes::append(address, into));
        } else {
            unread += add_all(line, &jail, sets);
        }
    }
    unread
}

fn set_of<'s>(jail: &str, sets: &'s mut BTreeMap<String, Set>) -> &'s mut Set {
    let is_known = sets.len() < MOST_JAILS || sets.contains_key(&format!("jail {jail}"));
    let jail = if is_known { jail } else { "fail2ban" };
    sets.entry(format!("jail {jail}")).or_insert_with(|| Set {
        name: jail.to_owned(),
        origin: if jail == "fail2ban" {
            "the list of fail2ban".to_owned()
        } else {
            format!("jail {jail}")
        },
        ..Set::default()
    })
}

fn add_all(addresses: &str, jail: &str, sets: &mut BTreeMap<String, Set>) -> u64 {
    let mut unread = 0;
    for address in addresses
        .split([' ', '\t', ','])
        .filter(|word| !word.is_empty())
    {
        let mut prefixes = Vec::new();
        if prefixes::append(address, &mut prefixes) {
            set_of(jail, sets).prefixes.append(&mut prefixes);
        } else {
            unread += 1;
        }
    }
    unread
}

/// `[{'sshd': ['192.0.2.7', …]}, …]`: a text before a colon is a jail.
fn by_jail(line: &str, sets: &mut BTreeMap<String, Set>) -> u64 {
    let mut unread = 0;
    let mut jail = "fail2ban".to_owned();
    let mut parts = line.split('\'').skip(1).peekable();
    while let Some(text) = parts.next() {
        // The part between this text and the next one.
        let after = parts.next().unwrap_or_default();
        if after.trim_start().starts_with(':') {
            jail = text.chars().take(64).collect();
        } else {
            unread += add_all(text, &jail, sets);
        }
    }
    unread
}

/// The settings of a section, those of `[DEFAULT]` included.
#[derive(Clone, Default)]
struct Section {
    values: BTreeMap<String, String>,
}

/// Reads a file such as jail.local.
pub fn parse_jails(text: &str, found: &mut Found) -> u64 {
    let mut unread = 0;
    let mut sections: Vec<(String, Section)> = Vec::new();
    let mut last = String::new();
    for line in text.lines() {
        let content = line
            .split(" #")
            .next()
            .unwrap_or_default()
            .split(" ;")
            .next()
            .unwrap_or_default()
            .trim_end();
        if content.trim().is_empty() || content.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = content
            .strip_prefix('[')
            .and_then(|rest| rest.split(']').next())
        {
            if sections.len() >= MOST_JAILS {
                unread += 1;
                continue;
            }
            sections.push((name.trim().chars().take(64).collect(), Section::default()));
            last.clear();
        } else if let Some((_, section)) = sections.last_mut() {
            if content.starts_with(char::is_whitespace) && !last.is_empty() {
                let value = section.values.entry(last.clone()).or_default();
                value.push(' ');
                value.push_str(content.trim());
            } else if let Some((key, value)) = content.split_once('=') {
                last = key.trim().to_lowercase();
                section.values.insert(last.clone(), value.trim().to_owned());
            } else {
                unread += 1;
            }
        } else {
            unread += 1;
        }
    }
    let defaults = sections
        .iter()
        .find(|(name, _)| name == "DEFAULT")
        .map(|(_, section)| section.clone());
    let defaults = defaults.unwrap_or_default();
    ignored("[DEFAULT]", &defaults, found);
    for (name, section) in sections
        .iter()
        .filter(|(name, _)| !matches!(name.as_str(), "DEFAULT" | "INCLUDES"))
    {
        let value = |key: &str| {
            section
                .values
                .get(key)
                .or_else(|| defaults.values.get(key))
                .map(String::as_str)
        };
        if value("enabled").is_some_and(|enabled| {
            !matches!(enabled.to_lowercase().as_str(), "true" | "1" | "yes" | "on")
        }) {
            continue;
        }
        if value("enabled").is_none() {
            found.leave_out("the file does not enable the jail", &format!("jail {name}"));
            continue;
        }
        if section.values.contains_key("ignoreip") {
            ignored(&format!("[{name}]"), section, found);
        }
        jail(name, value, found);
    }
    unread
}

/// `ignoreip`: addresses are exempt.
fn ignored(place: &str, section: &Section, found: &mut Found) {
    let Some(ignored) = section.values.get("ignoreip") else {
        return;
    };
    let mut prefixes = Vec::new();
    for word in ignored
        .split([' ', '\t', ','])
        .filter(|word| !word.is_empty())
    {
        if !prefixes::append(word, &mut prefixes) {
            let why = "exempt sources are addresses and prefixes";
            found.leave_out(why, &format!("ignoreip of {place}: {}", quoted(word)));
        }
    }
    prefixes.retain(|prefix| !prefix.addr().is_loopback() && prefix.prefix_len() > 0);
    let count = prefixes.len();
    let sources = super::rule::Sources::Prefixes(prefixes.into());
    if count > 0
        && !found.exempt(
            &super::rule::Ruleset::default(),
            &sources,
            &format!("ignoreip of {place}"),
        )
    {
        found.leave_out(
            "there are too many exempt prefixes",
            &format!("ignoreip of {place}"),
        );
    }
}

fn jail<'v>(name: &str, value: impl Fn(&str) -> Option<&'v str>, found: &mut Found) {
    let attempts: u64 = value("maxretry")
        .and_then(|text| text.parse().ok())
        .unwrap_or(5);
    let (find, ban) = (
        value("findtime").unwrap_or("10m"),
        value("bantime").unwrap_or("10m"),
    );
    let origin = format!(
        "jail {} (maxretry = {attempts}, findtime = {}, bantime = {})",
        quoted(name),
        quoted(find),
        quoted(ban)
    );
    let why = "it counts failures in logs, which Weir does not read: let fail2ban ban through Weir, with banaction = weir \
               (docs/RECIPES.md)";
    found.leave_out(why, &origin);
    let ports = value("port").map(|ports| {
        ports
            .split(',')
            .map(|port| port.trim().replace(':', "-"))
            .collect::<Vec<_>>()
    });
    let seconds = time(find).filter(|seconds| *seconds > 0);
    let (Some(ports), Some(seconds)) = (ports, seconds) else {
        return;
    };
    let escalate = time(ban).filter(|ban| *ban > 0).map(|ban| (seconds, ban));
    if let Some(block) = jail_limit(name, &ports, (attempts.max(1), seconds), escalate) {
        let text = format!(
            "{origin}: a limit on connections counts successful attempts, too, and refuses more. To enforce it all the same, \
             remove the # of these lines; findtime is {}.",
            human::time(std::time::Duration::from_secs(seconds))
        );
        found.offers.push((text, block));
    }
}

/// Seconds of a time such as `600`, `10m` or `1d 12h`.
fn time(text: &str) -> Option<u64> {
    let mut total = 0u64;
    let mut rest = text.trim();
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let number: u64 = rest[..end].parse().ok()?;
        rest = rest[end..].trim_start();
        let end = rest
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(rest.len());
        let scale = match &rest[..end] {
            "" | "s" | "sec" | "ss" => 1,
            "m" | "min" | "mm" => 60,
            "h" | "hour" | "hh" => 3600,
            "d" | "day" | "dd" => 86_400,
            "w" | "week" | "ww" => 604_800,
            _ => return None,
        };
        total = total.checked_add(number.checked_mul(scale)?)?;
        rest = rest[end..].trim_start();
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::time;

    #[test]
    fn times_are_sums_with_units() {
        for (text, seconds) in [
            ("600", 600),
            ("10m", 600),
            ("1d 12h", 129_600),
            ("1w", 604_800),
        ] {
            assert_eq!(time(text), Some(seconds), "{text}");
        }
        assert!(
            ["-1", "soon", "10x", "99999999999999999999"]
                .iter()
                .all(|text| time(text).is_none())
        );
    }
}
