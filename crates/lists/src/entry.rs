//! Entries of lists that are text: addresses, prefixes, ranges, and lines of `ipset save`.
//!
//! A line is understood as a whole, or invalid.

use std::net::{IpAddr, Ipv4Addr};

use config::PrefixKey;
use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};

/// Longer lines are invalid.
pub(crate) const LONGEST_LINE: usize = 4096;
/// Fields of a line of DShield's block list: start, end, length, attacks, name, country, address for complaints.
const BLOCK_FIELDS: usize = 7;

/// A line of `ipset save`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Saved<'l> {
    /// A line that adds nothing.
    Nothing,
    /// An entry of a set; `nomatch` makes it an exception.
    Added {
        set: &'l str,
        entry: &'l str,
        is_exception: bool,
    },
}

/// Adds the prefixes of a line: nothing, or one entry. `#` and `;` begin a comment.
pub(crate) fn line(line: &str, prefixes: &mut Vec<PrefixKey>) -> Result<(), ()> {
    let content = line.split(['#', ';']).next().unwrap_or("").trim();
    if content.is_empty() {
        return Ok(());
    }
    whole(content, prefixes)
}

/// Adds the prefixes of one entry, which has no comment.
pub(crate) fn whole(content: &str, prefixes: &mut Vec<PrefixKey>) -> Result<(), ()> {
    if !content.contains([' ', '\t']) {
        return single(content, prefixes);
    }
    let words: Vec<&str> = content.split_ascii_whitespace().collect();
    match words.as_slice() {
        [first, "-", last] => range(first, last, prefixes),
        [first, last] if first.ends_with('-') => range(first.trim_end_matches('-'), last, prefixes),
        [first, last] if last.starts_with('-') => {
            range(first, last.trim_start_matches('-'), prefixes)
        }
        [address, mask] => {
            let net = IpNet::V4(masked(address.parse().map_err(drop)?, mask)?);
            prefixes.push(narrow(net)?);
            Ok(())
        }
        [start, end, netblock, ..] if is_block_heading([start, end, netblock]) => Ok(()),
        _ => block(content, prefixes),
    }
}

fn is_block_heading(words: [&str; 3]) -> bool {
    ["start", "end", "netblock"]
        .iter()
        .zip(words)
        .all(|(expected, word)| word.eq_ignore_ascii_case(expected))
}

/// A line of a block list: start, end and length, which name the same addresses; then fields about them, behind tabs.
fn block(content: &str, prefixes: &mut Vec<PrefixKey>) -> Result<(), ()> {
    let (addresses, about) = match content.contains('\t') {
        true => {
            let mut fields = content.split('\t').map(str::trim);
            let addresses: Vec<&str> = fields.by_ref().take(3).collect();
            (addresses, fields.collect())
        }
        false => (content.split_ascii_whitespace().collect(), Vec::new()),
    };
    let [start, end, length] = addresses[..] else {
        return Err(());
    };
    let is_count = |attacks: &&str| attacks.parse::<u64>().is_ok();
    if about.len() > BLOCK_FIELDS - 3 || !about.first().is_none_or(is_count) {
        return Err(());
    }
    let mut of_range = Vec::new();
    range(start, end, &mut of_range)?;
    let prefix = prefix(&format!("{start}/{length}"))?;
    if of_range != [prefix] {
        return Err(());
    }
    prefixes.push(prefix);
    Ok(())
}

/// An address, a prefix, or a range without spaces.
pub(crate) fn single(word: &str, prefixes: &mut Vec<PrefixKey>) -> Result<(), ()> {
    match word.split_once('-') {
        Some((first, last)) => range(first, last, prefixes),
        None => {
            prefixes.push(prefix(word)?);
            Ok(())
        }
    }
}

/// A line of `ipset save`; `None` for any other.
pub(crate) fn saved(line: &str) -> Option<Result<Saved<'_>, ()>> {
    let line = line.trim();
    let verb = line.split_ascii_whitespace().next()?;
    match verb {
        "create" | "-N" | "flush" | "-F" | "COMMIT" => Some(Ok(Saved::Nothing)),
        "add" | "-A" => Some(added(&line[verb.len()..])),
        "del" | "-D" | "destroy" | "-X" | "rename" | "-E" | "swap" | "-W" => Some(Err(())),
        _ => None,
    }
}

