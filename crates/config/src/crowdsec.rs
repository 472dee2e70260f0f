//! `[crowdsec]`: CrowdSec's local API, whose decisions become bans.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::report::Span;
use super::table::Table;

/// The range of `update`.
const UPDATE: std::ops::RangeInclusive<u64> = 100_000_000..=3_600_000_000_000;
/// The range of `reconcile`.
const RECONCILE: std::ops::RangeInclusive<u64> = 1_000_000_000..=86_400_000_000_000;
/// The range of `timeout`.
const TIMEOUT: std::ops::RangeInclusive<u64> = 100_000_000..=600_000_000_000;
/// The largest `max_decisions`: with as many bans by limits, the table of bans is full.
pub(super) const MOST_DECISIONS: u64 = 500_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrowdSec {
    /// The API's address.
    pub url: String,
    /// The bouncer's key.
    pub api_key: Secret,
    /// The time between two requests for changes.
    pub update: Duration,
    /// The time between two requests for all decisions.
    pub reconcile: Duration,
    /// The most time of a request.
    pub timeout: Duration,
    /// The most decisions.
    pub max_decisions: u64,
    /// The machine in whose name bans by limits are reported.
    pub machine: Option<Machine>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    pub id: String,
    pub password: Secret,
}

/// A secret, or the file that contains it. `Debug` omits it.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    Text(String),
    File(PathBuf),
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => formatter.write_str("(hidden)"),
            Self::File(path) => write!(formatter, "{}", path.display()),
        }
    }
}

impl CrowdSec {
    /// The address without credentials, for messages.
    #[must_use]
    pub fn shown_url(&self) -> String {
        http_client::shown(&self.url)
    }
}

/// The keys whose values are secrets.
const SECRETS: [&str; 2] = ["api_key", "password"];

/// Masks the values of secret keys in a config's text, without changing its length.
#[must_use]
pub fn without_secrets(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for key in SECRETS {
        for (start, _) in text.match_indices(key) {
            let rest = &text[start + key.len()..];
            let value = rest.trim_start_matches([' ', '\t', '"', '\'']);
            let Some(value) = value.strip_prefix('=') else {
                continue;
            };
            let value = value.trim_start_matches([' ', '\t']);
            let long = ["\"\"\"", "'''"]
                .into_iter()
                .find(|quotes| value.starts_with(quotes));
            let end = match long {
                Some(quotes) => value[3..].find(quotes).map_or(value.len(), |end| end + 6),
                // To the end of the line, since an invalid value may end anywhere.
                None => value.find(['\n', '\r']).unwrap_or(value.len()),
            };
            let from = text.len() - text[start + key.len()..].len() + rest.len() - value.len();
            for byte in &mut bytes[from..from + end] {
                if !matches!(*byte, b'\n' | b'\r') {
                    *byte = b'*';
                }
            }
        }
    }
    // Only whole values were replaced.
    String::from_utf8(bytes).unwrap_or_default()
}

/// Reads `[crowdsec]`; `has_interfaces` tells whether bans have an effect.
pub fn read(root: &mut Table<'_, '_>, has_interfaces: bool) -> Option<CrowdSec> {
    let value = root.value("crowdsec")?;
    let Some(content) = value.get_ref().as_table() else {
        root.wrong_type("crowdsec", value, "a table: [crowdsec]");
        return None;
    };
    if !has_interfaces {
        let help = "add [agent] interfaces = [\"eth0\"]";
        root.problems.error(
            value.span(),
            "missing interfaces: [crowdsec] requires at least one",
            help,
        );
    }
    table(Table::new(
        content,
        value.span(),
        "[crowdsec]",
        root.problems,
    ))
}

