//! The record of a trial, for the next agent if this one is killed or the host reboots.
//!
//! A trial is often of the agent's own config file, changed in place. A restarted agent would read it and put it in
//! effect permanently. So the record is written before the trial starts, with both texts: the config on trial and the
//! previous one. After a restart, an unconfirmed config is not put in effect: the previous one is, until `weir
//! reload`, `weir confirm`, or a change of the file.

use std::fs;
use std::path::{Path, PathBuf};

use config::policy::AgentConfig;
use host::{Damaged, read_saved};
use serde::{Deserialize, Serialize};

use crate::daemon::state::{StateDirectory, StateError};

const NAME: &str = "trial.json";
/// The largest record: two configs of at most 64 MiB, with escapes.
const LARGEST: u64 = 512 << 20;

/// A trial, as it is written to the state directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The text of the config on trial.
    pub tried: Option<String>,
    /// The text of the previous config; `None` for the built-in limits.
    pub before: Option<String>,
    /// Whether the trial is over and has been reported.
    #[serde(default)]
    pub is_rolled_back: bool,
}

impl Record {
    /// The path that earlier versions used.
    fn beside_the_socket(agent: &AgentConfig) -> PathBuf {
        agent.control.with_extension("trial.json")
    }

    /// Reads an earlier agent's record; `None` if there is none.
    ///
    /// # Errors
    ///
    /// When it cannot be read. It is then renamed, so that this is reported once.
    pub fn read(agent: &AgentConfig) -> Result<Option<Self>, Damaged> {
        let read = |path: &Path| read_saved(path, LARGEST, |text| serde_json::from_slice(text));
        let path = StateDirectory::at(&agent.state_dir).file(NAME);
        match read(&path)? {
            None => read(&Self::beside_the_socket(agent)),
            record => Ok(record),
        }
    }

    /// Writes the record atomically.
    ///
    /// # Errors
    ///
    /// When the state directory cannot be written.
    pub fn write(&self, agent: &AgentConfig) -> Result<(), StateError> {
        let state = StateDirectory::at(&agent.state_dir);
        let fail = |error: serde_json::Error| StateError::Write {
            path: state.file(NAME),
            source: error.into(),
        };
        let text = serde_json::to_vec(self).map_err(fail)?;
        state.replace(NAME, &[&text])?;
        // An earlier version's record must not be used instead.
        let _ = fs::remove_file(Self::beside_the_socket(agent));
        Ok(())
    }

    /// Removes the record; a missing one is no error.
    ///
    /// # Errors
    ///
    /// When it cannot be removed.
    pub fn forget(agent: &AgentConfig) -> Result<(), StateError> {
        let _ = fs::remove_file(Self::beside_the_socket(agent));
        StateDirectory::at(&agent.state_dir).remove(NAME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(folder: &std::path::Path) -> AgentConfig {
        AgentConfig {
            control: folder.join("control.sock"),
            state_dir: folder.join("state"),
            ..AgentConfig::default()
        }
    }

    #[test]
    fn a_record_is_read_as_written_until_it_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let agent = agent(folder.path());
        assert_eq!(Record::read(&agent).unwrap(), None);
        let record = Record {
            tried: Some("[agent]\n".to_owned()),
            before: None,
            is_rolled_back: true,
        };
        record.write(&agent).unwrap();
        assert_eq!(Record::read(&agent).unwrap(), Some(record));
        Record::forget(&agent).unwrap();
        assert_eq!(Record::read(&agent).unwrap(), None);
    }

    #[test]
    fn a_record_of_an_earlier_version_is_read_beside_the_socket() {
        let folder = tempfile::tempdir().unwrap();
        let agent = agent(folder.path());
        fs::write(
            folder.path().join("control.trial.json"),
            r#"{"tried":"a","before":"b"}"#,
        )
        .unwrap();
        let record = Record {
            tried: Some("a".to_owned()),
            before: Some("b".to_owned()),
            is_rolled_back: false,
        };
        assert_eq!(Record::read(&agent).unwrap(), Some(record));
        Record::forget(&agent).unwrap();
        assert_eq!(Record::read(&agent).unwrap(), None);
    }

    #[test]
    fn a_damaged_record_is_set_aside_and_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let agent = agent(folder.path());
        fs::create_dir(&agent.state_dir).unwrap();
        fs::write(agent.state_dir.join(NAME), "{").unwrap();
        let error = Record::read(&agent).unwrap_err().to_string();
        assert!(
            error.contains("trial.json") && error.contains("damaged"),
            "{error}"
        );
        assert_eq!(Record::read(&agent).unwrap(), None);
        assert!(agent.state_dir.join("trial.json.damaged").exists());
    }

    #[test]
    fn an_error_of_writing_names_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let agent = agent(folder.path());
        fs::create_dir_all(folder.path().join("state/trial.json")).unwrap();
        let error = Record {
            tried: None,
            before: None,
            is_rolled_back: false,
        }
        .write(&agent)
        .unwrap_err()
        .to_string();
        assert!(
            error.contains("trial.json") && error.contains("[agent] state_dir"),
            "{error}"
        );
    }
}
