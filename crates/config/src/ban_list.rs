//! `[[ban_list]]`.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::policy::{AgentConfig, Country, GeoKey};
use super::report::{Problems, Wrong};
use super::schema::{HttpUrl, Key, Kind, Located, Table, Text};
use super::suggestion::suggestion;

/// The most lists, as the kernel program numbers them.
pub const MOST_LISTS: usize = common::list::MOST_LISTS;
/// The field of `format = "json"`.
const JSON_FIELD: &str = "cidr";

/// A list of addresses and prefixes whose incoming packets are refused, from a file, a URL or the databases of `[geo]`.
/// Lists of any length cost a packet the same. `never_limit` and protected addresses take precedence. With `mode =
/// "observe"`, lists refuse nothing. With `action = "class:NAME"`, the addresses belong to a class instead.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(heading = "[[ban_list]]", since = "0.1.0", check = check_keys)]
#[table(
    example = "[[ban_list]]\nname = \"drop\"\nfile = \"/etc/weir/drop.netset\"\nformat = \"netset\"\n\n\
                   [agent]\ninterfaces = [\"eth0\"]\n\n\
                   [[limit]]\nname = \"packets-per-source\"\nrate = \"1000/s\"\n"
)]
pub struct BanList {
    /// Unique name, shown by `weir bans` and `weir show`.
    #[key(examples = ["drop"], check = check_name)]
    pub name: String,
    /// The file with the list. Changes take effect at once.
    #[key(absent = "none; a list requires `file`, `url`, `asn` or `country`")]
    #[key(examples = ["/etc/weir/drop.netset"])]
    pub file: Option<PathBuf>,
    /// The `https` or `http` URL of the list. A request takes at most 60 s, 128 MiB and 5 redirects. Conflicts with
    /// `file`.
    #[key(absent = "none; a list requires `file`, `url`, `asn` or `country`")]
    #[key(examples = ["https://lists.example/drop.txt"])]
    pub url: Option<HttpUrl>,
    /// Numbers of autonomous systems whose networks are the list, instead of `file` or `url`. Requires `[geo] asn`.
    /// Conflicts with `format` and `every`.
    #[key(absent = "none", range = (1.0, u32::MAX as f64), examples = ["64500"])]
    pub asn: Vec<u32>,
    /// Countries whose networks are the list, as codes of ISO 3166-1, instead of `file` or `url`. Requires `[geo]
    /// country`. Conflicts with `format` and `every`.
    #[key(absent = "none", examples = ["XX"])]
    pub country: Vec<Country>,
    /// `plain`: an address, a prefix, a range (`192.0.2.1-192.0.2.9`) or an address and a netmask per line; `#` and `;`
    /// begin comments. `netset`: the same, with lines of `ipset save`. `csv:COLUMN`: comma-separated values; the column
    /// is a number from 1, or a name in the first line that is no comment. `json:FIELD`: JSON, one object a line. A line
    /// that is not understood as a whole is invalid.
    #[key(default = ListFormat::Plain)]
    #[key(examples = ["plain", "netset", "csv:1", "csv:address", "json:cidr"])]
    pub format: ListFormat,
    /// Interval at which the source is read.
    #[key(default = Duration::from_secs(3_600), range = (1.0, 2_592_000.0), examples = ["1h"])]
    pub every: Duration,
    /// `ban`: packets are dropped. `class:NAME`: the prefixes belong to the `[[class]]` with this name, as its `sources`
    /// do. Of the same prefix in several classes, `sources` take precedence, then the first list. Exceptions by `weir
    /// unban` do not apply. Conflicts with `asn` and `country`, which the class takes itself.
    #[key(default = ListAction::Ban, examples = ["ban", "class:partner"])]
    pub action: ListAction,
    /// Whether the list may shrink by more than half at once. Otherwise such a list is reported and not applied.
    #[key(default = false)]
    pub allow_shrink: bool,
}

