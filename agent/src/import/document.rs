//! The options and the result of an import.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use host::PROGRAM;
use ipnet::IpNet;
use thiserror::Error;

use super::found::LeftOut;
use super::rule::MOST_RULES;

/// The format of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// JSON of nft -j list ruleset
    Nftables,
    /// The output of ipset save
    Ipset,
    /// Output of fail2ban-client (banned, get JAIL banip, status JAIL), or jail.local
    Fail2ban,
    /// The output of iptables-save or ip6tables-save
    Hashlimit,
}

impl fmt::Display for Format {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Nftables => "nftables",
            Self::Ipset => "ipset",
            Self::Fail2ban => "fail2ban",
            Self::Hashlimit => "iptables",
        })
    }
}

/// The most bytes of all inputs.
pub const MOST_BYTES: u64 = 128 << 20;
/// The directory of ban lists in the config, if `--lists` names none.
const LISTS: &str = "/etc/weir/lists";

/// Names for the config.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The format, instead of the detected one.
    pub format: Option<Format>,
    /// Further interfaces.
    pub interfaces: Vec<String>,
    /// The directory of ban lists.
    pub lists: Option<PathBuf>,
}

impl Options {
    pub(super) fn list_directory(&self) -> &Path {
        self.lists.as_deref().unwrap_or(Path::new(LISTS))
    }
}

/// A config with its lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// The text of limits.toml.
    pub config: String,
    pub limits: usize,
    pub ban_lists: usize,
    /// Prefixes of `never_limit`.
    pub exempt: usize,
    /// Files of ban lists, also of those that are comments.
    pub lists: Vec<ListFile>,
    /// By reason.
    pub not_carried_over: BTreeMap<String, LeftOut>,
}

/// A ban list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListFile {
    pub name: String,
    pub path: PathBuf,
    pub prefixes: Vec<IpNet>,
}

/// Why an input is not imported.
#[derive(Debug, Error)]
pub enum ImportError {
    #[error("{0}: not text: byte {1} is not UTF-8")]
    NotText(String, usize),
    #[error("{0}: empty input")]
    Empty(String),
    #[error("{0}: unknown format: {1}")]
    Unknown(String, String),
    #[error("{0}: invalid JSON: {1}")]
    Json(String, serde_json::Error),
    #[error("{0}: more than {most} rules, chains and sets; import parts of it", most = MOST_RULES)]
    TooMany(String),
    #[error("{0}: the JSON has no key \"nftables\": write the output of nft -j list ruleset")]
    NotNftables(String),
    #[error(
        "{name}: no rule, set or address of {format}: {unread} lines are none; see {PROGRAM} import --help for the formats"
    )]
    Nothing {
        name: String,
        format: Format,
        unread: u64,
    },
}
