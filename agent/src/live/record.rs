//! What the next agent has to know of a trial, should this one be killed meanwhile.
//!
//! A trial is often of the agent's own config file, changed in place. An agent that starts anew would read it, and put in
//! force for good what was to be tried for a minute. So it is written down, before the trial begins, what is tried and
//! what was in force. A config that was tried and not confirmed is not put in force by a start: what was before is, until
//! the operator says `agent reload` or `agent confirm`, or the file says something else.

use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::config::policy::AgentConfig;

/// It cannot be written.
#[derive(Debug, Error)]
#[error("writing {}, which the next agent needs to go back should this one be killed, failed: {source}; make room there, or name another place with [agent] control", path.display())]
pub struct RecordError {
    path: PathBuf,
    source: io::Error,
}

/// A trial, as it is written down beside the control socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The text of the config on trial.
    pub tried: Option<String>,
    /// That of the config in force before; `None` for the built-in limits.
    pub before: Option<String>,
}

impl Record {
    fn path(agent: &AgentConfig) -> PathBuf {
        agent.control.with_extension("trial.json")
    }

    /// Reads what an earlier agent wrote.
    #[must_use]
    pub fn read(agent: &AgentConfig) -> Option<Self> {
        serde_json::from_slice(&fs::read(Self::path(agent)).ok()?).ok()
    }

    /// Writes it, all of it or nothing.
    ///
    /// # Errors
    ///
    /// When there is no room, or no permission.
    pub fn write(&self, agent: &AgentConfig) -> Result<(), RecordError> {
        let path = Self::path(agent);
        let fail = |source| RecordError { path: path.clone(), source };
        let next = path.with_extension("json.next");
        let text = serde_json::to_vec(self).map_err(|error| fail(error.into()))?;
        // Configs may name whom their operator would not have everybody know of.
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&next).map_err(fail)?;
        io::Write::write_all(&mut file, &text).and_then(|()| file.sync_all()).map_err(fail)?;
        fs::rename(&next, &path).map_err(fail)
    }

    /// Removes it; there is none as a rule.
    pub fn forget(agent: &AgentConfig) {
        let _ = fs::remove_file(Self::path(agent));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(folder: &std::path::Path) -> AgentConfig {
        AgentConfig { control: folder.join("control.sock"), ..AgentConfig::default() }
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_gone_when_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let agent = agent(folder.path());
        assert_eq!(Record::read(&agent), None);
        let record = Record { tried: Some("[agent]\n".to_owned()), before: None };
        record.write(&agent).unwrap();
        assert_eq!(Record::read(&agent), Some(record));
        Record::forget(&agent);
        assert_eq!(Record::read(&agent), None);
    }

    #[test]
    fn where_it_cannot_be_written_the_error_names_the_place() {
        let folder = tempfile::tempdir().unwrap();
        let agent = agent(folder.path());
        fs::create_dir(folder.path().join("control.trial.json.next")).unwrap();
        let error = Record { tried: None, before: None }.write(&agent).unwrap_err().to_string();
        assert!(error.contains("control.trial.json") && error.contains("make room"), "{error}");
    }
}
