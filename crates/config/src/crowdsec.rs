//! `[crowdsec]`: CrowdSec's local API, whose decisions become bans.

use std::path::PathBuf;
use std::time::Duration;

use super::report::{Problems, Wrong};
use super::schema::{HttpUrl, Key, Located, SecretText, Table, Text as _, read_one};
use super::table;

/// With as many bans by limits, the table of bans is full.
const MOST_DECISIONS: f64 = 500_000.0;

/// CrowdSec's local API, whose decisions become bans: Weir is a bouncer.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(heading = "[crowdsec]", since = "0.1.0", check = check)]
#[table(
    example = "[agent]\ninterfaces = [\"eth0\"]\n\n[crowdsec]\nurl = \"http://127.0.0.1:8080\"\n\
                   api_key_file = \"/etc/weir/crowdsec.key\"\nupdate = \"1s\"\n"
)]
pub struct CrowdSec {
    /// Address of the local API: http or https.
    #[key(examples = ["http://127.0.0.1:8080"])]
    pub url: HttpUrl,
    /// The bouncer's key, from `cscli bouncers add weir`.
    #[key(absent = "`api_key_file`", examples = ["0123456789abcdef"])]
    pub api_key: Option<SecretText>,
    /// File with the key, readable by root only. One of `api_key` and `api_key_file` is required.
    #[key(absent = "`api_key`", examples = ["/etc/weir/crowdsec.key"])]
    pub api_key_file: Option<PathBuf>,
    /// Time between two requests for changes.
    #[key(default = Duration::from_secs(10), range = (0.1, 3_600.0), examples = ["10s", "500ms"])]
    pub update: Duration,
    /// Time between two requests for all decisions. It corrects whatever the changes missed.
    #[key(default = Duration::from_secs(600), range = (1.0, 86_400.0), examples = ["10m"])]
    pub reconcile: Duration,
    /// The most time of one request.
    #[key(default = Duration::from_secs(30), range = (0.1, 600.0), examples = ["30s"])]
    pub timeout: Duration,
    /// The most decisions. Further ones are ignored, counted and reported.
    #[key(default = 200_000, range = (1.0, MOST_DECISIONS))]
    pub max_decisions: u64,
    /// Name of a machine of the local API. In its name, Weir reports bans by limits with `escalate` as alerts.
    #[key(absent = "bans by limits are not reported", examples = ["weir"], check = check_machine)]
    pub machine_id: Option<String>,
    /// The machine's password.
    #[key(absent = "`password_file`", examples = ["0123456789abcdef"])]
    pub password: Option<SecretText>,
    /// File with the password, readable by root only.
    #[key(absent = "`password`", examples = ["/etc/weir/crowdsec.password"])]
    pub password_file: Option<PathBuf>,
}

/// The machine in whose name bans by limits are reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    pub id: String,
    pub password: Secret,
}

/// A secret, or the file that contains it. `Debug` omits it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Secret {
    Text(SecretText),
    File(PathBuf),
}

impl Secret {
    /// The secret of two keys, of which one is written.
    fn of(text: Option<&SecretText>, file: Option<&PathBuf>) -> Option<Self> {
        let text = text.map(|text| Self::Text(text.clone()));
        text.or_else(|| file.map(|file| Self::File(file.clone())))
    }
}

impl CrowdSec {
    /// The address without credentials, for messages.
    #[must_use]
    pub fn shown_url(&self) -> String {
        self.url.text()
    }

    /// The bouncer's key; every valid config has one.
    #[must_use]
    pub fn key(&self) -> Option<Secret> {
        Secret::of(self.api_key.as_ref(), self.api_key_file.as_ref())
    }

    #[must_use]
    pub fn machine(&self) -> Option<Machine> {
        Some(Machine {
            id: self.machine_id.clone()?,
            password: Secret::of(self.password.as_ref(), self.password_file.as_ref())?,
        })
    }
}

/// Reads `[crowdsec]`; `has_interfaces` tells whether bans have an effect.
pub fn read(root: &mut table::Table<'_, '_>, has_interfaces: bool) -> Option<CrowdSec> {
    let read = read_one::<CrowdSec>(root)?;
    if !has_interfaces {
        root.problems.error(
            read.span(),
            "missing interfaces: [crowdsec] requires at least one",
            "add [agent] interfaces = [\"eth0\"]",
        );
    }
    Some(read.table)
}

fn check(read: &Located<'_, CrowdSec>, problems: &mut Problems) {
    const API_KEY: (Key, Key) = (CrowdSec::API_KEY, CrowdSec::API_KEY_FILE);
    const PASSWORD: (Key, Key) = (CrowdSec::PASSWORD, CrowdSec::PASSWORD_FILE);
    let table = &read.table;
    let values = [table.api_key.as_ref(), table.password.as_ref()];
    for ((text, file), value) in [API_KEY, PASSWORD].into_iter().zip(values) {
        if value.is_some() && read.has(&file) {
            let message = format!("{} conflicts with {}", file.name, text.name);
            problems.conflict(read.span_of(&file), message, "leave out one of them");
        }
    }
    let has = |(text, file): (Key, Key)| read.has(&text) || read.has(&file);
    if !has(API_KEY) {
        let help = "run cscli bouncers add weir, then add api_key, or api_key_file with the path of a file that has it";
        let message = "missing key \"api_key\" in [crowdsec]";
        problems.error(read.span(), message, help);
    }
    match (read.find(&CrowdSec::MACHINE_ID), has(PASSWORD)) {
        (Some(id), false) => problems.conflict(
            id.span(),
            "machine_id requires password",
            "run cscli machines add, then add password or password_file",
        ),
        (None, true) if table.password.is_some() != table.password_file.is_some() => problems
            .error(
                read.span(),
                "password requires machine_id",
                "add machine_id = \"weir\"",
            ),
        _ => {}
    }
}

fn check_machine(text: &str, key: &Key) -> Result<(), Wrong> {
    if text.is_empty() {
        let help = format!("write {}, or leave it out", key.example());
        return Err(Wrong::new("empty machine_id", help));
    }
    Ok(())
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
        assert_eq!(crowdsec.api_key.as_ref().unwrap().reveal(), "secret");
        assert_eq!(
            crowdsec.machine().unwrap().password,
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
                "is out of range: 100 ms to 1 h",
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