/// `SET ENTRY` and options, all of which must be known: a later version's may change what the entry matches.
fn added(rest: &str) -> Result<Saved<'_>, ()> {
    let mut words = Words(rest);
    let set = words.next().ok_or(())??;
    let entry = words.next().ok_or(())??;
    let mut is_exception = false;
    while let Some(option) = words.next() {
        match option? {
            "nomatch" => is_exception = true,
            "-exist" | "-!" => {}
            "timeout" | "packets" | "bytes" | "comment" | "skbmark" | "skbprio" | "skbqueue" => {
                words.next().ok_or(())??;
            }
            _ => return Err(()),
        }
    }
    Ok(Saved::Added {
        set,
        entry,
        is_exception,
    })
}

/// Words, of which some are in quotation marks, up to a comment. An error is an unfinished quotation.
struct Words<'l>(&'l str);

impl<'l> Iterator for Words<'l> {
    type Item = Result<&'l str, ()>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.0.trim_start();
        if rest.is_empty() || rest.starts_with(['#', ';']) {
            return None;
        }
        if let Some(quoted) = rest.strip_prefix('"') {
            let Some((word, rest)) = quoted.split_once('"') else {
                self.0 = "";
                return Some(Err(()));
            };
            self.0 = rest;
            return Some(Ok(word));
        }
        let end = rest
            .find(|c: char| c.is_ascii_whitespace())
            .unwrap_or(rest.len());
        self.0 = &rest[end..];
        Some(Ok(&rest[..end]))
    }
}

/// An address or a prefix, cut to its length.
pub(crate) fn prefix(text: &str) -> Result<PrefixKey, ()> {
    narrow(net(text)?)
}

/// A prefix of an exception, which may be wide.
pub(crate) fn exception(text: &str, prefixes: &mut Vec<PrefixKey>) -> Result<(), ()> {
    match text.split_once('-') {
        Some((first, last)) => range(first, last, prefixes),
        None => {
            prefixes.push(PrefixKey::from(net(text)?));
            Ok(())
        }
    }
}

fn net(text: &str) -> Result<IpNet, ()> {
    let Some((address, length)) = text.split_once('/') else {
        return Ok(IpNet::from(text.parse::<IpAddr>().map_err(drop)?));
    };
    let address: IpAddr = address.parse().map_err(drop)?;
    if let (IpAddr::V4(address), true) = (address, length.contains('.')) {
        return Ok(IpNet::V4(masked(address, length)?));
    }
    // `parse` takes a sign.
    if !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(());
    }
    let net = IpNet::new(address, length.parse().map_err(drop)?).map_err(drop)?;
    Ok(net.trunc())
}

/// An address with a netmask, such as 255.255.255.0.
fn masked(address: Ipv4Addr, mask: &str) -> Result<ipnet::Ipv4Net, ()> {
    let mask: Ipv4Addr = mask.parse().map_err(drop)?;
    let net = ipnet::Ipv4Net::with_netmask(address, mask).map_err(drop)?;
    Ok(net.trunc())
}

fn narrow(net: IpNet) -> Result<PrefixKey, ()> {
    let key = PrefixKey::from(net);
    if key.is_wide() { Err(()) } else { Ok(key) }
}

