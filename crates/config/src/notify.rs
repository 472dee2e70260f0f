//! `[[notify]]`: the events that are reported, and the command or webhook that receives them.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::human;
use super::policy::{NotifyOn, Rate, Unit};
use super::report::Span;
use super::table::{Table, entries, suggestion};
use super::units;

/// The most tables `[[notify]]`: each has a thread, and runs at most one command at a time.
pub const MOST_NOTIFY: usize = 16;
/// The range of `timeout`.
pub const TIMEOUT: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(60);
/// The longest `retry_for`.
pub const LONGEST_RETRY: Duration = Duration::from_secs(24 * 3600);
const DEFAULT_RATE: &str = "10/min";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
const DEFAULT_RETRY: Duration = Duration::from_secs(15 * 60);
/// The most notifications per `rate`'s time.
const MOST_PER_TIME: u64 = 1_000_000;
const LONGEST_NAME: usize = 64;
const LONGEST_URL: usize = 2_048;
/// The most elements and bytes of a command.
const MOST_ARGUMENTS: usize = 64;
const LONGEST_COMMAND: usize = 16_384;
const COMMAND: &str = "[\"/usr/local/bin/page\"]";
const WEBHOOK: &str = "\"https://hooks.example.net/weir\"";

/// One `[[notify]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notify {
    /// The name in status, metrics and logs.
    pub name: String,
    /// The reported events, each once.
    pub on: Vec<NotifyOn>,
    pub target: NotifyTarget,
    /// The most notifications.
    pub rate: Rate,
    /// The time for one attempt.
    pub timeout: Duration,
    /// The time after which a notification that could not be delivered is dropped.
    pub retry_for: Duration,
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
    fn parse(text: &str) -> Result<Self, &'static str> {
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
    /// The summary without the name: `ban, attack: command /usr/local/bin/page, at most 10 in 60 s`.
    #[must_use]
    pub fn summary(&self) -> String {
        let on: Vec<String> = self.on.iter().map(ToString::to_string).collect();
        format!(
            "{}: {}, at most {} in {}",
            on.join(", "),
            self.target,
            self.rate.count,
            human::time(Duration::from_nanos(self.rate.per_nanoseconds))
        )
    }
}

impl Notify {
    /// Everything that differs between two, secrets included: never to be printed.
    pub(crate) fn whole(&self) -> String {
        let url = match &self.target {
            NotifyTarget::Webhook { url, .. } => url.reveal(),
            NotifyTarget::Command(_) => "",
        };
        format!("{self:?} {url}")
    }
}

