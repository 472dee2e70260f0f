//! Formats of lists.

use std::net::IpAddr;

use config::PrefixKey;
use config::policy::{Column, ListFormat};
use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};
use thiserror::Error;

/// The most prefixes of all lists together.
pub const MOST_PREFIXES: usize = 4_000_000;
/// Longer lines are invalid.
const LONGEST_LINE: usize = 4096;
/// Characters of an invalid line that a message quotes.
const QUOTED: usize = 40;

/// The content of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// Distinct and in order.
    pub prefixes: Vec<PrefixKey>,
    /// Lines that were left out.
    pub invalid: u64,
    /// The number and the content of the first of them.
    pub first_invalid: Option<(u64, String)>,
}

/// A text is no list.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ListError {
    /// Most lines are invalid.
    #[error(
        "{invalid} of {lines} lines are invalid, the first is line {line}: {text:?}; check the format"
    )]
    Rubbish {
        invalid: u64,
        lines: u64,
        line: u64,
        text: String,
    },
    /// The first line has no such column.
    #[error("the first line has no column {0:?}; check the format")]
    NoColumn(String),
    /// More than [`MOST_PREFIXES`].
    #[error("more than {MOST_PREFIXES} prefixes")]
    TooMany,
}

impl Parsed {
    /// A note about invalid lines.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        let (line, text) = self.first_invalid.as_ref()?;
        let what = if self.invalid == 1 {
            "1 line is invalid".to_owned()
        } else {
            format!("{} lines are invalid", self.invalid)
        };
        Some(format!(
            "{what} and left out, the first is line {line}: {text:?}"
        ))
    }
}

/// Parses a list.
///
/// Prefixes are cut to their length. Those that are wider than /8, or /16 for IPv6, are invalid, as with `agent ban`.
///
/// # Errors
///
/// When more lines are invalid than valid, there are too many prefixes, or the column is missing.
pub fn parse(text: &[u8], format: &ListFormat) -> Result<Parsed, ListError> {
    let mut parsed = Parsed::default();
    let mut valid = 0u64;
    let mut lines = text.split(|byte| *byte == b'\n').zip(1u64..);
    let mut csv = None;
    if let ListFormat::Csv(column) = format {
        let (head, _) = lines.clone().next().unwrap_or((b"", 1));
        let delimiter = delimiter(head);
        let nth = match column {
            Column::Number(number) => number - 1,
            Column::Name(name) => {
                lines.next();
                let is_named = |field: &str| field.eq_ignore_ascii_case(name);
                let named = fields(&String::from_utf8_lossy(head), delimiter)
                    .iter()
                    .position(|field| is_named(field));
                named.ok_or_else(|| ListError::NoColumn(name.clone()))?
            }
        };
        csv = Some((nth, delimiter));
    }
    for (line, number) in lines {
        let before = parsed.prefixes.len();
        let result = match std::str::from_utf8(line) {
            _ if line.len() > LONGEST_LINE => Err(()),
            Err(_) => Err(()),
            Ok(line) => match csv {
                Some((nth, delimiter)) => row(line, nth, delimiter, &mut parsed.prefixes),
                None => entry(line, *format == ListFormat::Netset, &mut parsed.prefixes),
            },
        };
        match result {
            Ok(()) => valid += u64::from(parsed.prefixes.len() > before),
            // A header whose column is a number.
            Err(()) if number == 1 && csv.is_some() => {}
            Err(()) => {
                parsed.invalid += 1;
                parsed
                    .first_invalid
                    .get_or_insert_with(|| (number, quoted(line)));
            }
        }
        if parsed.prefixes.len() > MOST_PREFIXES {
            return Err(ListError::TooMany);
        }
    }
    if parsed.invalid > valid {
        let (line, text) = parsed.first_invalid.unwrap_or_default();
        return Err(ListError::Rubbish {
            invalid: parsed.invalid,
            lines: parsed.invalid + valid,
            line,
            text,
        });
    }
    parsed.prefixes.sort_unstable();
    parsed.prefixes.dedup();
    parsed.prefixes.shrink_to_fit();
    Ok(parsed)
}

