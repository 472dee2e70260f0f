//! Formats of lists.

use std::collections::HashMap;

use config::PrefixKey;
use config::policy::ListFormat;

use crate::entry::{self, LONGEST_LINE, Saved};
use crate::error::ListError;
use crate::json;
use crate::nomatch::{MOST_PREFIXES, without};
use crate::table::Table;

/// Characters of an invalid line that a message quotes.
const QUOTED: usize = 40;
/// U+FEFF in UTF-8, with which some editors begin a file.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

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

/// The entries of a set; those of a list without sets have no name.
#[derive(Default)]
struct Set {
    name: String,
    prefixes: Vec<PrefixKey>,
    exceptions: Vec<PrefixKey>,
    /// Its part of [`Found::entries`].
    counted: usize,
}

/// The content of lines so far.
#[derive(Default)]
struct Found {
    sets: Vec<Set>,
    /// The place of each set.
    places: HashMap<String, usize>,
    /// The set of the last entry.
    current: usize,
    /// The entries of all sets.
    entries: usize,
}

impl Found {
    fn set(&mut self, name: &str) -> &mut Set {
        if self
            .sets
            .get(self.current)
            .is_none_or(|set| set.name != name)
        {
            let known = self.places.get(name).copied();
            self.current = known.unwrap_or(self.sets.len());
        }
        if self.current == self.sets.len() {
            self.places.insert(name.to_owned(), self.current);
            self.sets.push(Set {
                name: name.to_owned(),
                ..Set::default()
            });
        }
        &mut self.sets[self.current]
    }

    /// Counts the entries of the last line.
    fn count(&mut self) {
        if let Some(set) = self.sets.get_mut(self.current) {
            let entries = set.prefixes.len() + set.exceptions.len();
            self.entries += entries - set.counted;
            set.counted = entries;
        }
    }

    fn line(&mut self, line: &str, number: u64, reader: &Reader<'_>) -> Result<(), ()> {
        let cell = match reader {
            Reader::Lines { with_sets } => {
                let saved = entry::saved(line).filter(|_| *with_sets);
                return match saved.transpose()? {
                    None => entry::line(line, &mut self.set("").prefixes),
                    Some(Saved::Nothing) => Ok(()),
                    Some(Saved::Added {
                        set,
                        entry,
                        is_exception: false,
                    }) => entry::single(entry, &mut self.set(set).prefixes),
                    Some(Saved::Added { set, entry, .. }) => {
                        entry::exception(entry, &mut self.set(set).exceptions)
                    }
                };
            }
            Reader::Table(table) => table.cell(line, number)?,
            Reader::Json(field) => json::cell(line, field)?,
        };
        let Some(cell) = cell else { return Ok(()) };
        let prefixes = &mut self.set("").prefixes;
        let before = prefixes.len();
        entry::whole(cell.trim(), prefixes)?;
        if prefixes.len() > before {
            Ok(())
        } else {
            Err(())
        }
    }

    /// The prefixes of all sets, each without its exceptions.
    fn prefixes(self) -> Vec<PrefixKey> {
        let mut all = Vec::new();
        for set in self.sets {
            if set.exceptions.is_empty() && all.is_empty() {
                all = set.prefixes;
            } else if set.exceptions.is_empty() {
                all.extend(set.prefixes);
            } else {
                without(set.prefixes, set.exceptions, &mut all);
            }
        }
        all
    }
}

/// Reads the lines of one format.
enum Reader<'f> {
    Lines {
        /// Whether lines of `ipset save` are entries.
        with_sets: bool,
    },
    Table(Table),
    /// The field of the address.
    Json(&'f str),
}

