//! The predicted size of a config's lists, for `weir check`.

use config::policy::{BanList, Config, ListSource};
use config::{PrefixKey, human};
use host::StateDirectory;
use lists::{Copy, Listed, parse};

use super::own;
use super::source::{self, Content};
use crate::geo::Databases;
use crate::protect::Detected;

/// Kernel memory of a prefix, at most, and of the filter and the counters.
const PER_PREFIX: u64 = 48;
const BASE: u64 = 512 << 10;

/// The result of reading a config's lists before anything runs.
#[derive(Debug, Default)]
pub struct Forecast {
    /// Files that are no list: the agent would not apply them.
    pub errors: Vec<String>,
    /// Lists that refuse addresses that this host needs.
    pub warnings: Vec<String>,
    /// For each list its prefixes, or why they are not known; and the memory of all.
    pub notes: Vec<String>,
}

/// Why the prefixes of a list are not known.
enum Unknown {
    /// The source cannot be read now.
    Unread(String),
    /// It is no list.
    Invalid(String),
}

/// Reads the lists of a config, from which the protected addresses are exempt, too. Fetches nothing.
#[must_use]
pub fn forecast(config: &Config, databases: &Databases, detected: &[Detected]) -> Forecast {
    let state = StateDirectory::at(&config.agent.state_dir);
    let (mut notes, mut errors) = (Vec::new(), Vec::new());
    let (mut all, mut is_banning) = (0, false);
    let mut banned: Vec<(&str, Vec<PrefixKey>)> = Vec::new();
    for list in &config.ban_lists {
        match read(list, databases, &state) {
            Ok((prefixes, from)) => {
                let count = prefixes.len() as u64;
                is_banning |= list.class().is_none();
                if list.class().is_none() {
                    all += count;
                    banned.push((&list.name, prefixes));
                }
                let class = list
                    .class()
                    .map(|class| format!(", for class {class:?}"))
                    .unwrap_or_default();
                notes.push(format!(
                    "ban list {:?}: {} prefixes in {from}{class}",
                    list.name,
                    human::number(count)
                ));
            }
            Err(Unknown::Invalid(why)) => {
                errors.push(format!("ban list {:?}: {why}", list.name));
            }
            // With the classes.
            Err(_) if list.class().is_some() => {}
            Err(Unknown::Unread(why)) => notes.push(format!("ban list {:?}: {why}", list.name)),
        }
    }
    if is_banning {
        let bytes = BASE + all * PER_PREFIX;
        notes.push(format!(
            "ban lists take at most {} of kernel memory, and twice that while they are replaced",
            human::size(bytes)
        ));
    }
    let banned = banned
        .iter()
        .map(|(name, prefixes)| (*name, prefixes.as_slice()));
    Forecast {
        errors,
        warnings: own::warnings(config, detected, banned),
        notes,
    }
}

/// The prefixes of a list, and where they are from.
fn read(
    list: &BanList,
    databases: &Databases,
    state: &StateDirectory,
) -> Result<(Vec<PrefixKey>, String), Unknown> {
    match list.source() {
        ListSource::File(path) => {
            let (content, _) = source::read(&path, None).map_err(Unknown::Unread)?;
            let Content::Text { bytes, .. } = content else {
                return Err(Unknown::Unread("its file changed".to_owned()));
            };
            let invalid = |error| Unknown::Invalid(format!("{}: {error}", path.display()));
            let parsed = parse(&bytes, &list.format).map_err(invalid)?;
            let invalid = parsed
                .note()
                .map(|note| format!(" ({note})"))
                .unwrap_or_default();
            Ok((parsed.prefixes, format!("{}{invalid}", path.display())))
        }
        ListSource::Geo(keys) => Ok((
            databases.of_list(&keys),
            "the databases of [geo]".to_owned(),
        )),
        ListSource::Url(_) => {
            let copy = Copy::read(state, &list.name)
                .map_err(|error| Unknown::Unread(error.to_string()))?
                .ok_or_else(|| {
                    let why = "it has not been fetched yet; its memory is not known";
                    Unknown::Unread(why.to_owned())
                })?;
            let prefixes = copy.prefixes.iter().map(Listed::prefix).collect();
            Ok((prefixes, "the last copy".to_owned()))
        }
    }
}