/// The start of a line without control characters.
fn quoted(line: &[u8]) -> String {
    let start = &line[..line.len().min(4 * QUOTED)];
    let text = String::from_utf8_lossy(start);
    text.trim_end()
        .chars()
        .take(QUOTED)
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

/// A line of a plain list or a netset: nothing, or one entry.
fn entry(line: &str, is_netset: bool, prefixes: &mut Vec<PrefixKey>) -> Result<(), ()> {
    let content = line.split(['#', ';']).next().unwrap_or("");
    let mut words = content.split_ascii_whitespace();
    let Some(mut word) = words.next() else {
        return Ok(());
    };
    if is_netset && matches!(word, "create" | "add") {
        // `add SET ENTRY` of `ipset save`; its options follow.
        if word == "create" {
            return Ok(());
        }
        word = words.nth(1).ok_or(())?;
    }
    if let Some((first, last)) = word.split_once('-').filter(|_| is_netset) {
        return range(first, last, prefixes);
    }
    prefixes.push(prefix(word)?);
    Ok(())
}

fn row(line: &str, nth: usize, delimiter: char, prefixes: &mut Vec<PrefixKey>) -> Result<(), ()> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(());
    }
    let fields = fields(line, delimiter);
    prefixes.push(prefix(fields.get(nth).ok_or(())?)?);
    Ok(())
}

/// The separator of a table: the first of comma, semicolon and tab in its first line.
fn delimiter(head: &[u8]) -> char {
    head.iter()
        .map(|byte| char::from(*byte))
        .find(|c| matches!(c, ',' | ';' | '\t'))
        .unwrap_or(',')
}

/// The fields of a line, without quotation marks.
fn fields(line: &str, delimiter: char) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut is_quoted = false;
    for c in line.trim_end().chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            c if c == delimiter && !is_quoted => fields.push(String::new()),
            c => fields
                .last_mut()
                .into_iter()
                .for_each(|field| field.push(c)),
        }
    }
    fields
        .iter_mut()
        .for_each(|field| *field = field.trim().to_owned());
    fields
}