/// Parses a list. A byte order mark at its start is skipped.
///
/// A line is read as a whole, or invalid. Prefixes are cut to their length. Those that are wider than /8, or /16 for IPv6,
/// are invalid, as with `weir ban`.
///
/// # Errors
///
/// When more lines are invalid than valid, there are too many prefixes, or the column is missing.
pub fn parse(text: &[u8], format: &ListFormat) -> Result<Parsed, ListError> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let reader = match format {
        ListFormat::Plain => Reader::Lines { with_sets: false },
        ListFormat::Netset => Reader::Lines { with_sets: true },
        ListFormat::Csv(column) => Reader::Table(Table::of(column, text)?),
        ListFormat::Json(field) => Reader::Json(field),
    };
    let mut parsed = Parsed::default();
    let mut found = Found::default();
    let mut valid = 0u64;
    for (line, number) in text.split(|byte| *byte == b'\n').zip(1u64..) {
        let result = match std::str::from_utf8(line) {
            _ if line.len() > LONGEST_LINE => Err(()),
            Err(_) => Err(()),
            Ok(line) => found.line(line, number, &reader),
        };
        match result {
            Ok(()) => {
                let before = found.entries;
                found.count();
                valid += u64::from(found.entries > before);
            }
            // A header whose column is a number.
            Err(()) if matches!(&reader, Reader::Table(table) if table.may_be_header(line, number)) =>
                {}
            Err(()) => {
                parsed.invalid += 1;
                parsed
                    .first_invalid
                    .get_or_insert_with(|| (number, quoted(line)));
            }
        }
        if found.entries > MOST_PREFIXES {
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
    parsed.prefixes = found.prefixes();
    if parsed.prefixes.len() > MOST_PREFIXES {
        return Err(ListError::TooMany);
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

#[cfg(test)]
mod tests {
    use config::policy::Column;
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
    fn a_byte_order_mark_is_no_part_of_the_first_entry() {
        let named = ListFormat::Csv(Column::Name("ip".to_owned()));
        for (text, format) in [
            ("\u{feff}192.0.2.1\n", ListFormat::Plain),
            ("\u{feff}192.0.2.1", ListFormat::Netset),
            ("\u{feff}ip,score\r\n192.0.2.1,5\r\n", named),
            (
                "\u{feff}{\"cidr\":\"192.0.2.1\"}",
                ListFormat::Json("cidr".to_owned()),
            ),
        ] {
            let parsed = parse(text.as_bytes(), &format).unwrap();
            assert_eq!(
                (shown(&parsed), parsed.invalid),
                (vec!["192.0.2.1".to_owned()], 0)
            );
        }
    }

    #[test]
    fn nomatch_is_an_exception_within_its_set() {
        let text = b"create a hash:net\nadd a 198.51.100.0/24\nadd a 198.51.100.128/25 nomatch\n\
            add a 198.51.100.129\ncreate b hash:net\nadd b 198.51.100.192/26\nadd b 203.0.113.0/24 nomatch\n";
        let parsed = parse(text, &ListFormat::Netset).unwrap();
        assert_eq!(
            shown(&parsed),
            ["198.51.100.0/25", "198.51.100.129", "198.51.100.192/26"]
        );
        assert_eq!(parsed.invalid, 0);
    }

    #[test]
    fn the_header_of_a_table_is_the_first_line_that_is_no_comment() {
        let named = |name: &str| ListFormat::Csv(Column::Name(name.to_owned()));
        let by_number = ListFormat::Csv(Column::Number(2));
        let rows = "2025-01-01,192.0.2.1,443\n2025-01-02,192.0.2.2,443\n# END\n";
        for (head, format) in [
            ("# Terms; see x\n#\n\nseen,dst_ip,port\n", named("dst_ip")),
            ("# Terms; see x\nseen,dst_ip,port\n", by_number.clone()),
            ("# Terms; see x\n", by_number),
            ("# Terms; see x\n# seen,dst_ip,port\n", named("dst_ip")),
        ] {
            let parsed = parse(format!("{head}{rows}").as_bytes(), &format).unwrap();
            assert_eq!(shown(&parsed), ["192.0.2.1", "192.0.2.2"], "{head}");
            assert_eq!(parsed.invalid, 0, "{head}");
        }
        let quoted = b"\"a;b\",\"ip\"\n\"x\",\"192.0.2.1\"\n";
        assert_eq!(shown(&parse(quoted, &named("ip")).unwrap()), ["192.0.2.1"]);
        // A cell is an entry as a whole.
        let parts = b"ip,n\n192.0.2.1 x,1\n192.0.2.2,2\n,3\n192.0.2.4-192.0.2.5,4\n";
        let parsed = parse(parts, &named("ip")).unwrap();
        assert_eq!(shown(&parsed), ["192.0.2.2", "192.0.2.4/31"]);
        assert_eq!(parsed.invalid, 2);
        // It has no comment, and an invalid first row is no header.
        let comments = b"192.0.2.1 x,1\n192.0.2.2,2\n\"192.0.2.3;192.0.2.9\",3\n192.0.2.4,4\n";
        let parsed = parse(comments, &ListFormat::Csv(Column::Number(1))).unwrap();
        assert_eq!(shown(&parsed), ["192.0.2.2", "192.0.2.4"]);
        assert_eq!(parsed.invalid, 2);
        let beside = b"# seen,ip\n1,192.0.2.1 x\n2,192.0.2.2\n";
        let parsed = parse(beside, &named("ip")).unwrap();
        assert_eq!(
            (shown(&parsed), parsed.invalid),
            (vec!["192.0.2.2".to_owned()], 1)
        );
    }

    #[test]
    fn json_lines_are_read_without_metadata() {
        let text =
            b"{\"cidr\":\"192.0.2.0/24\",\"rir\":\"x\"}\n{\"cidr\":7}\n{\"ip\":\"192.0.2.9\"}\n\
            {\"cidr\":\"2001:db8::/48\"}\n{\"type\":\"metadata\",\"records\":2}\n";
        let parsed = parse(text, &ListFormat::Json("cidr".to_owned())).unwrap();
        assert_eq!(shown(&parsed), ["192.0.2.0/24", "2001:db8::/48"]);
        assert_eq!(parsed.invalid, 2);
        let array = b"[\n{\"net\": \"192.0.2.0/24\"},\n{\"net\": \"198.51.100.7\"}\n]\n";
        let parsed = parse(array, &ListFormat::Json("net".to_owned())).unwrap();
        assert_eq!(shown(&parsed), ["192.0.2.0/24", "198.51.100.7"]);
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
    fn a_line_of_separators_is_cut() {
        let text = [b",".repeat(64 << 20), b"\n192.0.2.1\n".to_vec()].concat();
        let parsed = parse(&text, &ListFormat::Csv(Column::Number(1))).unwrap();
        assert_eq!(
            (shown(&parsed), parsed.invalid),
            (vec!["192.0.2.1".to_owned()], 1)
        );
        let named = ListFormat::Csv(Column::Name("x".to_owned()));
        assert_eq!(
            parse(&text, &named),
            Err(ListError::NoColumn("x".to_owned()))
        );
    }

    #[test]
    fn each_of_many_sets_is_found_at_once() {
        // Each entry is an exception of one set and a member of the next one.
        let lines = |nth: u32| {
            let address = std::net::Ipv4Addr::from(0x0a00_0000 + nth);
            format!("add s{nth} {address}\nadd s{} {address} nomatch\n", nth + 1)
        };
        let text: String = (0..200_000).map(lines).collect();
        let parsed = parse(text.as_bytes(), &ListFormat::Netset).unwrap();
        assert_eq!((parsed.prefixes.len(), parsed.invalid), (200_000, 0));
    }

    #[test]
    fn repeated_prefixes_are_carved_once() {
        let exception = |nth: u32| {
            let address = std::net::Ipv4Addr::from(0x0a00_0000 + 2 * nth);
            format!("add a 10.0.0.0/8\nadd a {address} nomatch\n")
        };
        let text: String = (0..200_000).map(exception).collect();
        let parsed = parse(text.as_bytes(), &ListFormat::Netset).unwrap();
        // The addresses between the exceptions, and the rest of the /8.
        assert!(
            parsed.prefixes.len() >= 200_000,
            "{}",
            parsed.prefixes.len()
        );
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
            Just(ListFormat::Json("cidr".to_owned())),
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
