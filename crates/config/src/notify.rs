//! `[[notify]]`: the events that are reported, and the command or webhook that receives them.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::policy::{NotifyOn, Rate, Unit};
use super::report::{Problems, Wrong};
use super::schema::{self, At, Key, Kind, Located, Mask, OneOrMore, Text, Value, read_all};
use super::table::Table;
use super::units;

/// The most tables `[[notify]]`: each has a thread, and runs at most one command at a time.
pub const MOST_NOTIFY: usize = 16;
const DEFAULT_RATE: Rate = Rate {
    count: 10,
    per_nanoseconds: 60_000_000_000,
};
/// The most notifications per `rate`'s time.
const MOST_PER_TIME: u64 = 1_000_000;
const LONGEST_NAME: usize = 64;
const LONGEST_URL: usize = 2_048;
/// The most elements and bytes of a command.
const MOST_ARGUMENTS: usize = 64;
const LONGEST_COMMAND: usize = 16_384;

/// A command or a webhook that receives events as JSON.
#[derive(Clone, Debug, PartialEq, Eq, schema::Table)]
#[table(heading = "[[notify]]", since = "0.1.0", check = check)]
#[table(example = "[[notify]]\n\
                   on = [\"ban\", \"attack\", \"trial-failed\", \"interface\", \"store-down\"]\n\
                   command = [\"/usr/local/bin/page\"]\n\n\
                   [agent]\ninterfaces = [\"eth0\"]\n\n\
                   [[limit]]\nname = \"packets-per-source\"\nrate = \"1000/s\"\n")]
pub struct Notify {
    /// Events to report, each once. `ban`: bans by limits and operators. `attack`: start and end of an attack.
    /// `overload`: start and end of an overload under a fair limit, and its release where it cannot help.
    /// `trial-failed`: a trial was not confirmed in time, or its rollback failed. `interface`: limits are in effect on an
    /// interface, or not any more. `store-down`: the cluster's store is unavailable, and available again.
    /// `crowdsec-down`: the same of CrowdSec's API. `list-failed`: a ban list could not be read. `geo-failed`: the same of
    /// a database of `[geo]`. `not-enforced`: a limit is not enforced, in whole or on one port or group, or a fair limit ignores
    /// a socket's queue. `rules`: rules of the fleet are refused, stopped or not begun, or their store is unavailable, and available
    /// again. `keys-full`: a limit on requests has no room for new keys. `oom-kill`: a group ran out of memory. `throttled`: a limit refuses a
    /// source. `would-ban`: bans that enforce mode would make.
    pub on: OneOrMore<NotifyOn>,
    /// Program and arguments. It runs without a shell, as the agent's user, and reads the document from standard input.
    /// An exit status other than 0 is a failure.
    #[key(absent = "`webhook` is required", examples = ["/usr/local/bin/page"])]
    pub command: Option<Command>,
    /// Address to which the document is posted as `application/json`. A status other than 2xx is a failure. Status, logs
    /// and errors show its host only.
    #[key(absent = "`command` is required", examples = ["https://hooks.example.net/weir"])]
    pub webhook: Option<WebhookUrl>,
    /// File with the token of an `Authorization: Bearer` header, read at each attempt. Only with `webhook`.
    #[key(absent = "no `Authorization` header", examples = ["/etc/weir/webhook.token"])]
    pub secret_file: Option<PathBuf>,
    /// Most notifications in a time. Events in between wait for the next one; beyond 20 of a kind they are only counted
    /// in it.
    #[key(default = DEFAULT_RATE, examples = ["10/min", "1/h"], check = check_rate)]
    pub rate: Rate,
    /// Time for one attempt. A command that takes longer is killed, with its children.
    #[key(default = Duration::from_secs(10), range = (0.1, 60.0), examples = ["10s"])]
    pub timeout: Duration,
    /// Time for which a failed notification is tried again. The pause doubles from 1 s to 1 min, and is up to a half
    /// shorter at random.
    #[key(default = Duration::from_secs(900), range = (0.001, 86_400.0), examples = ["15m", "1h"])]
    pub retry_for: Duration,
    /// Name in `weir status`, metrics and logs; unique.
    #[key(absent = "`notify-` and the table's number", examples = ["pager"], check = check_name)]
    pub name: String,
}

/// The receiver of notifications.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotifyTarget {
    /// A program and its arguments.
    Command(Vec<String>),
    Webhook {
        url: WebhookUrl,
        /// A file with the token of an `Authorization: Bearer` header.
        secret_file: Option<PathBuf>,
    },
}

/// An address that begins with `http://` or `https://`. `Display` and `Debug` omit its path, which may be a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookUrl(String);

