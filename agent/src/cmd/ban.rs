//! `agent ban`, `agent unban`, `agent bans`.

use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;

use super::ask::ask;
use super::table::{self, number};
use super::{Print, USAGE};
use crate::cli::Options;
use crate::config::policy::Prefix;
use crate::config::{prefix, ssh};
use crate::control::{BanOrder, Banned, MOST_ORDERS, Request, Unbanned};
use crate::stats::{BanStatus, BansRow};

/// Whether the operator's own address may be banned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// Whatever it is.
    Yes,
    /// Not the address that this SSH session comes from.
    No,
}

impl From<bool> for Force {
    fn from(force: bool) -> Self {
        if force { Self::Yes } else { Self::No }
    }
}

pub fn ban(
    cidr: Option<&str>,
    file: Option<&Path>,
    duration: Option<Duration>,
    force: Force,
    options: &Options,
) -> anyhow::Result<ExitCode> {
    let listed = match (cidr, file) {
        (Some(cidr), _) => parse("", cidr),
        (None, Some(file)) => {
            let text = std::fs::read_to_string(file).with_context(|| format!("reading {} failed", file.display()))?;
            parse(&file.display().to_string(), &text)
        }
        (None, None) => Ok(Vec::new()),
    };
    let prefixes = match listed {
        Ok(prefixes) => prefixes,
        Err(wrong) => {
            eprintln!("{}\nnothing was banned", wrong.join("\n"));
            return Ok(ExitCode::from(USAGE));
        }
    };
    if duration.is_some_and(|duration| duration.is_zero()) {
        eprintln!("a ban of no time bans nobody: write --for 10m");
        return Ok(ExitCode::from(USAGE));
    }
    if let (Some(own), Force::No) = (locked_out(&prefixes, ssh::client()), force) {
        eprintln!("{own} holds the address that this SSH session comes from: to ban it all the same, add --force");
        return Ok(ExitCode::from(USAGE));
    }
    let client = options.client();
    let for_seconds = duration.map(|duration| duration.as_secs_f64());
    let mut all = Banned::default();
    for part in prefixes.chunks(MOST_ORDERS) {
        let orders = part.iter().map(|prefix| BanOrder { cidr: prefix.to_string(), for_seconds }).collect();
        let some: Banned = match client.ask(&Request::Ban { orders }) {
            Err(error) if all.banned > 0 => {
                return Err(error).context(format!("{} of {} are banned; the next failed", all.banned, prefixes.len()));
            }
            some => some?,
        };
        all.banned += some.banned;
        all.kept.extend(some.kept);
    }
    match Print::from(options.json) {
        Print::Json => println!("{}", serde_json::to_string_pretty(&all)?),
        Print::Table => println!("{} banned", number(all.banned)),
    }
    for BanStatus { cidr, expires_in_seconds } in &all.kept {
        let until = expires_in_seconds
            .map_or_else(|| "until it is lifted".to_owned(), |left| format!("for {}", table::seconds(left)));
        eprintln!("{cidr} stays banned {until}, which is longer: to shorten it, agent unban {cidr} first");
    }
    Ok(if all.kept.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prefixes, one a line; every line that is none is told of at once.
fn parse(file: &str, text: &str) -> Result<Vec<Prefix>, Vec<String>> {
    let mut prefixes = Vec::new();
    let mut errors = Vec::new();
    for (nth, line) in text.lines().enumerate() {
        let content = line.split('#').next().unwrap_or("").trim();
        if content.is_empty() {
            continue;
        }
        match prefix::parse(content) {
            Ok(prefix) => prefixes.push(prefix),
            Err(wrong) if file.is_empty() => errors.push(format!("{}: {}", wrong.message, wrong.help)),
            Err(wrong) => errors.push(format!("{file}:{}: {}: {}", nth + 1, wrong.message, wrong.help)),
        }
    }
    if prefixes.is_empty() && errors.is_empty() {
        errors.push(format!(
            "there is no address in {:?}: write one, such as 192.0.2.10",
            if file.is_empty() { text } else { file }
        ));
    }
    if errors.is_empty() { Ok(prefixes) } else { Err(errors) }
}

/// The prefix that the operator would be locked out by.
fn locked_out(prefixes: &[Prefix], client: Option<IpAddr>) -> Option<&Prefix> {
    let client = client?;
    prefixes.iter().find(|prefix| prefix.contains(client))
}

pub fn unban(cidr: &str, options: &Options) -> anyhow::Result<ExitCode> {
    let prefix = match prefix::parse(cidr) {
        Ok(prefix) => prefix,
        Err(wrong) => {
            eprintln!("{}: {}", wrong.message, wrong.help);
            return Ok(ExitCode::from(USAGE));
        }
    };
    ask(options, &Request::Unban { cidr: prefix.to_string() }, |unbanned: &Unbanned| {
        if unbanned.was_banned {
            format!("{prefix} is not banned any more")
        } else {
            format!("{prefix} was not banned: agent bans lists what is")
        }
    })
}

pub fn bans(options: &Options) -> anyhow::Result<ExitCode> {
    ask(options, &Request::Bans, |rows: &Vec<BansRow>| {
        let until =
            |row: &BansRow| row.ban.expires_in_seconds.map_or_else(|| "until lifted".to_owned(), table::seconds);
        table::render(
            ["CIDR", "FOR ANOTHER", "THROTTLED"],
            2,
            rows.iter().map(|row| [row.ban.cidr.clone(), until(row), number(row.throttled_packets)]),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_comments_and_every_wrong_line_is_told() {
        let list = "192.0.2.1 # scraper\n\n# nothing\n2001:db8::/32\n";
        let parsed = parse("list", list).unwrap();
        assert_eq!(parsed.iter().map(ToString::to_string).collect::<Vec<_>>(), ["192.0.2.1/32", "2001:db8::/32"]);
        let errors = parse("list", "192.0.2.1\nnobody\n192.0.2.1/24\n").unwrap_err();
        assert_eq!(errors.len(), 2);
        assert!(errors[0].starts_with("list:2: ") && errors[1].contains("192.0.2.0/24"), "{errors:?}");
        assert!(parse("", "").is_err() && parse("list", "# none\n").is_err());
    }

    #[test]
    fn the_operators_own_address_is_found_in_a_prefix() {
        let prefixes = parse("", "192.0.2.0/24").unwrap();
        assert!(locked_out(&prefixes, "192.0.2.9".parse().ok()).is_some());
        assert!(locked_out(&prefixes, "192.0.3.9".parse().ok()).is_none());
        assert!(locked_out(&prefixes, None).is_none());
    }
}