/// The prefixes of the addresses from the first to the last.
fn range(first: &str, last: &str, prefixes: &mut Vec<PrefixKey>) -> Result<(), ()> {
    let (first, last): (IpAddr, IpAddr) =
        (first.parse().map_err(drop)?, last.parse().map_err(drop)?);
    if first > last {
        return Err(());
    }
    let nets: Vec<IpNet> = match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            Ipv4Subnets::new(first, last, 0).map(IpNet::from).collect()
        }
        (IpAddr::V6(first), IpAddr::V6(last)) => {
            Ipv6Subnets::new(first, last, 0).map(IpNet::from).collect()
        }
        _ => return Err(()),
    };
    let keys: Vec<PrefixKey> = nets.into_iter().map(PrefixKey::from).collect();
    if keys.iter().any(PrefixKey::is_wide) {
        return Err(());
    }
    prefixes.extend(keys);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Vec<String>> {
        let mut prefixes = Vec::new();
        line(text, &mut prefixes).ok()?;
        Some(prefixes.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn an_entry_is_an_address_a_prefix_a_range_or_a_netmask() {
        for (text, expected) in [
            ("192.0.2.1", &["192.0.2.1"][..]),
            ("192.0.2.9/24 # cut", &["192.0.2.0/24"]),
            ("192.0.2.0/255.255.255.0", &["192.0.2.0/24"]),
            ("192.0.2.0 255.255.255.128", &["192.0.2.0/25"]),
            ("192.0.2.4-192.0.2.7", &["192.0.2.4/30"]),
            ("192.0.2.4 - 192.0.2.7", &["192.0.2.4/30"]),
            ("192.0.2.4- 192.0.2.7", &["192.0.2.4/30"]),
            ("192.0.2.4 -192.0.2.7", &["192.0.2.4/30"]),
            ("192.0.2.0\t192.0.2.255\t24", &["192.0.2.0/24"]),
            ("192.0.2.0 192.0.2.255 24", &["192.0.2.0/24"]),
            (
                "192.0.2.0\t192.0.2.255\t24\t1500\tAN EXAMPLE-NET\tXX\ta-b@example.org",
                &["192.0.2.0/24"],
            ),
            ("Start\tEnd\tNetblock\tAttacks", &[]),
            ("2001:db8:: - 2001:db8::ffff", &["2001:db8::/112"]),
            ("::ffff:192.0.2.9", &["192.0.2.9"]),
            ("; a comment", &[]),
        ] {
            assert_eq!(
                read(text).unwrap_or_else(|| panic!("{text}")),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn a_line_that_is_valid_only_in_part_is_invalid() {
        for text in [
            "192.0.2.1 192.0.2.9",
            "192.0.2.1 198.51.100.1 24",
            "192.0.2.0\t192.0.2.255\t25",
            "192.0.2.0\t192.0.2.255\t24\tmany",
            "192.0.2.0 0.0.0.255",
            "192.0.2.0 255.0.255.0",
            "192.0.2.1 5",
            "192.0.2.1\t5",
            "192.0.2.1,5",
            "192.0.2.1 example.org",
            "0.0.0.0 example.org",
            "192.0.2.1 - ",
            "192.0.2.1 - 192.0.2.9 - 192.0.2.20",
            "192.0.2.9 - 192.0.2.1",
            "192.0.2.1-9",
            "192.0.2.1:80",
            "192.0.2.0/+24",
            "!192.0.2.1",
            "001.002.003.004 - 001.002.003.255 , 000 , name",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn options_of_a_saved_entry_are_known_or_it_is_invalid() {
        let entry = |line| match saved(line)? {
            Ok(Saved::Added {
                set,
                entry,
                is_exception,
            }) => Some((set, entry, is_exception)),
            _ => None,
        };
        assert_eq!(
            entry("add bl 192.0.2.7 timeout 300 packets 1 bytes 60 comment \"a # b; nomatch\""),
            Some(("bl", "192.0.2.7", false))
        );
        assert_eq!(
            entry("add bl 192.0.2.7 comment \"a # b\" nomatch"),
            Some(("bl", "192.0.2.7", true))
        );
        assert_eq!(
            entry("add bl 192.0.2.7 # a comment"),
            Some(("bl", "192.0.2.7", false))
        );
        assert_eq!(saved("create bl hash:net"), Some(Ok(Saved::Nothing)));
        for wrong in [
            "add bl",
            "add bl 192.0.2.7 timeout",
            "add bl 192.0.2.7 comment \"a",
            "add bl 192.0.2.7 wildcard",
            "del bl 192.0.2.7",
        ] {
            assert_eq!(saved(wrong), Some(Err(())), "{wrong}");
        }
        assert_eq!(saved("192.0.2.7"), None);
    }
}