impl BanList {
    /// The class to which its addresses belong; `None` if they are banned.
    #[must_use]
    pub fn class(&self) -> Option<&str> {
        match &self.action {
            ListAction::Ban => None,
            ListAction::Class(class) => Some(class),
        }
    }

    /// The one source of a valid list.
    #[must_use]
    pub fn source(&self) -> ListSource {
        match (&self.file, &self.url) {
            (Some(file), _) => ListSource::File(file.clone()),
            (None, Some(url)) => ListSource::Url(url.reveal().to_owned()),
            (None, None) => ListSource::Geo(GeoKey::all(&self.asn, &self.country)),
        }
    }
}

/// The effect of a list on its addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListAction {
    /// Their packets are refused.
    Ban,
    /// They belong to the class with this name.
    Class(String),
}

impl fmt::Display for ListAction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ban => formatter.write_str("ban"),
            Self::Class(class) => write!(formatter, "class:{class}"),
        }
    }
}

impl Text for ListAction {
    const KIND: Kind = Kind::Text(&[]);

    fn parse(text: &str, _: &Key) -> Result<Self, Wrong> {
        match (text, text.strip_prefix("class:")) {
            ("ban", _) => Ok(Self::Ban),
            (_, Some(class)) => Ok(Self::Class(class.to_owned())),
            _ => {
                let help = "write action = \"ban\" or action = \"class:NAME\"";
                Err(Wrong::new(format!("unknown action {text:?}"), help))
            }
        }
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

/// Where a list comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListSource {
    /// A file, which is also watched.
    File(PathBuf),
    /// An `http` or `https` URL.
    Url(String),
    /// `asn` and `country`: the prefixes of the databases of `[geo]`.
    Geo(Vec<GeoKey>),
}

/// The format of a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListFormat {
    /// A prefix or a range a line.
    Plain,
    /// The same, with the lines of `ipset save`.
    Netset,
    /// Comma-separated values.
    Csv(Column),
    /// JSON, one object a line, with the prefix in this field.
    Json(String),
}

/// A column of comma-separated values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Column {
    /// By its number, from 1.
    Number(usize),
    /// By its name in the first line that is no comment.
    Name(String),
}

impl ListSource {
    /// The text for people, without passwords and queries of URLs.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Url(url) => http_client::shown(url),
            Self::Geo(keys) => keys
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", "),
        }
    }
}

impl Text for ListFormat {
    const KIND: Kind = Kind::Text(&[]);

    fn parse(text: &str, _: &Key) -> Result<Self, Wrong> {
        match (text, text.strip_prefix("csv:")) {
            ("plain", _) => return Ok(Self::Plain),
            ("netset", _) => return Ok(Self::Netset),
            ("json", _) => return Ok(Self::Json(JSON_FIELD.to_owned())),
            (_, Some(column)) if !column.is_empty() => match column.parse() {
                Ok(0) => {}
                Ok(number) => return Ok(Self::Csv(Column::Number(number))),
                Err(_) => return Ok(Self::Csv(Column::Name(column.to_owned()))),
            },
            _ => {}
        }
        if let Some(field) = text.strip_prefix("json:").filter(|field| !field.is_empty()) {
            return Ok(Self::Json(field.to_owned()));
        }
        let help = "write \"plain\", \"netset\", \"json:\" and a field, or \"csv:\" and a column: \
                    format = \"json:cidr\", \"csv:1\" or \"csv:address\"";
        Err(Wrong::new(format!("invalid format {text:?}"), help))
    }

    fn text(&self) -> String {
        match self {
            Self::Plain => "plain".to_owned(),
            Self::Netset => "netset".to_owned(),
            Self::Csv(Column::Number(number)) => format!("csv:{number}"),
            Self::Csv(Column::Name(name)) => format!("csv:{name}"),
            Self::Json(field) => format!("json:{field}"),
        }
    }
}

