//! `agent import`: rules of nftables, iptables, ipset and fail2ban as limits.toml.
//!
//! [`import`] is without I/O: it reads a format as chains, rules and sets (`rule`), finds limits, bans and exempt sources on
//! the way of an incoming packet (`walk`), and writes them (`output`). A limit has at least the rate and burst of its rule,
//! and at most its packets; if Weir cannot do that, it is a comment.

mod detect;
mod fail2ban;
mod found;
mod ipset;
mod iptables;
mod json;
mod limit;
mod nftables;
mod output;
mod prefixes;
mod rates;
mod rule;
mod walk;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use thiserror::Error;

pub use self::detect::Format;
use self::found::Found;
pub use self::found::LeftOut;
use self::json::Json;
pub use self::output::is_plain;
use self::rule::Ruleset;

/// The most bytes of all inputs.
pub const MOST_BYTES: u64 = 128 << 20;
/// The directory of ban lists in the config, if `--lists` names none.
const LISTS: &str = "/etc/weir/lists";

/// What the config is to name.
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
    fn list_directory(&self) -> &Path {
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
    Unknown(String, &'static str),
    #[error("{0}: invalid JSON: {1}")]
    Json(String, serde_json::Error),
    #[error("{0}: the JSON has no key \"nftables\": write the output of nft -j list ruleset")]
    NotNftables(String),
    #[error(
        "{name}: no rule, set or address of {format}: {unread} lines are none; see agent import --help for the formats"
    )]
    Nothing { name: String, format: Format, unread: u64 },
}

/// Imports inputs, each with the name that errors have.
///
/// # Errors
///
/// When an input has no known format.
pub fn import(inputs: &[(String, Vec<u8>)], options: &Options) -> Result<Import, ImportError> {
    let mut ruleset = Ruleset::default();
    let mut found = Found::default();
    let mut jails = BTreeMap::new();
    for (name, bytes) in inputs {
        let text =
            std::str::from_utf8(bytes).map_err(|error| ImportError::NotText(name.clone(), error.valid_up_to() + 1))?;
        let format = match options.format {
            Some(format) => format,
            None => detect::format(name, text)?,
        };
        let before = (count(&ruleset), jails.len(), found.size());
        let unread = match format {
            Format::Nftables => {
                let document = Json::parse(text).map_err(|error| ImportError::Json(name.clone(), error))?;
                nftables::parse(&document, &mut ruleset).ok_or_else(|| ImportError::NotNftables(name.clone()))?;
                0
            }
            Format::Ipset => ipset::parse(text, &mut ruleset),
            Format::Hashlimit => iptables::parse(text, &mut ruleset),
            Format::Fail2ban if detect::is_ini(text) => fail2ban::parse_jails(text, &mut found),
            Format::Fail2ban => fail2ban::parse_bans(text, &mut jails),
        };
        let is_empty = before == (count(&ruleset), jails.len(), found.size());
        if unread > 0 && is_empty {
            return Err(ImportError::Nothing { name: name.clone(), format, unread });
        }
        if unread > 0 {
            found.leave_out("lines that are not understood", &format!("{unread} lines of {name}"));
        }
    }
    let mut all = walk::walk(&ruleset);
    all.rest_of_sets(&ruleset);
    all.jails(&jails);
    all.append(found);
    Ok(output::write(all, options))
}

/// Chains and sets so far.
fn count(ruleset: &Ruleset) -> (usize, usize) {
    (ruleset.chains.len(), ruleset.sets.len())
}