fn table(mut table: Table<'_, '_>) -> Option<CrowdSec> {
    const URL: &str = "\"http://127.0.0.1:8080\"";
    table.required("url", URL);
    let url = table
        .string("url", URL)
        .and_then(|(text, span)| match http_client::check(text) {
            Ok(()) => Some(text.to_owned()),
            Err(reason) => {
                table.problems.error(
                    span,
                    format!("invalid url: {reason}"),
                    format!("write url = {URL}"),
                );
                None
            }
        });
    let api_key = secret(
        &mut table,
        ("api_key", "api_key_file"),
        "\"/etc/weir/crowdsec.key\"",
    );
    if api_key.is_none()
        && table.value("api_key").is_none()
        && table.value("api_key_file").is_none()
    {
        let help = "run cscli bouncers add weir, then add api_key, or api_key_file with the path of a file that has it";
        let span = table.span();
        table
            .problems
            .error(span, "missing key \"api_key\" in [crowdsec]", help);
    }
    let update = time(&mut table, "update", "\"10s\"", &UPDATE).unwrap_or(Duration::from_secs(10));
    let reconcile =
        time(&mut table, "reconcile", "\"10m\"", &RECONCILE).unwrap_or(Duration::from_secs(600));
    let timeout =
        time(&mut table, "timeout", "\"30s\"", &TIMEOUT).unwrap_or(Duration::from_secs(30));
    let max_decisions = table
        .number("max_decisions", 1, MOST_DECISIONS)
        .unwrap_or(200_000);
    let id = table.string("machine_id", "\"weir\"");
    let password = secret(
        &mut table,
        ("password", "password_file"),
        "\"/etc/weir/crowdsec.password\"",
    );
    let machine = match (id, password) {
        (Some(("", span)), _) => {
            table.problems.error(
                span,
                "empty machine_id",
                "write machine_id = \"weir\", or leave it out",
            );
            None
        }
        (Some((id, _)), Some(password)) => Some(Machine {
            id: id.to_owned(),
            password,
        }),
        (Some((_, span)), None) => {
            if table.value("password").is_none() && table.value("password_file").is_none() {
                let help = "run cscli machines add, then add password or password_file";
                table
                    .problems
                    .error(span, "machine_id requires password", help);
            }
            None
        }
        (None, Some(_)) => {
            let span = table.span();
            table.problems.error(
                span,
                "password requires machine_id",
                "add machine_id = \"weir\"",
            );
            None
        }
        (None, None) => None,
    };
    table.finish();
    Some(CrowdSec {
        url: url?,
        api_key: api_key?,
        update,
        reconcile,
        timeout,
        max_decisions,
        machine,
    })
}

/// A secret in the config, or the path of its file.
fn secret(
    table: &mut Table<'_, '_>,
    keys: (&'static str, &'static str),
    example: &str,
) -> Option<Secret> {
    let (key, file) = keys;
    let text = table
        .string(key, "\"…\"")
        .and_then(|(text, span)| secret_text(table, key, text, span));
    let path = table.string(file, example);
    match (text, path) {
        (Some(_), Some((_, span))) => {
            table.problems.error(
                span,
                format!("{file} conflicts with {key}"),
                "leave out one of them",
            );
            None
        }
        (None, Some((path, span))) if !path.starts_with('/') => {
            table.problems.error(
                span,
                format!("{path:?} is not an absolute path"),
                "begin it with /",
            );
            None
        }
        (None, Some((path, _))) => Some(Secret::File(path.into())),
        (text, None) => text,
    }
}

fn secret_text(table: &mut Table<'_, '_>, key: &str, text: &str, span: Span) -> Option<Secret> {
    // It is sent in a header.
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        table.problems.error(
            span,
            format!("invalid {key}"),
            "write printable ASCII characters without spaces",
        );
        return None;
    }
    Some(Secret::Text(text.to_owned()))
}

