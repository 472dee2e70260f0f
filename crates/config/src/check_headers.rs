//! `[decide] check`: the headers from which `GET /v1/check` reads a request.

use std::collections::BTreeMap;

use super::report::{Problems, Wrong};
use super::request_key::{SOURCE, entry_name};
use super::schema::{Key, Kind, Located, Table, Text};

/// The headers of a proxy's question.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(inner, since = "0.1.0", check = check)]
pub struct CheckHeaders {
    /// Entries of keys of limits, each with the header that has its value. A request that lacks the header of an entry that its
    /// limit counts by is answered with 400, and passes no proxy.
    #[key(absent = "none", examples = ["X-User"])]
    pub key: BTreeMap<String, HeaderName>,
    /// The header with the client's address, of which the last one counts: the proxy itself adds it. A request without it is
    /// answered with 400.
    #[key(absent = "none: the client has no address", examples = ["X-Forwarded-For"])]
    pub source: Option<HeaderName>,
}

/// The name of a header of HTTP, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderName(String);

impl HeaderName {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Text for HeaderName {
    const KIND: Kind = Kind::Text(&[]);

    /// Parses a token of RFC 9110, 5.6.2.
    fn parse(text: &str, key: &Key) -> Result<Self, Wrong> {
        let is_of_token =
            |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if !text.is_empty() && text.bytes().all(is_of_token) {
            return Ok(Self(text.to_ascii_lowercase()));
        }
        let message = format!("{text:?} is no name of a header");
        Err(Wrong::new(message, format!("write {}", key.example())))
    }

    fn text(&self) -> String {
        self.0.clone()
    }
}

fn check(read: &Located<'_, CheckHeaders>, problems: &mut Problems) {
    let (table, span) = (&read.table, read.span_of(&CheckHeaders::KEY));
    if let Some(name) = table.key.keys().find(|name| entry_name(name) == SOURCE) {
        let message = format!("{name:?} in key is the client's address");
        problems.error(
            span,
            message,
            "write it as source = \"X-Forwarded-For\", beside key",
        );
    } else if names_none(read, &CheckHeaders::KEY) && names_none(read, &CheckHeaders::SOURCE) {
        let message = "check names no header";
        let help = format!("add {}", CheckHeaders::KEY.example());
        problems.error(read.place.span(), message, help);
    }
}

/// Whether a key is not there, or an empty table. An invalid value is reported otherwise.
fn names_none(read: &Located<'_, CheckHeaders>, key: &Key) -> bool {
    read.find(key).is_none_or(|at| {
        at.get_ref()
            .as_table()
            .is_some_and(|table| table.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The headers, or the first problem of a config with this `check`.
    fn read(check: &str) -> Result<CheckHeaders, (String, String)> {
        let text = format!(
            "[decide]\nhttp = \"unix:/run/weir/decide.sock\"\ncheck = {check}\n\
             [[limit]]\nname = \"a\"\nscope = \"request\"\nkey = [\"user\", \"remote_address\"]\nrate = \"5/min\"\n"
        );
        let words =
            |problem: &crate::report::Placed| (problem.message.clone(), problem.help.clone());
        let loaded = crate::parse(Path::new("limits.toml"), &text)
            .map_err(|report| words(&report.errors[0]))?;
        match loaded.warnings.first() {
            Some(warning) => Err(words(warning)),
            None => Ok(loaded.config.decide.check.unwrap()),
        }
    }

    #[test]
    fn names_of_headers_are_read_in_lower_case() {
        let both = read("{ key = { user = \"X-User\" }, source = \"X-Forwarded-For\" }").unwrap();
        assert_eq!(both.key["user"].as_str(), "x-user");
        assert_eq!(both.source.unwrap().as_str(), "x-forwarded-for");
        assert_eq!(read("{ source = \"X-Real-IP\" }").unwrap().key.len(), 0);
    }

    #[test]
    fn checks_without_a_header_are_errors_with_a_fix() {
        for (check, message, help) in [
            (
                "{}",
                "check names no header",
                "add key = { name = \"X-User\" }",
            ),
            (
                "true",
                "check is a boolean",
                "write a table: check = { key = { name = \"X-User\" } }",
            ),
            (
                "{ key = \"X-User\" }",
                "key is a string",
                "write a table: key = { name = \"X-User\" }",
            ),
            (
                "{ key = {} }",
                "check names no header",
                "add key = { name = \"X-User\" }",
            ),
            (
                "{ key = { user = 5 } }",
                "key is an integer",
                "write a table: key = { name = \"X-User\" }",
            ),
            (
                "{ key = { user = \"X User\" } }",
                "\"X User\" is no name of a header",
                "write key = { name = \"X-User\" }",
            ),
            (
                "{ key = { remote_address = \"X-Real-IP\" } }",
                "\"remote_address\" in key is the client's address",
                "write it as source = \"X-Forwarded-For\", beside key",
            ),
            (
                "{ key = { usr = \"X-User\" } }",
                "header x-user of check has no effect: no limit counts by \"usr\"",
                "did you mean \"user\"?",
            ),
        ] {
            let (found, found_help) = read(check).unwrap_err();
            assert_eq!(
                (found.as_str(), found_help.as_str()),
                (message, help),
                "{check}"
            );
        }
    }
}
