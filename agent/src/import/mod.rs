//! `weir import`: rules of nftables, iptables, ipset and fail2ban as limits.toml.
//!
//! [`import`] is without I/O: it reads a format as chains, rules and sets (`rule`), finds limits, bans and exempt sources on
//! the way of an incoming packet (`walk`), and writes them (`output`). A limit has at least the rate and burst of its rule,
//! and at most its packets; if Weir cannot do that, it is a comment.

mod detect;
mod document;
mod fail2ban;
mod found;
mod ipset;
mod iptables;
mod json;
mod limit;
mod names;
mod nftables;
mod output;
mod prefixes;
mod rates;
mod rule;
mod walk;

use std::collections::BTreeMap;

pub use self::document::{Format, Import, ImportError, ListFile, MOST_BYTES, Options};
use self::found::Found;
pub use self::found::LeftOut;
use self::json::Json;
pub use self::output::is_plain;
use self::rule::Ruleset;

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
        let text = std::str::from_utf8(bytes)
            .map_err(|error| ImportError::NotText(name.clone(), error.valid_up_to() + 1))?;
        let format = match options.format {
            Some(format) => format,
            None => detect::format(name, text)?,
        };
        let before = (count(&ruleset), jails.len(), found.size());
        let unread = match format {
            Format::Nftables => {
                let document =
                    Json::parse(text).map_err(|error| ImportError::Json(name.clone(), error))?;
                nftables::parse(&document, &mut ruleset)
                    .ok_or_else(|| ImportError::NotNftables(name.clone()))?;
                0
            }
            Format::Ipset => ipset::parse(text, &mut ruleset),
            Format::Hashlimit => iptables::parse(text, &mut ruleset),
            Format::Fail2ban if detect::is_ini(text) => fail2ban::parse_jails(text, &mut found),
            Format::Fail2ban => fail2ban::parse_bans(text, &mut jails),
        };
        if ruleset.is_too_large() {
            return Err(ImportError::TooMany(name.clone()));
        }
        let is_empty = before == (count(&ruleset), jails.len(), found.size());
        if unread > 0 && is_empty {
            return Err(ImportError::Nothing {
                name: name.clone(),
                format,
                unread,
            });
        }
        if unread > 0 {
            found.leave_out(
                "lines that are not understood",
                &format!("{unread} lines of {name}"),
            );
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
