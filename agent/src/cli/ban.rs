//! `weir ban`, `weir unban`, `weir bans`.

use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use api::list::{ListStatus, ListsStatus};
use api::request::{
    BanOrder, Banned, Excepted, MOST_ORDERS, NarrowerBans, Request, StillBanned, Unbanned,
};
use config::policy::Prefix;
use config::{PrefixKey, human, prefix, ssh};
use host::PROGRAM;
use host::read::{argument_name, read_text_argument};

use super::ask::ask;
use super::exit::USAGE;
use super::print::Print;
use super::table::{self, number};
use crate::ban_owner;
use crate::ban_reason;
use crate::cli::arguments::Options;
use crate::stats::{BanStatus, BansRow, Status};

/// Whether `--force` was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// Bans any prefix.
    Yes,
    /// Does not ban the remote address of this SSH session.
    No,
}

impl From<bool> for Force {
    fn from(force: bool) -> Self {
        if force { Self::Yes } else { Self::No }
    }
}

/// The terms of a ban.
pub struct Terms {
    pub duration: Option<Duration>,
    pub reason: Option<String>,
    /// The owner, unless it is the user.
    pub owner: Option<String>,
    pub force: Force,
}

pub fn ban(
    cidrs: &[String],
    file: Option<&Path>,
    terms: &Terms,
    options: &Options,
) -> anyhow::Result<ExitCode> {
    let Terms {
        duration,
        reason,
        owner,
        force,
    } = terms;
    let Some(prefixes) = named(cidrs, file, "banned") else {
        return Ok(ExitCode::from(USAGE));
    };
    if let Some(Err(error)) = reason.as_deref().map(ban_reason::check) {
        eprintln!("error: --reason: {error}\nnothing was banned");
        return Ok(ExitCode::from(USAGE));
    }
    let owner_of_all = owner.clone().or_else(user);
    if let Some(Err(error)) = owner_of_all.as_deref().map(ban_owner::check) {
        eprintln!("error: --owner: {error}\nnothing was banned");
        return Ok(ExitCode::from(USAGE));
    }
    if duration.is_some_and(|duration| duration.is_zero()) {
        eprintln!("invalid --for 0s: a ban of 0 s refuses nothing; write --for 10m");
        return Ok(ExitCode::from(USAGE));
    }
    if let Some(obstacle) = prefixes.iter().find_map(obstacle_of) {
        eprintln!("error: {obstacle}\nnothing was banned");
        return Ok(ExitCode::from(USAGE));
    }
    let obstacle = locked_out(&prefixes, ssh::client()).or_else(|| too_wide(&prefixes));
    if let (Some(obstacle), Force::No) = (obstacle, force) {
        eprintln!("{obstacle}; to ban it all the same, add --force\nnothing was banned");
        return Ok(ExitCode::from(USAGE));
    }
    let client = options.client();
    let for_seconds = duration.map(|duration| duration.as_secs_f64());
    let mut all = Banned::default();
    for part in prefixes.chunks(MOST_ORDERS) {
        let order = |named: &Named| BanOrder {
            cidr: named.prefix.to_string(),
            for_seconds,
            reason: reason.clone(),
            owner: owner_of_all.clone(),
            address: named.interface(),
        };
        let orders = part.iter().map(order).collect();
        let some: Banned = match client.ask(&Request::Ban { orders }) {
            Err(error) if all.banned > 0 => {
                return Err(error).context(format!(
                    "{} of {} are banned; the next failed",
                    all.banned,
                    prefixes.len()
                ));
            }
            some => some?,
        };
        all.banned += some.banned;
        all.kept.extend(some.kept);
        all.without_effect.extend(some.without_effect);
        all.notes.extend(some.notes);
    }
    all.notes.extend(prefixes.iter().filter_map(Named::widened));
    Print::from(options.json).document(&all, |all| {
        let terms = duration.filter(|_| all.banned > 0).map(|duration| {
            // As it was read: `m` is minutes, and a month has 30 days.
            format!(" for {}", human::time(duration))
        });
        println!("{} banned{}", number(all.banned), terms.unwrap_or_default());
        all.notes.iter().for_each(|note| println!("note: {note}"));
        all.without_effect
            .iter()
            .for_each(|ban| eprintln!("no effect: {}: {}", ban.cidr, ban.reason));
    })?;
    for BanStatus { cidr, holder, .. } in &all.kept {
        let until = holder.expires_in_seconds.map_or_else(
            || "until it is lifted".to_owned(),
            |left| format!("for {}", human::seconds(left)),
        );
        eprintln!(
            "{cidr} stays banned {until}, which is longer: to shorten it, {PROGRAM} unban {} first",
            unban_of(
                holder
                    .address
                    .map(|address| address.to_string())
                    .as_ref()
                    .unwrap_or(cidr),
                owner.as_deref()
            )
        );
    }
    let is_as_ordered = all.kept.is_empty() && all.without_effect.is_empty();
    Ok(if is_as_ordered {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A prefix as named by the operator.
struct Named {
    prefix: Prefix,
    /// The IPv6 address that was named instead of its network.
    address: Option<Prefix>,
}

/// The user who types the command, unless that is root. Under sudo, it is the user who called it.
pub(super) fn user() -> Option<String> {
    let uid = nix::unistd::getuid();
    let variable = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
    if let (true, Some(user)) = (uid.is_root(), variable("SUDO_USER")) {
        return Some(owner_of(user, &variable("SUDO_UID").unwrap_or_default()));
    }
    let user = nix::unistd::User::from_uid(uid).ok().flatten();
    user.filter(|_| !uid.is_root())
        .map(|user| owner_of(user.name, &uid.to_string()))
}

/// The owner of a user's bans; `uid 1000` if the name is reserved.
fn owner_of(user: String, uid: &str) -> String {
    match ban_owner::check(&user) {
        Err(ban_owner::OwnerError::Reserved(_)) => format!("uid {uid}").trim_end().to_owned(),
        _ => user,
    }
}

/// `192.0.2.7 --owner sshd`
fn unban_of(cidr: &str, owner: Option<&str>) -> String {
    owner.map_or_else(
        || cidr.to_owned(),
        |owner| format!("{cidr} --owner {owner:?}"),
    )
}

impl Named {
    /// The IPv6 address that was named.
    fn interface(&self) -> Option<Ipv6Addr> {
        match self.address?.address() {
            IpAddr::V6(address) => Some(address),
            IpAddr::V4(_) => None,
        }
    }

    fn widened(&self) -> Option<String> {
        let address = self.address?;
        Some(format!(
            "{} is the network of {}: write {address} for the address alone",
            self.prefix,
            address.address()
        ))
    }
}

/// The most bytes of a list: a million of the longest prefixes.
const MOST_BYTES: u64 = 64 << 20;

/// The prefixes on the command line and in the list; `None` if one is invalid, which has been printed.
fn named(cidrs: &[String], file: Option<&Path>, done: &str) -> Option<Vec<Named>> {
    let listed = match file {
        None => parse("", &cidrs.join("\n")),
        Some(path) => match read_text_argument(path, MOST_BYTES) {
            Ok(text) => parse(&argument_name(path), &text),
            Err(error) => Err(vec![format!("error: {error}")]),
        },
    };
    let fail = |wrong| eprintln!("{}\nnothing was {done}", summed_up(wrong).join("\n"));
    listed.map_err(fail).ok()
}

/// The most invalid lines that are printed.
const MOST_ERRORS: usize = 10;

/// The first errors and the number of the others.
fn summed_up(mut errors: Vec<String>) -> Vec<String> {
    let count = errors.len();
    if count > MOST_ERRORS {
        errors.truncate(MOST_ERRORS);
        let (all, others) = (number(count as u64), number((count - MOST_ERRORS) as u64));
        errors.push(format!(
            "{all} entries are invalid: these and {others} others"
        ));
    }
    errors
}

/// Parses one prefix per line; else returns all invalid lines.
fn parse(file: &str, text: &str) -> Result<Vec<Named>, Vec<String>> {
    let mut prefixes = Vec::new();
    let mut errors = Vec::new();
    for (nth, line) in text.lines().enumerate() {
        let content = line.split('#').next().unwrap_or("").trim();
        if content.is_empty() {
            continue;
        }
        match prefix::parse(content) {
            Ok(prefix) => {
                let network = (!content.contains('/'))
                    .then(|| prefix.network_of_host())
                    .flatten();
                let address = network.map(|_| prefix);
                prefixes.push(Named {
                    prefix: network.unwrap_or(prefix),
                    address,
                });
            }
            Err(wrong) if file.is_empty() => {
                errors.push(wrong.to_string());
            }
            Err(wrong) => errors.push(format!(
                "{file}:{}: {}: {}",
                nth + 1,
                wrong.message,
                wrong.help
            )),
        }
    }
    if prefixes.is_empty() && errors.is_empty() {
        let place = if file.is_empty() {
            format!("{text:?}")
        } else {
            file.to_owned()
        };
        errors.push(format!(
            "no address in {place}: write one, such as 192.0.2.10"
        ));
    }
    if errors.is_empty() {
        Ok(prefixes)
    } else {
        Err(errors)
    }
}

/// The prefix that would lock out the operator.
fn locked_out(prefixes: &[Named], client: Option<IpAddr>) -> Option<String> {
    let client = client?;
    let own = prefixes
        .iter()
        .find(|named| named.prefix.contains(client))?;
    Some(format!(
        "{} contains the address of this SSH session, {client}",
        own.prefix
    ))
}

/// Why a prefix cannot be banned.
fn obstacle_of(named: &Named) -> Option<String> {
    PrefixKey::from(&named.prefix).ban_obstacle()
}

/// The first prefix that is too wide for a ban without `--force`.
fn too_wide(prefixes: &[Named]) -> Option<String> {
    let wide = prefixes
        .iter()
        .find(|named| PrefixKey::from(&named.prefix).is_wide())?;
    Some(format!("{} is wider than /8 (IPv6: /16)", wide.prefix))
}

pub fn unban(
    cidrs: &[String],
    file: Option<&Path>,
    owner: Option<String>,
    all_owners: bool,
    options: &Options,
) -> anyhow::Result<ExitCode> {
    let Some(prefixes) = named(cidrs, file, "unbanned") else {
        return Ok(ExitCode::from(USAGE));
    };
    let client = options.client();
    let mut all = Unbanned::default();
    for part in prefixes.chunks(MOST_ORDERS) {
        // The agent finds the ban of an IPv6 address and of its /64.
        let cidrs = part
            .iter()
            .map(|named| named.address.unwrap_or(named.prefix).to_string());
        let some: Unbanned = client.ask(&Request::Unban {
            cidrs: cidrs.collect(),
            owner: owner.clone(),
            user: user(),
            all: all_owners,
        })?;
        all.unbanned += some.unbanned;
        all.was_banned |= some.was_banned;
        all.still_banned.extend(some.still_banned);
        all.excepted.extend(some.excepted);
        all.exceptions.extend(some.exceptions);
        all.exceptions_from_hosts.extend(some.exceptions_from_hosts);
        all.still_banned_by_crowdsec
            .extend(some.still_banned_by_crowdsec);
        all.narrower.extend(some.narrower);
    }
    print_unbanned(
        &all,
        options,
        owner.as_deref(),
        &prefixes
            .iter()
            .map(|named| named.prefix.to_string())
            .collect::<Vec<_>>()
            .join(", "),
    )
}

pub fn unban_all(options: &Options) -> anyhow::Result<ExitCode> {
    let all: Unbanned = options.client().ask(&Request::UnbanAll)?;
    print_unbanned(&all, options, None, "every prefix")
}

fn print_unbanned(
    all: &Unbanned,
    options: &Options,
    owner: Option<&str>,
    named: &str,
) -> anyhow::Result<ExitCode> {
    Print::from(options.json).document(all, |all| match (all.was_banned, owner) {
        (true, _) if all.unbanned == 0 => {}
        (true, _) => println!("{} unbanned", number(all.unbanned)),
        (false, Some(owner)) => {
            println!("{owner} has no ban of {named}: {PROGRAM} bans lists the bans");
        }
        (false, None) => println!("{named} was not banned: {PROGRAM} bans lists the bans"),
    })?;
    if !options.json {
        for Excepted { cidr, list } in &all.excepted {
            println!("{cidr} is an exception from ban lists now; list {list} contains it");
        }
        for exception in &all.exceptions {
            println!(
                "note: CrowdSec bans {exception}: its decisions do not apply there from now on; {PROGRAM} ban {exception} ends this \
                 exception"
            );
        }
        for exception in &all.exceptions_from_hosts {
            println!(
                "note: other hosts ban {exception} as part of another prefix: their bans do not apply there from now on, on \
                 this host; {PROGRAM} ban {exception} ends this exception"
            );
        }
        for prefix in &all.still_banned_by_crowdsec {
            println!(
                "note: CrowdSec still bans {prefix}: {PROGRAM} unban {prefix} --all makes an exception"
            );
        }
        for NarrowerBans {
            cidr,
            prefixes,
            first,
        } in &all.narrower
        {
            let what = match prefixes {
                1 => "1 ban of a prefix".to_owned(),
                many => format!("bans of {} prefixes", number(*many)),
            };
            println!(
                "note: {what} within {cidr}, such as {first}, remain: {PROGRAM} bans lists them"
            );
        }
        if all.banned_by_crowdsec > 0 {
            let count = number(all.banned_by_crowdsec);
            println!(
                "note: {count} bans by CrowdSec stay: cscli decisions delete deletes them, and so does leaving out [crowdsec]"
            );
        }
    }
    for still in &all.still_banned {
        let StillBanned {
            cidr,
            by,
            owners,
            own,
            ..
        } = still;
        let owners = owners.join(", ");
        if still.wider {
            let command = wider_command(by, *own, owner);
            eprintln!(
                "{cidr} is still banned, as part of {by}, by {owners}: {PROGRAM} unban {command}"
            );
        } else {
            eprintln!(
                "{cidr} is still banned by {owners}: {PROGRAM} unban {cidr} --all lifts the bans of all owners"
            );
        }
    }
    // A user who lifts a ban of his own succeeds, though others ban the same source.
    let has_failed = |still: &StillBanned| still.wider || !still.lifted;
    Ok(if all.still_banned.iter().any(has_failed) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// `192.0.2.0/24 --owner sshd`, if a ban of the wider prefix is the named owner's.
fn wider_command(by: &str, is_own: bool, owner: Option<&str>) -> String {
    if is_own {
        unban_of(by, owner)
    } else {
        format!("{by} --all")
    }
}

pub fn bans(options: &Options) -> anyhow::Result<ExitCode> {
    if !options.json {
        let status: Status = options.client().ask(&Request::Status)?;
        if let Some(lists) = &status.ban_lists {
            println!("{}\n", ban_lists(lists));
        }
    }
    ask(options, &Request::Bans, |rows: &Vec<BansRow>| {
        let until = |row: &BansRow| {
            let holder = &row.ban.holder;
            holder
                .expires_in_seconds
                .map_or_else(|| "until lifted".to_owned(), human::seconds)
        };
        let cidr = |row: &BansRow| match row.ban.holder.address {
            // It stands for its network.
            Some(address) => format!("{address} (/64)"),
            None => row.ban.cidr.clone(),
        };
        let reason = |row: &BansRow| {
            let reason = row.ban.holder.reason.clone();
            reason.unwrap_or_else(|| "-".to_owned())
        };
        let refused = |row: &BansRow| number(row.throttled_packets);
        let is_ordered = |row: &BansRow| row.ban.holder.origin == "operator";
        if !rows.iter().all(is_ordered) {
            let owner = |row: &BansRow| match is_ordered(row) {
                true => row.ban.holder.owner.clone(),
                // As the origin.
                false => "-".to_owned(),
            };
            let cells = |row: &BansRow| {
                let origin = row.ban.holder.origin.clone();
                [
                    cidr(row),
                    origin,
                    owner(row),
                    reason(row),
                    until(row),
                    refused(row),
                ]
            };
            let headings = [
                "CIDR",
                "ORIGIN",
                "OWNER",
                "REASON",
                "FOR ANOTHER",
                "THROTTLED",
            ];
            return table::render(headings, 4, rows.iter().map(cells));
        }
        let owner = |row: &BansRow| row.ban.holder.owner.clone();
        if rows.iter().all(|row| row.ban.holder.reason.is_none()) {
            let cells = |row: &BansRow| [cidr(row), owner(row), until(row), refused(row)];
            return table::render_or(
                "No bans.",
                ["CIDR", "OWNER", "FOR ANOTHER", "THROTTLED"],
                2,
                rows.iter().map(cells),
            );
        }
        let cells = |row: &BansRow| [cidr(row), owner(row), reason(row), until(row), refused(row)];
        let headings = ["CIDR", "OWNER", "REASON", "FOR ANOTHER", "THROTTLED"];
        table::render(headings, 3, rows.iter().map(cells))
    })
}

/// The ban lists as text: a table, exceptions and problems.
fn ban_lists(lists: &ListsStatus) -> String {
    let ago = |seconds: Option<f64>| seconds.map_or_else(|| "never".to_owned(), human::ago);
    let cells = |list: &ListStatus| {
        [
            list.name.clone(),
            number(list.prefixes),
            number(list.throttled_packets),
            ago(list.updated_seconds_ago),
            ago(list.checked_seconds_ago),
            human::seconds(list.next_in_seconds),
            list.action.clone(),
            list.source.clone(),
        ]
    };
    let headings = [
        "LIST",
        "PREFIXES",
        "THROTTLED",
        "UPDATED",
        "CHECKED",
        "NEXT IN",
        "ACTION",
        "SOURCE",
    ];
    let mut text = table::render(headings, 1, lists.lists.iter().map(cells));
    if !lists.exceptions.is_empty() {
        text.push_str(&format!(
            "\nexceptions from lists: {}",
            lists.exceptions.join(", ")
        ));
    }
    for list in &lists.lists {
        for problem in list.problem.iter().chain(&list.note) {
            text.push_str(&format!("\nnote: ban list {:?}: {problem}", list.name));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ban_names_a_user_or_a_reserved_names_uid() {
        assert_eq!(owner_of("alice".to_owned(), "1000"), "alice");
        assert_eq!(owner_of("operator".to_owned(), "1000"), "uid 1000");
        assert_eq!(owner_of("list".to_owned(), "7"), "uid 7");
    }

    #[test]
    fn the_command_for_a_wider_ban_names_its_owner() {
        let command = |is_own, owner| wider_command("192.0.2.0/24", is_own, owner);
        assert_eq!(command(true, Some("sshd")), "192.0.2.0/24 --owner \"sshd\"");
        assert_eq!(command(true, None), "192.0.2.0/24");
        assert_eq!(command(false, Some("sshd")), "192.0.2.0/24 --all");
    }

    #[test]
    fn a_list_has_comments_and_every_wrong_line_is_reported() {
        let list = "192.0.2.1 # scraper\n\n# nothing\n2001:db8::/32\n";
        let parsed = parse("list", list).unwrap();
        assert_eq!(
            parsed
                .iter()
                .map(|named| named.prefix.to_string())
                .collect::<Vec<_>>(),
            ["192.0.2.1/32", "2001:db8::/32"]
        );
        let errors = parse("list", "192.0.2.1\nnobody\n192.0.2.1/24\n")
            .map(|_| ())
            .unwrap_err();
        assert_eq!(errors.len(), 2);
        assert!(
            errors[0].starts_with("list:2: ") && errors[1].contains("192.0.2.0/24"),
            "{errors:?}"
        );
        assert!(parse("", "").is_err() && parse("list", "# none\n").is_err());
    }

    #[test]
    fn many_invalid_lines_are_summed_up() {
        let list: String = (0..1_300).map(|nth| format!("host{nth}\n")).collect();
        let errors = summed_up(parse("list", &list).map(drop).unwrap_err());
        assert_eq!(errors.len(), MOST_ERRORS + 1);
        assert!(errors[0].starts_with("list:1: "), "{errors:?}");
        assert_eq!(
            errors[MOST_ERRORS],
            "1,300 entries are invalid: these and 1,290 others"
        );
        assert_eq!(summed_up(vec!["one".to_owned()]), ["one"]);
    }

    #[test]
    fn an_ipv4_mapped_address_is_the_ipv4_address() {
        let prefixes = parse("", "::ffff:192.0.2.9").unwrap();
        assert_eq!(prefixes[0].prefix.to_string(), "192.0.2.9/32");
        assert!(prefixes[0].widened().is_none());
    }

    #[test]
    fn the_operators_own_address_is_found_in_a_prefix() {
        let prefixes = parse("", "192.0.2.0/24").unwrap();
        assert!(locked_out(&prefixes, "192.0.2.9".parse().ok()).is_some());
        assert!(locked_out(&prefixes, "192.0.3.9".parse().ok()).is_none());
        assert!(locked_out(&prefixes, None).is_none());
        assert!(too_wide(&prefixes).is_none());
        for wide in ["0.0.0.0/0", "12.0.0.0/7", "2000::/3"] {
            assert!(too_wide(&parse("", wide).unwrap()).is_some(), "{wide}");
        }
        // --force does not help.
        assert!(prefixes.iter().all(|named| obstacle_of(named).is_none()));
        assert!(obstacle_of(&parse("", "::/0").unwrap()[0]).is_some());
    }

    #[test]
    fn an_ipv6_address_stands_for_its_network() {
        let named = parse("", "2001:db8::7\n2001:db8::7/128\n192.0.2.7").unwrap();
        let prefixes: Vec<String> = named.iter().map(|named| named.prefix.to_string()).collect();
        assert_eq!(
            prefixes,
            ["2001:db8::/64", "2001:db8::7/128", "192.0.2.7/32"]
        );
        assert!(
            named[0].widened().unwrap().contains("2001:db8::7/128") && named[1].widened().is_none()
        );
    }
}