impl WebhookUrl {
    /// The whole address.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Parses an address; the error does not repeat it.
    fn of(text: &str) -> Result<Self, &'static str> {
        let rest = text
            .strip_prefix("https://")
            .or_else(|| text.strip_prefix("http://"));
        let rest = rest.ok_or("it does not begin with https:// or http://")?;
        let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
        let is_plain = |c: char| {
            c.is_ascii_graphic()
                && !matches!(c, '"' | '<' | '>' | '\\' | '^' | '`' | '{' | '|' | '}')
        };
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(port)),
            _ => (authority, None),
        };
        let is_host =
            |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '[' | ']');
        if authority.contains('@') {
            return Err("credentials in it are not supported");
        }
        if host.is_empty() || !host.chars().all(is_host) {
            return Err("it has no valid host");
        }
        if port.is_some_and(|port| port.parse::<u16>().map_or(true, |port| port == 0)) {
            return Err("its port is not a number from 1 to 65535");
        }
        if text.len() > LONGEST_URL || !text.chars().all(is_plain) || text.contains('#') {
            return Err("it is too long, or has a character that must be percent-encoded");
        }
        Ok(Self(text.to_owned()))
    }

    /// `https://hooks.example.net:8443`.
    fn origin(&self) -> &str {
        let start = self.0.find("://").map_or(0, |at| at + 3);
        let end = self.0[start..]
            .find(['/', '?'])
            .map_or(self.0.len(), |at| start + at);
        &self.0[..end]
    }

    /// Whether what is sent can be read on the way to another host.
    fn is_exposed(&self) -> bool {
        let Some(rest) = self.origin().strip_prefix("http://") else {
            return false;
        };
        let host = if rest.starts_with('[') {
            rest
        } else {
            rest.split(':').next().unwrap_or(rest)
        };
        !(host == "localhost" || host.starts_with("127.") || host.starts_with("[::1]"))
    }
}

impl fmt::Display for WebhookUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = if self.origin().len() < self.0.len() {
            "/…"
        } else {
            ""
        };
        write!(formatter, "{}{hidden}", self.origin())
    }
}

impl fmt::Debug for WebhookUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl fmt::Display for NotifyTarget {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Its arguments may be secrets.
            Self::Command(command) => write!(
                formatter,
                "command {}",
                command.first().map_or("", String::as_str)
            ),
            Self::Webhook { url, .. } => write!(formatter, "webhook {url}"),
        }
    }
}

impl Notify {
    #[must_use]
    pub fn target(&self) -> NotifyTarget {
        match &self.webhook {
            Some(url) => NotifyTarget::Webhook {
                url: url.clone(),
                secret_file: self.secret_file.clone(),
            },
            None => {
                let command = self.command.as_ref();
                NotifyTarget::Command(command.map_or_else(Vec::new, |command| command.0.clone()))
            }
        }
    }

    /// Its keys in one line: `on = ban, command = /usr/local/bin/page`.
    #[must_use]
    pub fn summary(&self) -> String {
        schema::summary(self)
    }
}

impl Text for WebhookUrl {
    const KIND: Kind = Kind::Text(&[]);
    const MASK: Option<Mask> = Some(without_paths);

    fn parse(text: &str, key: &Key) -> Result<Self, Wrong> {
        Self::of(text).map_err(|reason| {
            let message = format!("invalid webhook: {reason}");
            Wrong::new(message, format!("write {}", key.example()))
        })
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

/// A program and its arguments, which may be secrets: neither `Debug` nor differences have them.
#[derive(Clone, PartialEq, Eq)]
pub struct Command(pub Vec<String>);

impl fmt::Debug for Command {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.shown())
    }
}

impl Value for Command {
    const KIND: Kind = <OneOrMore<String> as Value>::KIND;

    fn read(at: At<'_>, key: &Key, problems: &mut Problems) -> Option<Self> {
        let OneOrMore(command) = OneOrMore::<String>::read(at, key, problems)?;
        let program = &command[0];
        if !program.starts_with('/') {
            let span = at.get_ref().get(0).unwrap_or(at).span();
            problems.error(
                span,
                format!("program {program:?} is not an absolute path"),
                "write its path: there is no shell that searches for it",
            );
            return None;
        }
        let bytes: usize = command.iter().map(|text| text.len() + 1).sum();
        if command.len() > MOST_ARGUMENTS
            || bytes > LONGEST_COMMAND
            || command.iter().any(|text| text.contains('\0'))
        {
            let help = format!(
                "write at most {MOST_ARGUMENTS} arguments and {LONGEST_COMMAND} bytes; use a script for more"
            );
            let message = "command is too long, or has a zero byte";
            problems.error(at.span(), message, help);
            return None;
        }
        Some(Self(command))
    }

    fn write(&self) -> Option<toml::Value> {
        self.0.write()
    }

