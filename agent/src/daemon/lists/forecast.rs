//! The predicted size of a config's lists, for `agent check`.

use config::human;
use config::policy::{BanList, Config, ListSource};
use host::StateDirectory;
use lists::{Copy, parse};

use super::source::{self, Content};
use crate::geo::Databases;

/// Kernel memory of a prefix, at most, and of the filter and the counters.
const PER_PREFIX: u64 = 48;
const BASE: u64 = 512 << 10;

/// A note for each list: its prefixes and their memory, or why they are not known. Fetches nothing.
#[must_use]
pub fn notes(config: &Config, databases: &Databases) -> Vec<String> {
    let state = StateDirectory::at(&config.agent.state_dir);
    let mut notes = Vec::new();
    let (mut all, mut is_banning) = (0, false);
    for list in &config.ban_lists {
        match count(list, databases, &state) {
            Ok((prefixes, from)) => {
                is_banning |= list.class().is_none();
                all += if list.class().is_none() { prefixes } else { 0 };
                let class = list
                    .class()
                    .map(|class| format!(", for class {class:?}"))
                    .unwrap_or_default();
                notes.push(format!(
                    "ban list {:?}: {} prefixes in {from}{class}",
                    list.name,
                    human::number(prefixes)
                ));
            }
            // With the classes.
            Err(_) if list.class().is_some() => {}
            Err(why) => notes.push(format!("ban list {:?}: {why}", list.name)),
        }
    }
    if is_banning {
        let bytes = BASE + all * PER_PREFIX;
        notes.push(format!(
            "ban lists take at most {} of kernel memory, and twice that while they are replaced",
            human::size(bytes)
        ));
    }
    notes
}

/// The prefixes of a list, and where they were counted.
fn count(
    list: &BanList,
    databases: &Databases,
    state: &StateDirectory,
) -> Result<(u64, String), String> {
    match list.source() {
        ListSource::File(path) => {
            let (content, _) = source::read(&path, None)?;
            let Content::Text { bytes, .. } = content else {
                return Err("its file changed".to_owned());
            };
            let parsed = parse(&bytes, &list.format).map_err(|error| error.to_string())?;
            let invalid = parsed
                .note()
                .map(|note| format!(" ({note})"))
                .unwrap_or_default();
            Ok((
                parsed.prefixes.len() as u64,
                format!("{}{invalid}", path.display()),
            ))
        }
        ListSource::Geo(keys) => Ok((
            databases.of_list(&keys).len() as u64,
            "the databases of [geo]".to_owned(),
        )),
        ListSource::Url(_) => {
            match Copy::read(state, &list.name).map_err(|error| error.to_string())? {
                Some(copy) => Ok((copy.prefixes.len() as u64, "the last copy".to_owned())),
                None => Err("it has not been fetched yet; its memory is not known".to_owned()),
            }
        }
    }
}
