//! A trial that was not confirmed before an earlier agent ended: the config to start with, and the report.

use std::path::Path;

use config::policy::AgentConfig;
use host::PROGRAM;

use super::live::Live;
use super::record::Record;
use super::source::Source;
use crate::daemon::events::{Event, EventKind, EventLog};

/// A trial that was not confirmed before an earlier agent ended.
#[derive(Clone, Debug)]
pub struct EndedTrial {
    note: String,
    /// Whether no agent has reported it yet.
    is_new: bool,
    /// Whether the config that was on trial is in the file, and another one in effect: each start reports that.
    differs_from_file: bool,
    /// The record from now on; `None` once the file has another text.
    record: Option<Record>,
}

impl EndedTrial {
    /// The trial in the record, if this start has a config that is not from the agent's file: `in_effect` names it. Changes
    /// nothing: another agent may be running.
    #[must_use]
    pub fn of(agent: &AgentConfig, in_effect: &str) -> Option<Self> {
        Some(Self::ended(read(agent)?, in_effect))
    }

    /// The config to start with: the one before the trial, if the file still has the text that was on trial. Changes nothing:
    /// another agent may be running.
    #[must_use]
    pub fn before(path: &Path, source: Source) -> (Source, Option<Self>) {
        let Some(record) = read(&source.config.agent) else {
            return (source, None);
        };
        let file = path.display();
        // The file has been changed since, or was never on trial: reading it is the rollback.
        if record.tried != source.text {
            let ended = Self {
                record: None,
                ..Self::ended(record, &format!("{file} is in effect"))
            };
            return (source, Some(ended));
        }
        let Some(text) = record.before.clone() else {
            let what =
                format!("{file}, which was on trial, is in effect: there was no file before it");
            return (source, Some(Self::ended(record, &what)));
        };
        let config = match config::parse(path, &text) {
            Ok(loaded) => loaded.config,
            Err(report) => {
                tracing::warn!("the config before the trial of {file} is invalid:\n{report}");
                let what = format!(
                    "{file}, which was on trial, is in effect: this version cannot read the config before it"
                );
                return (source, Some(Self::ended(record, &what)));
            }
        };
        let before = Source::new(config, Some(text));
        let note = format!(
            "{file} was on trial and not confirmed: the config before it is in effect; {PROGRAM} reload puts the file in effect"
        );
        let ended = Self {
            note,
            differs_from_file: true,
            ..Self::ended(record, "")
        };
        (before, Some(ended))
    }

    fn ended(record: Record, in_effect: &str) -> Self {
        Self {
            note: format!(
                "a config was on trial when the earlier agent ended, and was not confirmed: {in_effect}"
            ),
            is_new: !record.is_rolled_back,
            differs_from_file: false,
            record: Some(Record {
                is_rolled_back: true,
                ..record
            }),
        }
    }

    /// Reports it, once the agent enforces the config.
    pub fn report(
        self,
        agent: &AgentConfig,
        file: Option<&Path>,
        events: &EventLog,
        live: &mut Live,
    ) {
        let recorded = match &self.record {
            Some(record) => record.write(agent),
            None => Record::forget(agent),
        };
        if let Err(error) = recorded {
            tracing::warn!("recording the end of the trial failed: {error}");
        }
        if self.is_new {
            let event = Event::now(EventKind::TrialRolledBack, 1, self.note.clone());
            events.push(event);
        }
        if self.is_new || self.differs_from_file {
            tracing::warn!("{}", self.note);
            live.trial_ended(file, self.note);
        }
    }
}

/// The record of a trial of another config than the one before it.
fn read(agent: &AgentConfig) -> Option<Record> {
    match Record::read(agent) {
        Ok(record) => record.filter(|record| record.tried != record.before),
        Err(damaged) => {
            tracing::warn!(
                "the record of a trial is lost: {damaged}; the config file is in effect without changes"
            );
            None
        }
    }
}
