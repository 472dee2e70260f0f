//! The files of accepted and confirmed rules in the state directory, one a stream.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use config::policy::{FleetRules, Followed};
use host::{StateDirectory, StateError};
use rollout::host::{Rules, Saved};
use serde::{Deserialize, Serialize};

/// The confirmed rules and those before them, each of at most 4 MiB, with escapes.
const LARGEST: u64 = 64 << 20;

/// Versions of another stream mean something else, so that each has a file. The file of a stream that is not followed any
/// more stays: the host accepts no older version when it follows the stream again.
fn name(stream: &str) -> String {
    format!("rules-{stream}.json")
}

#[derive(Serialize, Deserialize)]
struct File {
    stream: String,
    saved: Saved,
}

/// Reads what an earlier agent saved of a stream; with a note if that is lost.
pub(super) fn read(directory: &StateDirectory, stream: &str) -> (Saved, Option<String>) {
    let file = directory.read(&name(stream), LARGEST, |text| {
        serde_json::from_slice::<File>(text)
    });
    match file {
        Ok(file) => {
            let of_stream = file.filter(|file| file.stream == stream);
            let saved = of_stream.map(|file| file.saved).unwrap_or_default();
            (saved, None)
        }
        Err(damaged) => {
            let note = format!("{damaged}; the rules of {stream} are read from the store again");
            (Saved::default(), Some(note))
        }
    }
}

pub(super) fn write(
    directory: &StateDirectory,
    stream: &str,
    saved: &Saved,
) -> Result<(), StateError> {
    let file = File {
        stream: stream.to_owned(),
        saved: saved.clone(),
    };
    let failed = |source: io::Error| StateError::Write {
        path: directory.file(&name(stream)),
        source,
    };
    let text = serde_json::to_vec(&file).map_err(|error| failed(error.into()))?;
    if text.len() as u64 > LARGEST {
        // The next start could not read it.
        return Err(failed(io::ErrorKind::FileTooLarge.into()));
    }
    directory.replace(&name(stream), &[&text])
}

/// The confirmed rules of all streams for a start, which needs no store. A damaged file is reported when the agent runs.
#[must_use]
pub fn confirmed(state: &Path, fleet: &FleetRules) -> BTreeMap<String, Arc<Rules>> {
    let of = |followed: Followed<'_>| {
        let stream = &followed.rules.stream;
        let path = StateDirectory::at(state).file(&name(stream));
        let text = host::read::read(&path, LARGEST).ok()?;
        let file: File = serde_json::from_slice(&text).ok()?;
        let rules = file.saved.confirmed().filter(|_| file.stream == *stream)?;
        Some((stream.clone(), Arc::new(rules.clone())))
    };
    fleet.streams().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fs;

    /// A fleet's stream, and that of a team.
    fn fleet(stream: &str, team: &str) -> FleetRules {
        let key = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";
        let of = |stream: &str| format!("rules = \"/srv/{stream}\"\npublic_keys = [{key:?}]\n");
        let text = format!(
            "[agent]\ninterfaces = [\"eth0\"]\n[fleet]\n{}[[fleet.team]]\nprefix = \"a-\"\n{}",
            of(stream),
            of(team)
        );
        let loaded = config::parse(Path::new("limits.toml"), &text);
        let config = loaded.unwrap_or_else(|report| panic!("{report}")).config;
        config.fleet.unwrap()
    }

    fn saved(text: &str) -> Saved {
        let good = json!({
            "version": 7, "digest": "d", "key": [0, 1, 2, 3, 4, 5, 6, 7],
            "texts": { "rules.toml": text },
        });
        let saved = json!({ "seen": null, "good": good, "before": null, "is_trying": false });
        serde_json::from_value(saved).unwrap()
    }

    #[test]
    fn a_start_has_the_confirmed_rules_of_its_streams() {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::at(folder.path());
        let streams = |fleet: &FleetRules| {
            let confirmed = confirmed(folder.path(), fleet).into_iter();
            confirmed
                .map(|(stream, rules)| (stream, rules.texts["rules.toml"].clone()))
                .collect::<Vec<_>>()
        };
        let both = fleet("web", "search");
        assert_eq!(streams(&both), []);
        for stream in ["web", "search"] {
            write(&directory, stream, &saved(stream)).unwrap();
            assert_eq!(read(&directory, stream), (saved(stream), None));
        }
        let of = |stream: &str| (stream.to_owned(), stream.to_owned());
        assert_eq!(streams(&both), [of("search"), of("web")]);
        assert_eq!(streams(&fleet("db", "search")), [of("search")]);
        assert_eq!(read(&directory, "db"), (Saved::default(), None));
        // A file that was copied.
        fs::copy(
            directory.file("rules-web.json"),
            directory.file("rules-db.json"),
        )
        .unwrap();
        assert_eq!(streams(&fleet("db", "pay")), []);
    }

    #[test]
    fn a_state_that_a_start_could_not_read_replaces_none() {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::at(folder.path());
        write(&directory, "web", &saved("")).unwrap();
        let large = saved(&"x".repeat(LARGEST as usize));
        assert!(write(&directory, "web", &large).is_err());
        assert_eq!(read(&directory, "web"), (saved(""), None));
    }

    #[test]
    fn a_damaged_file_is_reported_once_and_needs_the_store() {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::at(folder.path());
        directory.replace("rules-web.json", &[b"{"]).unwrap();
        assert!(confirmed(folder.path(), &fleet("web", "search")).is_empty());
        let (saved, note) = read(&directory, "web");
        assert_eq!(saved, Saved::default());
        assert!(note.unwrap().contains("read from the store again"));
        assert_eq!(read(&directory, "web").1, None);
    }
}