/// Masks the paths of webhooks' addresses in a text, without changing its length: for error snippets of a config.
#[must_use]
pub fn without_secrets(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for (start, key) in text.match_indices("webhook") {
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
pub fn read_all(root: &mut Table<'_, '_>) -> Vec<Notify> {
    let read = entries(root, "notify", "[[notify]]", read);
    if read.len() > MOST_NOTIFY {
        let (span, count) = (root.span_of("notify"), read.len());
        let help = format!(
            "write at most {MOST_NOTIFY}; one command or webhook can receive several events"
        );
        root.problems.error(
            span,
            format!("{count} tables [[notify]] are too many"),
            help,
        );
    }
    let mut all: Vec<Notify> = Vec::with_capacity(read.len());
    for (nth, (name, mut notify)) in read.into_iter().enumerate() {
        let (name, span) =
            name.unwrap_or_else(|| (format!("notify-{}", nth + 1), root.span_of("notify")));
        if all.iter().any(|other| other.name == name) {
            root.problems.error(
                span,
                format!("duplicate name {name:?} of a [[notify]]"),
                "give each another name",
            );
        }
        notify.name = name;
        all.push(notify);
    }
    all
}

type Named = (Option<(String, Span)>, Notify);

fn read(mut table: Table<'_, '_>) -> Option<Named> {
    let name = name(&mut table);
    let on = on(&mut table);
    let target = target(&mut table);
    let rate = rate(&mut table);
    let timeout = time(&mut table, "timeout", "\"10s\"", TIMEOUT, DEFAULT_TIMEOUT);
    let retry_for = time(
        &mut table,
        "retry_for",
        "\"15m\"",
        Duration::ZERO..=LONGEST_RETRY,
        DEFAULT_RETRY,
    );
    table.finish();
    Some((
        name,
        Notify {
            name: String::new(),
            on: on?,
            target: target?,
            rate,
            timeout,
            retry_for,
        },
    ))
}

fn name(table: &mut Table<'_, '_>) -> Option<(String, Span)> {
    let (text, span) = table.string("name", "\"pager\"")?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || text.len() > LONGEST_NAME || !text.chars().all(is_plain) {
        let help = format!(
            "write letters, digits, dashes, dots and underscores, {LONGEST_NAME} at most: name = \"pager\""
        );
        table
            .problems
            .error(span, format!("invalid name {text:?} of a [[notify]]"), help);
        return None;
    }
    Some((text.to_owned(), span))
}

fn on(table: &mut Table<'_, '_>) -> Option<Vec<NotifyOn>> {
    table.required("on", "[\"ban\", \"attack\"]")?;
    let all: Vec<&str> = NotifyOn::WORDS.iter().map(|(word, _)| *word).collect();
    let mut on = Vec::new();
    let given = table.strings_or_one("on", "[\"ban\", \"attack\"]");
    if given.is_empty()
        && table
            .value("on")
            .is_some_and(|value| value.get_ref().is_array())
    {
        let span = table.span_of("on");
        table.problems.error(
            span,
            "empty on of a [[notify]]",
            format!("write some of {}", all.join(", ")),
        );
    }
    for (text, span) in given {
        match NotifyOn::WORDS
            .iter()
            .find(|(word, _)| word.eq_ignore_ascii_case(text))
        {
            Some((_, known)) if !on.contains(known) => on.push(*known),
            Some(_) => {}
            None => {
                let near = suggestion(text, &all);
                let help = if near.starts_with("did") {
                    format!("{near} All: {}", all.join(", "))
                } else {
                    near
                };
                table
                    .problems
                    .error(span, format!("unknown event {text:?} in on"), help);
            }
        }
    }
    Some(on)
}

fn target(table: &mut Table<'_, '_>) -> Option<NotifyTarget> {
    let command = command(table);
    let url = webhook(table);
    let secret = table.string("secret_file", "\"/etc/weir/webhook.token\"");
    let secret_file = secret.and_then(|(text, span)| {
        if !text.starts_with('/') {
            table.problems.error(
                span,
                format!("{text:?} is not an absolute path"),
                "begin it with /",
            );
            return None;
        }
        Some((PathBuf::from(text), span))
    });
    let [has_command, has_webhook] = ["command", "webhook"].map(|key| table.value(key).is_some());
    match (has_command, has_webhook) {
        (true, true) => {
            let span = table.span_of("webhook");
            let help = "leave out one of them, and write another [[notify]] for it";
            table
                .problems
                .error(span, "command conflicts with webhook", help);
            return None;
        }
        (false, false) => {
            let span = table.span();
            let help = format!("add command = {COMMAND} or webhook = {WEBHOOK}");
            table.problems.error(
                span,
                "missing key \"command\" or \"webhook\" in [[notify]]",
                help,
            );
            return None;
        }
        _ => {}
    }
    if has_command {
        if let Some((_, span)) = secret_file {
            table.problems.error(
                span,
                "secret_file conflicts with command",
                "leave out secret_file",
            );
        }
        return Some(NotifyTarget::Command(command?));
    }
    let url = url?;
    if url.is_exposed() {
        let (span, message) = (
            table.span_of("webhook"),
            "notifications are readable on the way: the webhook is not https",
        );
        table.problems.warning(
            span,
            message,
            "write https://, unless the network in between is your own",
        );
    }
    Some(NotifyTarget::Webhook {
        url,
        secret_file: secret_file.map(|(path, _)| path),
    })
}

fn command(table: &mut Table<'_, '_>) -> Option<Vec<String>> {
    let command: Vec<(String, Span)> = table
        .strings_or_one("command", COMMAND)
        .into_iter()
        .map(|(text, span)| (text.to_owned(), span))
        .collect();
    let span = table.span_of("command");
    let Some((program, program_span)) = command.first() else {
        if table
            .value("command")
            .is_some_and(|value| value.get_ref().is_array())
        {
            table
                .problems
                .error(span, "empty command", format!("write command = {COMMAND}"));
        }
        return None;
    };
    if !program.starts_with('/') {
        let help = "write its path: there is no shell that searches for it";
        table.problems.error(
            program_span.clone(),
            format!("program {program:?} is not an absolute path"),
            help,
        );
        return None;
    }
    let bytes: usize = command.iter().map(|(text, _)| text.len() + 1).sum();
    if command.len() > MOST_ARGUMENTS
        || bytes > LONGEST_COMMAND
        || command.iter().any(|(text, _)| text.contains('\0'))
    {
        let help = format!(
            "write at most {MOST_ARGUMENTS} arguments and {LONGEST_COMMAND} bytes; use a script for more"
        );
        table
            .problems
            .error(span, "command is too long, or has a zero byte", help);
        return None;
    }
    Some(command.into_iter().map(|(text, _)| text).collect())
}

fn webhook(table: &mut Table<'_, '_>) -> Option<WebhookUrl> {
    let (text, span) = table.string("webhook", WEBHOOK)?;
    match WebhookUrl::parse(text) {
        Ok(url) => Some(url),
        Err(reason) => {
            table.problems.error(
                span,
                format!("invalid webhook: {reason}"),
                format!("write webhook = {WEBHOOK}"),
            );
            None
        }
    }
}

fn rate(table: &mut Table<'_, '_>) -> Rate {
    let given = table.string("rate", "\"10/min\"");
    let text = given.as_ref().map_or(DEFAULT_RATE, |(text, _)| text);
    match units::rate(text, Unit::Packets) {
        Ok(rate) if (1..=MOST_PER_TIME).contains(&rate.count) => return rate,
        Ok(_) => {
            let span = table.span_of("rate");
            let message = format!("rate {text:?} of a [[notify]] is out of range");
            table.problems.error(
                span,
                message,
                format!("write a rate from \"1/day\" to \"{MOST_PER_TIME}/s\""),
            );
        }
        Err(wrong) => {
            let span = table.span_of("rate");
            table
                .problems
                .error(span, wrong.message, "write rate = \"10/min\"");
        }
    }
    Rate {
        count: 10,
        per_nanoseconds: 60_000_000_000,
    }
}

fn time(
    table: &mut Table<'_, '_>,
    key: &'static str,
    example: &str,
    range: std::ops::RangeInclusive<Duration>,
    default: Duration,
) -> Duration {
    let Some(nanoseconds) = table.time(key, example) else {
        return default;
    };
    let time = Duration::from_nanos(nanoseconds);
    if !range.contains(&time) {
        let span = table.span_of(key);
        let message = format!(
            "{key} is out of range: {} to {}",
            human::time(*range.start()),
            human::time(*range.end())
        );
        table
            .problems
            .error(span, message, format!("write {key} = {example}"));
        return default;
    }
    time
}

#[cfg(test)]
mod tests;