fn time(
    table: &mut Table<'_, '_>,
    key: &'static str,
    example: &str,
    range: &std::ops::RangeInclusive<u64>,
) -> Option<Duration> {
    let time = table.time(key, example)?;
    if range.contains(&time) {
        return Some(Duration::from_nanos(time));
    }
    let seconds = |nanoseconds: u64| humantime::format_duration(Duration::from_nanos(nanoseconds));
    let message = format!(
        "{key} is out of range: {} to {}",
        seconds(*range.start()),
        seconds(*range.end())
    );
    table.problems.error(
        table.span_of(key),
        message,
        format!("write {key} = {example}"),
    );
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn parse(text: &str) -> Result<crate::Loaded, crate::report::Report> {
        let text = format!("[agent]\ninterfaces = [\"eth0\"]\n{text}");
        crate::parse(Path::new("limits.toml"), &text)
    }

    #[test]
    fn a_bouncer_is_what_it_says() {
        let text = "[crowdsec]\nurl = \"http://127.0.0.1:8080\"\napi_key = \"secret\"\nupdate = \"500ms\"\n\
                    machine_id = \"web-1\"\npassword_file = \"/etc/weir/password\"\n";
        let crowdsec = parse(text)
            .unwrap_or_else(|report| panic!("{report}"))
            .config
            .crowdsec
            .unwrap();
        assert_eq!(crowdsec.update, Duration::from_millis(500));
        assert_eq!(
            (crowdsec.reconcile, crowdsec.max_decisions),
            (Duration::from_secs(600), 200_000)
        );
        assert_eq!(crowdsec.api_key, Secret::Text("secret".to_owned()));
        assert_eq!(
            crowdsec.machine.as_ref().unwrap().password,
            Secret::File("/etc/weir/password".into())
        );
        assert!(!format!("{crowdsec:?}").contains("secret"));
    }

    #[test]
    fn errors_have_their_line_and_never_a_secret() {
        let url = "url = \"http://127.0.0.1:8080\"\n";
        for (text, message) in [
            (
                "url = \"ftp://a\"\napi_key = \"sécret\"\n".to_owned(),
                "invalid url",
            ),
            ("api_key = \"secret\"\n".to_owned(), "missing key \"url\""),
            (url.to_owned(), "missing key \"api_key\""),
            (
                format!("{url}api_key = \"secret\"\napi_key_file = \"/a\"\n"),
                "conflicts with api_key",
            ),
            (
                format!("{url}api_key = \"secret value\"\n"),
                "invalid api_key",
            ),
            (format!("{url}api_key = \"\"\n"), "invalid api_key"),
            (
                format!("{url}api_key_file = \"a\"\n"),
                "not an absolute path",
            ),
            (
                format!("{url}api_key = \"secret\"\nupdate = \"1ms\"\n"),
                "update is out of range: 100ms to 1h",
            ),
            (
                format!("{url}api_key = \"secret\"\nmax_decisions = 0\n"),
                "max_decisions is out of range",
            ),
            (
                format!("{url}api_key = \"secret\"\nmachine_id = \"a\"\n"),
                "machine_id requires password",
            ),
            (
                format!("{url}api_key = \"a\"\npassword = \"secret\"\n"),
                "password requires machine_id",
            ),
            (format!("{url}api_key = \"secret\nupdate = \"1s\"\n"), ""),
            (
                format!("{url}api_key = \"\"\"\nsecret\n\"\"\"\n"),
                "invalid api_key",
            ),
            (
                format!("{url}'api_key' = 'secret' # secret\nkeys = 1\n"),
                "unknown key",
            ),
        ] {
            let report = parse(&format!("[crowdsec]\n{text}"))
                .map(|_| text.clone())
                .unwrap_err();
            let shown = format!(
                "{report}\n{report:?}\n{}",
                serde_json::to_string(&report.errors).unwrap()
            );
            assert!(
                shown.contains(message) && !shown.contains("cret"),
                "{text}: {shown}"
            );
        }
        let inline = parse("crowdsec = { url = \"ftp://a\", api_key = \"secret\" }\n")
            .map(|_| ())
            .unwrap_err();
        assert!(!format!("{inline}").contains("secret"), "{inline}");
        let none = crate::parse(
            Path::new("limits.toml"),
            &format!("[crowdsec]\n{url}api_key = \"secret\"\n"),
        );
        assert!(
            none.map(|_| ())
                .unwrap_err()
                .to_string()
                .contains("missing interfaces")
        );
    }
}
