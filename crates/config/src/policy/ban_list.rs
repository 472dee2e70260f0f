//! `[[ban_list]]`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::GeoKey;

/// A list of prefixes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BanList {
    /// Unique.
    pub name: String,
    pub source: ListSource,
    pub format: ListFormat,
    /// The interval at which the source is read.
    pub every: Duration,
    pub action: ListAction,
    /// Whether the list may shrink by more than half at once.
    pub allow_shrink: bool,
}

/// The effect of a list on its addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListAction {
    /// Their packets are refused.
    Ban,
    /// They belong to the class with this name.
    Class(String),
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
}

impl fmt::Display for ListAction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ban => formatter.write_str("ban"),
            Self::Class(class) => write!(formatter, "class:{class}"),
        }
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