fn check_name(text: &str, key: &Key) -> Result<(), Wrong> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() {
        let help = format!("write {}", key.example());
        return Err(Wrong::new("empty name of a ban list", help));
    }
    if text.len() > 64 || text.starts_with('.') || !text.chars().all(is_plain) {
        let help = format!(
            "write at most 64 letters, digits, dots, dashes and underscores: {}",
            key.example()
        );
        return Err(Wrong::new(
            format!("invalid name of a ban list {text:?}"),
            help,
        ));
    }
    Ok(())
}

/// Checks that a list has one source, and keys that go with it.
fn check_keys(read: &Located<'_, BanList>, problems: &mut Problems) {
    let list = &read.table;
    if !read.has(&BanList::ASN) && !read.has(&BanList::COUNTRY) {
        match (read.find(&BanList::FILE), read.find(&BanList::URL)) {
            (Some(_), Some(url)) => problems.conflict(
                url.span(),
                "url conflicts with file",
                "leave out one of them",
            ),
            (None, None) => problems.error(
                read.span(),
                "missing source of a ban list: it has no file and no url",
                "write file = \"/etc/weir/drop.netset\", url = \"https://…\", asn or country",
            ),
            _ => {}
        }
        return;
    }
    for key in [BanList::FILE, BanList::URL] {
        if read.has(&key) {
            let message = format!("{} conflicts with asn and country", key.name);
            let help = "leave out one of them: write two lists";
            problems.conflict(read.span_of(&key), message, help);
        }
    }
    if list.asn.is_empty() && list.country.is_empty() {
        problems.error(
            read.span(),
            "missing source of a ban list: asn and country are empty",
            "write asn = [64500] or country = [\"XX\"]",
        );
    }
    for key in [BanList::FORMAT, BanList::EVERY] {
        if read.has(&key) {
            let message = format!(
                "{} conflicts with asn and country: their prefixes are in the databases of [geo]",
                key.name
            );
            problems.conflict(
                read.span_of(&key),
                message,
                format!("leave out {}", key.name),
            );
        }
    }
    if list.class().is_some() {
        let message = format!("action \"{}\" conflicts with asn and country", list.action);
        let help = "write asn and country in the [[class]]";
        problems.conflict(read.span_of(&BanList::ACTION), message, help);
    }
}

/// Checks names, classes and numbers of lists, and what they require.
pub fn check(
    lists: &[Located<'_, BanList>],
    classes: &[&str],
    agent: &AgentConfig,
    problems: &mut Problems,
) {
    let mut names = HashMap::new();
    for read in lists {
        if names.insert(&read.table.name, ()).is_some() {
            let message = format!("duplicate ban list name {:?}", read.table.name);
            problems.conflict(
                read.span_of(&BanList::NAME),
                message,
                "give one of them another name",
            );
        }
        let Some(class) = read.table.class() else {
            continue;
        };
        if !classes.contains(&class) {
            let add = format!("add a [[class]] with name = {class:?}");
            let help = if classes.is_empty() {
                add
            } else {
                format!("{add}; {}", suggestion(class, classes))
            };
            problems.error(
                read.span_of(&BanList::ACTION),
                format!("unknown class {class:?}"),
                help,
            );
        }
    }
    let Some(first) = lists.first() else { return };
    if lists.len() > MOST_LISTS {
        let message = format!("too many ban lists: {}", lists.len());
        problems.error(
            first.span_of(&BanList::NAME),
            message,
            format!("write at most {MOST_LISTS}"),
        );
    }
    let banning = lists
        .iter()
        .find(|read| read.table.action == ListAction::Ban);
    if let Some(first) = banning.filter(|_| agent.interfaces.is_empty()) {
        let message = format!("ban list {:?} requires interfaces", first.table.name);
        problems.conflict(
            first.span_of(&BanList::NAME),
            message,
            "set [agent] interfaces = [\"eth0\"]",
        );
    }
}
