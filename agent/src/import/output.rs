//! Found limits, bans and exempt sources as limits.toml.

use std::collections::BTreeSet;
use std::path::Path;

use config::human::number;
use config::policy::{DEFAULT_SOURCES, MOST_SOURCES};
use host::PROGRAM;
use ipnet::IpNet;

use super::document::{Import, ListFile, Options};
use super::found::{Found, FoundBans, LeftOut};
use super::limit::limit_toml;
use super::names::{quoted, quoted_list, unique};
use super::prefixes::short;
use crate::comments::comment;

/// The most ban lists of a config.
const MOST_LISTS: usize = config::ban_list::MOST_LISTS;

/// Lines as comments, which take effect once their # is removed.
fn commented(out: &mut String, lines: &str) {
    lines.lines().for_each(|line| *out += &format!("#{line}\n"));
}

/// The config and its lists.
pub fn write(mut found: Found, options: &Options) -> Import {
    let mut names = BTreeSet::new();
    let mut interfaces: BTreeSet<String> = options.interfaces.iter().cloned().collect();
    let mut blocks = String::new();
    let (mut limits, mut ban_lists, mut commented_rules) = (0, 0, 0);
    let mut lists = Vec::new();
    for ((name, more), bans) in std::mem::take(&mut found.bans) {
        if lists.len() >= MOST_LISTS {
            found.leave_out(
                &format!("a config has at most {MOST_LISTS} ban lists"),
                &bans.origins.join("; "),
            );
            continue;
        }
        let name = unique(&name, &mut names);
        if more.is_some() {
            commented_rules += bans.origins.len() as u64 + bans.further;
        }
        ban_list(&mut blocks, &name, &bans, more.as_deref(), options);
        ban_lists += usize::from(more.is_none());
        lists.push(list(name, bans, options));
    }
    let mut limit_names = BTreeSet::new();
    let mut sources = 0u64;
    for of in std::mem::take(&mut found.limits) {
        let (text, notes) = match limit_toml(&of, &mut limit_names) {
            Ok(written) => written,
            Err(why) => {
                found.leave_out(&why, &of.origin);
                continue;
            }
        };
        blocks.push('\n');
        comment(&mut blocks, &quoted(&of.origin));
        of.notes
            .iter()
            .chain(&notes)
            .for_each(|note| comment(&mut blocks, note));
        interfaces.extend(
            of.conditions
                .interfaces
                .iter()
                .flatten()
                .filter(|name| *name != "lo")
                .cloned(),
        );
        match &of.more {
            None => {
                blocks += &text;
                limits += 1;
                sources = sources.saturating_add(of.limit.size.unwrap_or(0));
            }
            Some(more) => {
                comment(
                    &mut blocks,
                    &format!(
                        "Not carried over: {}. Weir would refuse more. To enforce it all the same, remove \
                    the # of these lines:",
                        quoted(more)
                    ),
                );
                commented(&mut blocks, &text);
                commented_rules += 1;
            }
        }
    }
    for (text, block) in &found.offers {
        blocks.push('\n');
        comment(&mut blocks, text);
        commented(&mut blocks, block);
    }
    left_out(&mut blocks, &found);
    let mut config = String::new();
    head(
        &mut config,
        &found,
        (limits, ban_lists, commented_rules),
        &interfaces,
    );
    if sources > u64::from(DEFAULT_SOURCES) {
        comment(&mut config, "--hashlimit-htable-max of all limits together");
        config += &format!("max_sources = {}\n", sources.min(MOST_SOURCES.into()));
    }
    config += &blocks;
    Import {
        config,
        limits,
        ban_lists,
        exempt: found.exempt.len(),
        lists,
        not_carried_over: found.left_out,
    }
}