/// An address or a prefix, cut to its length.
fn prefix(text: &str) -> Result<PrefixKey, ()> {
    let net = match text.split_once('/') {
        None => IpNet::from(text.parse::<IpAddr>().map_err(drop)?),
        Some((address, length)) => {
            let address: IpAddr = address.parse().map_err(drop)?;
            IpNet::new(address, length.parse().map_err(drop)?)
                .map_err(drop)?
                .trunc()
        }
    };
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
    use proptest::prelude::*;

    use super::*;

    fn shown(parsed: &Parsed) -> Vec<String> {
        parsed.prefixes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_format_is_read() {
        let plain =
            b"# drop\n192.0.2.7\r\n192.0.2.0/24 ; SBL1\n\n2001:db8::1/32 # cut\n192.0.2.7\n";
        let parsed = parse(plain, &ListFormat::Plain).unwrap();
        assert_eq!(
            shown(&parsed),
            ["192.0.2.0/24", "192.0.2.7", "2001:db8::/32"]
        );
        assert_eq!((parsed.invalid, parsed.note()), (0, None));

        let netset = b"create drop hash:net family inet\nadd drop 198.51.100.0/25 timeout 0\n10.0.0.5-10.0.0.8\n";
        let parsed = parse(netset, &ListFormat::Netset).unwrap();
        assert_eq!(
            shown(&parsed),
            ["10.0.0.5", "10.0.0.6/31", "10.0.0.8", "198.51.100.0/25"]
        );

        let csv = b"first_seen,\"ip, address\",port\n2026-01-01,\"192.0.2.9\",443\n2026-01-02,2001:db8::9,443\n";
        for column in [Column::Number(2), Column::Name("IP, address".to_owned())] {
            let parsed = parse(csv, &ListFormat::Csv(column)).unwrap();
            assert_eq!(shown(&parsed), ["192.0.2.9", "2001:db8::9"]);
        }
        let missing = parse(csv, &ListFormat::Csv(Column::Name("address".to_owned())));
        assert_eq!(missing, Err(ListError::NoColumn("address".to_owned())));
    }

    #[test]
    fn few_invalid_lines_are_left_out_and_reported_and_rubbish_is_an_error() {
        let parsed = parse(
            b"192.0.2.1\n<html>\n192.0.2.2\n0.0.0.0/0\n192.0.2.3\n",
            &ListFormat::Plain,
        )
        .unwrap();
        assert_eq!((parsed.prefixes.len(), parsed.invalid), (3, 2));
        assert_eq!(
            parsed.note().unwrap(),
            "2 lines are invalid and left out, the first is line 2: \"<html>\""
        );
        let rubbish: Vec<u8> = (0..1_000_000)
            .flat_map(|nth| format!("rubbish {nth}\n").into_bytes())
            .collect();
        let error = parse(&rubbish, &ListFormat::Plain).unwrap_err().to_string();
        assert!(
            error.starts_with(
                "1000000 of 1000000 lines are invalid, the first is line 1: \"rubbish 0\""
            ),
            "{error}"
        );
        let binary = parse(&[0xff, b'\n', 0, 7, b'\n'], &ListFormat::Netset).unwrap_err();
        assert!(
            matches!(binary, ListError::Rubbish { invalid: 2, .. }),
            "{binary}"
        );
    }

    #[test]
    fn no_list_bans_a_large_part_of_the_internet() {
        for everything in [
            "0.0.0.0/0",
            "::/0",
            "::ffff:0:0/96",
            "0.0.0.0-255.255.255.255",
            "64.0.0.0/7",
            "::/80",
        ] {
            assert!(
                parse(everything.as_bytes(), &ListFormat::Netset).is_err(),
                "{everything}"
            );
        }
        assert!(parse(b"", &ListFormat::Plain).unwrap().prefixes.is_empty());
    }

    #[test]
    fn a_million_lines_are_read() {
        let text: Vec<u8> = (0..1_000_000u32)
            .flat_map(|nth| {
                format!(
                    "{}\n",
                    std::net::Ipv4Addr::from(nth.wrapping_mul(2_654_435_761))
                )
                .into_bytes()
            })
            .collect();
        let began = std::time::Instant::now();
        let parsed = parse(&text, &ListFormat::Plain).unwrap();
        println!("a million lines took {:?}", began.elapsed());
        // The numbers are distinct; 0.0.0.0 is a valid address.
        assert_eq!((parsed.prefixes.len(), parsed.invalid), (1_000_000, 0));
    }

    fn any_format() -> impl Strategy<Value = ListFormat> {
        prop_oneof![
            Just(ListFormat::Plain),
            Just(ListFormat::Netset),
            (1usize..4).prop_map(|nth| ListFormat::Csv(Column::Number(nth))),
            Just(ListFormat::Csv(Column::Name("a".to_owned()))),
        ]
    }

    proptest! {
        #[test]
        fn no_text_stops_the_parser(text in prop::collection::vec(any::<u8>(), 0..400), format in any_format()) {
            let _ = parse(&text, &format);
        }

        #[test]
        fn texts_like_lists_give_distinct_prefixes_in_order(
            text in "([0-9a-f:.]{1,20}(/[0-9]{1,3}|-[0-9.]{1,15})?[ ;#,]{0,2}\n){0,30}", format in any_format(),
        ) {
            if let Ok(parsed) = parse(text.as_bytes(), &format) {
                prop_assert!(parsed.prefixes.windows(2).all(|pair| pair[0] < pair[1]));
                prop_assert!(parsed.prefixes.iter().all(|prefix| prefix.cut(prefix.length) == *prefix));
                prop_assert!(parsed.prefixes.iter().all(|prefix| !prefix.is_wide()));
            }
        }
    }
}
