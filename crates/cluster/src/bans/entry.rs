//! A ban or a removal in the store, as text: `<kind> <end> <made> <host> <detail>`.

use config::{PrefixKey, prefix};
use serde::{Deserialize, Serialize};

/// The most prefixes in the store, bans and removals together.
pub const MOST: usize = 65_536;
/// The longest entry that is read or written, in bytes.
pub const LONGEST: usize = 2_048;
/// The longest names of a host and of a limit.
const LONGEST_NAME: usize = 128;
const LONGEST_LIMIT: usize = 256;

/// The author of a ban or removal on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A ban by an operator.
    Operator,
    /// A ban by a limit.
    Limit,
    /// A removal.
    Removal,
}

impl Kind {
    const ALL: [(Self, &'static str); 3] = [
        (Self::Operator, "B"),
        (Self::Limit, "L"),
        (Self::Removal, "U"),
    ];

    /// The letter in the store.
    #[must_use]
    pub fn letter(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(kind, _)| *kind == self)
            .map_or("", |(_, letter)| letter)
    }
}

/// A prefix's entry. Times are milliseconds of the store's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub kind: Kind,
    /// Its end; 0 if it does not end.
    pub ends: u64,
    /// When it was ordered.
    pub made: u64,
    /// The host on which it was ordered.
    pub host: String,
    pub detail: Detail,
}

/// The part that the store's script does not parse.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detail {
    /// The limit that made the ban.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The user or program that ordered the ban, or whose bans a removal lifts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The only host whose bans a removal lifts. Earlier versions lift those of all hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

impl Detail {
    /// The text; without the reason if that is too long.
    #[must_use]
    pub fn text(&self) -> String {
        let text = serde_json::to_string(self).unwrap_or_default();
        // Leaves room for the host and the times.
        if text.len() <= LONGEST - 256 {
            return text;
        }
        let limit = self
            .limit
            .clone()
            .filter(|limit| limit.len() <= LONGEST_LIMIT);
        let owner = self
            .owner
            .clone()
            .filter(|owner| owner.len() <= LONGEST_LIMIT);
        serde_json::to_string(&Self {
            limit,
            reason: None,
            owner,
            host: self.host.clone(),
        })
        .unwrap_or_default()
    }
}

impl Entry {
    /// Reads an entry; `None` if it is not one of this format.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > LONGEST {
            return None;
        }
        let mut parts = text.splitn(5, ' ');
        let letter = parts.next()?;
        let (kind, _) = Kind::ALL.into_iter().find(|(_, known)| *known == letter)?;
        let (ends, made) = (number(parts.next()?)?, number(parts.next()?)?);
        let host = parts.next().filter(|host| is_host(host))?.to_owned();
        let mut detail: Detail = serde_json::from_str(parts.next()?).ok()?;
        let is_plain = |text: &String| !text.chars().any(char::is_control);
        let mut names = detail.limit.iter().chain(&detail.owner);
        if !names.all(|name| name.len() <= LONGEST_LIMIT && is_plain(name))
            || !detail.host.iter().all(|host| is_host(host))
        {
            return None;
        }
        detail.reason = detail.reason.filter(is_plain);
        Some(Self {
            kind,
            ends,
            made,
            host,
            detail,
        })
    }
}

/// A time that the store's script reads exactly.
fn number(text: &str) -> Option<u64> {
    let is_number = (1..16).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

fn is_host(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=LONGEST_NAME).contains(&text.len()) && text.chars().all(is_plain)
}

/// The prefix of an entry, unless it is invalid or so wide that hosts do not share it.
#[must_use]
pub fn prefix_of(text: &str) -> Option<PrefixKey> {
    let prefix = PrefixKey::from(&prefix::parse(text).ok()?);
    (!prefix.is_wide()).then_some(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_entry_is_read_and_anything_else_is_not() {
        let text =
            r#"L 1700000600000 1700000000000 host-1 {"limit":"web","reason":"1000 refused"}"#;
        let entry = Entry::parse(text).unwrap();
        assert_eq!(
            (entry.kind, entry.ends, entry.made),
            (Kind::Limit, 1_700_000_600_000, 1_700_000_000_000)
        );
        assert_eq!(
            (entry.host.as_str(), entry.detail.limit.as_deref()),
            ("host-1", Some("web"))
        );
        assert_eq!(entry.detail.reason.as_deref(), Some("1000 refused"));
        for garbled in [
            "",
            "L",
            "X 1 1 a {}",
            "B 1 1 a",
            "B 1 1 a [",
            "B -1 1 a {}",
            "B +1 1 a {}",
            "B 1 9999999999999999 a {}",
            "B 1 1 a/b {}",
            "B 1 1  {}",
            "B 1 1 a {\"limit\":\"\\u001b[2J\"}",
            "B 1 1 a {\"owner\":\"\\u001b[2J\"}",
            "U 1 1 a {\"host\":\"a b\"}",
            &format!("B 1 1 a {{}}{}", " ".repeat(LONGEST)),
        ] {
            assert_eq!(Entry::parse(garbled), None, "{garbled:?}");
        }
        // A terminal would interpret this reason; the ban applies.
        let entry = Entry::parse("B 0 1 a {\"reason\":\"\\u001b[2J\"}").unwrap();
        assert_eq!((entry.detail.reason, entry.ends), (None, 0));
    }

    #[test]
    fn wide_and_invalid_prefixes_are_not_shared() {
        assert_eq!(prefix_of("192.0.2.7").unwrap().to_string(), "192.0.2.7");
        assert_eq!(
            prefix_of("2001:db8::/64").unwrap().to_string(),
            "2001:db8::/64"
        );
        for text in [
            "0.0.0.0/0",
            "10.0.0.0/7",
            "::/0",
            "192.0.2.7/24",
            "#epoch",
            "nobody",
            "",
        ] {
            assert_eq!(prefix_of(text), None, "{text}");
        }
    }

    #[test]
    fn a_detail_fits_an_entry() {
        let long = Detail {
            limit: Some("web".to_owned()),
            reason: Some("x".repeat(LONGEST)),
            ..Detail::default()
        };
        assert_eq!(long.text(), r#"{"limit":"web"}"#);
        let short = Detail {
            reason: Some("a \"b\"".to_owned()),
            owner: Some("sshd".to_owned()),
            host: Some("host-1".to_owned()),
            ..Detail::default()
        };
        let entry = Entry::parse(&format!("B 0 1 a {}", short.text())).unwrap();
        assert_eq!(entry.detail, short);
    }

    proptest! {
        #[test]
        fn any_text_is_an_entry_or_none(text in "[BLU] [0-9]{0,18} [0-9]{0,18} .{0,40}") {
            if let Some(entry) = Entry::parse(&text) {
                prop_assert!(is_host(&entry.host));
            }
        }
    }
}