/// The first comment, and `[agent]`.
fn head(
    out: &mut String,
    found: &Found,
    (limits, lists, commented_rules): (usize, usize, u64),
    interfaces: &BTreeSet<String>,
) {
    let count = |of: usize, what: &str| {
        format!(
            "{} {what}{}",
            number(of as u64),
            if of == 1 { "" } else { "s" }
        )
    };
    let left: u64 = commented_rules + found.left_out.values().map(|left| left.count).sum::<u64>();
    comment(
        out,
        &format!(
            "Imported by `{PROGRAM} import`: {}, {}, {}. {} not carried over: see the comments. Try it with `{PROGRAM} try FILE`.",
            count(limits, "limit"),
            count(lists, "ban list"),
            count(found.exempt.len(), "exempt prefix").replace("prefixs", "prefixes"),
            if left == 1 {
                "1 rule or set is".to_owned()
            } else {
                format!("{} rules or sets are", number(left))
            },
        ),
    );
    if limits + lists > 0 {
        comment(
            out,
            "Weir counts all incoming packets of its interfaces, those that the host forwards, too. On a router, name the \
             host's own ports or interfaces in each limit.",
        );
    }
    *out += "[agent]\n";
    if interfaces.is_empty() {
        *out += "interfaces = [\"eth0\"]   # the rules name none: write the host's interfaces\n";
    } else {
        let names: Vec<String> = interfaces
            .iter()
            .map(|name| format!("\"{name}\""))
            .collect();
        *out += &format!(
            "interfaces = [{}]   # add the host's others\n",
            names.join(", ")
        );
    }
    if limits + lists == 0 {
        *out += "allow_empty = true\n";
    }
    if !found.exempt.is_empty() {
        let mut origins: Vec<String> = found
            .exempt_origins
            .iter()
            .map(|origin| quoted(origin))
            .collect();
        if found.exempt_further > 0 {
            origins.push(format!("{} more", number(found.exempt_further)));
        }
        comment(
            out,
            &format!("Exempt from every limit and ban: {}", origins.join("; ")),
        );
        *out += &format!(
            "never_limit = [{}]\n",
            quoted_list(found.exempt.iter().map(short))
        );
    }
}

fn ban_list(out: &mut String, name: &str, bans: &FoundBans, more: Option<&str>, options: &Options) {
    out.push('\n');
    let further = if bans.further > 0 {
        format!("; {} more", number(bans.further))
    } else {
        String::new()
    };
    let origins: Vec<String> = bans.origins.iter().map(|origin| quoted(origin)).collect();
    comment(out, &format!("{}{further}", origins.join("; ")));
    bans.notes.iter().for_each(|note| comment(out, note));
    let file = options.list_directory().join(format!("{name}.netset"));
    if options.lists.is_none() {
        let directory = options.list_directory().display().to_string();
        comment(
            out,
            &format!(
                "Prefixes: {}. To write the file: {PROGRAM} import --lists {directory} with the same input.",
                number(bans.prefixes.len() as u64)
            ),
        );
    }
    let block = format!(
        "[[ban_list]]\nname = \"{name}\"\nfile = \"{}\"\nformat = \"netset\"\n",
        file.display()
    );
    match more {
        None => *out += &block,
        Some(more) => {
            comment(
                out,
                &format!(
                    "Not carried over: {}. To refuse them all the same, remove the # of these lines:",
                    quoted(more)
                ),
            );
            commented(out, &block);
        }
    }
}

/// The file of a list: its prefixes in order, without those inside others.
fn list(name: String, bans: FoundBans, options: &Options) -> ListFile {
    let prefixes = IpNet::aggregate(&bans.prefixes);
    let path = options.list_directory().join(format!("{name}.netset"));
    ListFile {
        name,
        path,
        prefixes,
    }
}

/// Rules that are not carried over, by reason.
fn left_out(out: &mut String, found: &Found) {
    for (why, LeftOut { count, rules }) in &found.left_out {
        out.push('\n');
        comment(out, &format!("Not carried over: {}:", quoted(why)));
        rules
            .iter()
            .for_each(|rule| comment(out, &format!("- {}", quoted(rule))));
        let more = count - rules.len() as u64;
        if more > 0 {
            comment(out, &format!("- and {} more", number(more)));
        }
    }
}

/// Whether a path can be written in the config.
pub fn is_plain(path: &Path) -> bool {
    path.is_absolute()
        && path.to_str().is_some_and(|text| {
            !text
                .chars()
                .any(|c| c.is_control() || c == '"' || c == '\\')
        })
}