    fn shown(&self) -> String {
        self.0.first().cloned().unwrap_or_default()
    }
}

/// Masks the paths of webhooks' addresses in a text, without changing its length: for error snippets of a config.
fn without_paths(text: &str, key: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for (start, key) in text.match_indices(key) {
        let after = &text[start + key.len()..];
        let line = &after[..after.find('\n').unwrap_or(after.len())];
        // The host stays; without one, or with credentials before it, all of the value is masked.
        let from = match line.find("://").map(|scheme| scheme + 3) {
            Some(host) => match line[host..]
                .find(['/', '?', '@', '"', '\''])
                .map(|end| host + end)
            {
                Some(end) if line[end..].starts_with('@') => Some(host),
                end => end.map(|end| end + 1),
            },
            None => line.find('=').map(|equals| equals + 1),
        };
        let Some(from) = from.filter(|_| line.trim_start().starts_with('=')) else {
            continue;
        };
        let ends = |c: char| c == '"' || c == '\'' || c.is_whitespace();
        let skipped = line[from..].find(|c| !ends(c)).unwrap_or(0);
        let value = &line[from + skipped..];
        let end = value.find(ends).unwrap_or(value.len());
        let first = start + key.len() + from + skipped;
        bytes[first..first + end].fill(b'*');
    }
    // The replacement starts and ends at character boundaries.
    String::from_utf8(bytes).unwrap_or_default()
}

/// Reads all `[[notify]]`.
pub fn read(root: &mut Table<'_, '_>) -> Vec<Notify> {
    let read = read_all::<Notify>(root);
    let span = root.span_of("notify");
    if read.len() > MOST_NOTIFY {
        let count = read.len();
        let help = format!(
            "write at most {MOST_NOTIFY}; one command or webhook can receive several events"
        );
        let message = format!("{count} tables [[notify]] are too many");
        root.problems.error(span.clone(), message, help);
    }
    let mut all: Vec<Notify> = Vec::with_capacity(read.len());
    for (nth, read) in read.into_iter().enumerate() {
        let span = read
            .find(&Notify::NAME)
            .map_or_else(|| span.clone(), |name| name.span());
        let mut notify = read.table;
        if notify.name.is_empty() {
            notify.name = format!("notify-{}", nth + 1);
        }
        if all.iter().any(|other| other.name == notify.name) {
            let message = format!("duplicate name {:?} of a [[notify]]", notify.name);
            root.problems
                .conflict(span, message, "give each another name");
        }
        let mut on = Vec::new();
        for event in notify.on.0 {
            if !on.contains(&event) {
                on.push(event);
            }
        }
        notify.on = OneOrMore(on);
        all.push(notify);
    }
    all
}

fn check(read: &Located<'_, Notify>, problems: &mut Problems) {
    match (read.has(&Notify::COMMAND), read.has(&Notify::WEBHOOK)) {
        (true, true) => problems.error(
            read.span_of(&Notify::WEBHOOK),
            "command conflicts with webhook",
            "leave out one of them, and write another [[notify]] for it",
        ),
        (false, false) => {
            let (command, webhook) = (Notify::COMMAND.example(), Notify::WEBHOOK.example());
            problems.error(
                read.span(),
                "missing key \"command\" or \"webhook\" in [[notify]]",
                format!("add {command} or {webhook}"),
            );
        }
        (true, false) if read.has(&Notify::SECRET_FILE) => problems.conflict(
            read.span_of(&Notify::SECRET_FILE),
            "secret_file conflicts with command",
            "leave out secret_file",
        ),
        _ => {}
    }
    let url = read.table.webhook.as_ref();
    if url.is_some_and(WebhookUrl::is_exposed) {
        problems.warning(
            read.span_of(&Notify::WEBHOOK),
            "notifications are readable on the way: the webhook is not https",
            "write https://, unless the network in between is your own",
        );
    }
}

fn check_name(text: &str, key: &Key) -> Result<(), Wrong> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if !text.is_empty() && text.len() <= LONGEST_NAME && text.chars().all(is_plain) {
        return Ok(());
    }
    let help = format!(
        "write letters, digits, dashes, dots and underscores, {LONGEST_NAME} at most: {}",
        key.example()
    );
    let message = format!("invalid name {text:?} of a [[notify]]");
    Err(Wrong::new(message, help))
}

fn check_rate(text: &str, _: &Key) -> Result<(), Wrong> {
    match units::rate(text, Unit::Packets) {
        Ok(rate) if rate.count > MOST_PER_TIME => Err(Wrong::new(
            format!("rate {text:?} of a [[notify]] is out of range"),
            format!("write a rate from \"1/day\" to \"{MOST_PER_TIME}/s\""),
        )),
        // The type reports an invalid rate.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
