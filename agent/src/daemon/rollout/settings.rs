//! `[fleet]` for the decisions about rules.

use config::policy::{FleetRules, Followed, PublicKeyText};
use rollout::host::Settings;
use rollout::keyring::Keyring;
use rollout::rules::Rights;

/// The host's part in a stream.
pub(super) fn settings(fleet: &FleetRules, followed: &Followed<'_>) -> Settings {
    Settings {
        host: fleet.node.clone(),
        labels: fleet.labels.clone(),
        stream: followed.rules.stream.clone(),
        every: fleet.every,
        rights: Rights::of(fleet, followed),
    }
}

/// The keys of the host's own file that count for a stream. One that is no key does not count, which is a note.
pub(super) fn keyring(keys: &[PublicKeyText], notes: &mut Vec<String>) -> Keyring {
    let mut roots = Vec::new();
    for key in keys {
        match key.as_str().parse() {
            Ok(key) => roots.push(key),
            Err(error) => notes.push(format!("[fleet] public_keys: {error}")),
        }
    }
    Keyring::new(roots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_text_that_only_looks_like_a_key_is_a_note() {
        let key = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";
        let no_key = format!("RW{}A+", "A".repeat(52));
        for (text, expected) in [(key, 0), (no_key.as_str(), 1)] {
            let text = format!(
                "[agent]\ninterfaces = [\"eth0\"]\n[fleet]\nrules = \"/srv/web\"\nnode = \"a\"\npublic_keys = [{text:?}]\n"
            );
            let loaded = config::parse(Path::new("limits.toml"), &text);
            let config = loaded.unwrap_or_else(|report| panic!("{report}")).config;
            let fleet = config.fleet.unwrap();
            let mut notes = Vec::new();
            let followed = fleet.streams().next().unwrap();
            keyring(followed.public_keys, &mut notes);
            assert_eq!(notes.len(), expected, "{notes:?}");
            assert_eq!(settings(&fleet, &followed).host, "a");
        }
    }
}
