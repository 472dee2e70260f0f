//! Which format a text has.

use super::document::{Format, ImportError};
use super::prefixes;
use host::PROGRAM;

/// Detects the format by the first line that is no comment.
pub fn format(name: &str, text: &str) -> Result<Format, ImportError> {
    let Some(line) = first_line(text) else {
        return Err(ImportError::Empty(name.to_owned()));
    };
    let unknown = |why: &str| Err(ImportError::Unknown(name.to_owned(), why.to_owned()));
    let word = line.split_ascii_whitespace().next().unwrap_or_default();
    let is_lines_of = |options: &[&str]| options.contains(&word);
    if line.starts_with('{') {
        Ok(Format::Nftables)
    } else if is_lines_of(&["create", "add"]) {
        Ok(Format::Ipset)
    } else if line.starts_with('*')
        || line.starts_with(':')
        || is_lines_of(&["-A", "-P", "-N"])
        || is_counted(line)
    {
        Ok(Format::Hashlimit)
    } else if line.starts_with("[[")
        || (is_ini(text) && text.lines().any(|line| line.starts_with("[[")))
    {
        unknown(&format!(
            "a limits.toml already: {PROGRAM} check validates it"
        ))
    } else if is_ini(text)
        || line.starts_with("[{")
        || line.starts_with("Status for the jail")
        || line.contains(" + ")
    {
        Ok(Format::Fail2ban)
    } else if is_lines_of(&["table", "set", "chain"]) {
        unknown(
            "nftables' rules as text are not supported: print them as JSON, with nft -j list ruleset",
        )
    } else if prefixes::append(word, &mut Vec::new()) {
        unknown(&format!(
            "a list of addresses: {PROGRAM} ban --file takes it, a [[ban_list]] names it, --from fail2ban imports it"
        ))
    } else {
        unknown(
            "not nft -j list ruleset, ipset save, iptables-save, fail2ban-client banned or jail.local; if it is one of them, \
             name it with --from",
        )
    }
}

fn first_line(text: &str) -> Option<&str> {
    text.lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with(['#', ';']))
}

/// Whether it is a file of sections, such as jail.local.
pub fn is_ini(text: &str) -> bool {
    let Some(name) = first_line(text).and_then(|line| line.strip_prefix('[')?.split(']').next())
    else {
        return false;
    };
    !is_counted(first_line(text).unwrap_or_default())
        && !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_alphanumeric() || "-_. ".contains(c))
}

/// A rule of `iptables-save -c`: `[0:0] -A INPUT …`.
fn is_counted(line: &str) -> bool {
    line.strip_prefix('[')
        .and_then(|rest| rest.split_once("] "))
        .is_some_and(|(_, rule)| rule.starts_with("-A "))
}
