//! The hosts' reports on a release, and their consequences for hosts that have not begun.
//!
//! Each host replaces its own report. Reports are not signed, and each says itself whether it counts: who can write to the
//! store can stop a release, or pretend that its canaries have held, with more forged reports than canaries are on trial.
//! Neither adds rules that no publisher signed, and each host still checks its own health.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::health::CHECK;
use crate::text;

/// How far a host is with a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum Progress {
    /// It has not begun.
    Waiting,
    /// In effect, and its health is being checked.
    Trying {
        /// When the bake ends by the host's clock; others only schedule requests by it.
        #[serde(with = "text::instant")]
        ends: SystemTime,
    },
    /// In effect and confirmed.
    Held,
    /// Rolled back by the host itself.
    Failed { reason: String },
    /// Not in effect: aborted, or failed on another host.
    Stopped { reason: String },
}

/// A host's report; it replaces the host's earlier report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub host: String,
    /// From these, publishers know which hosts a selection matches.
    pub labels: BTreeMap<String, String>,
    pub stream: String,
    /// The highest version that it has accepted; 0 for none.
    pub version: u64,
    /// The digest of that version.
    pub digest: String,
    #[serde(flatten)]
    pub progress: Progress,
    /// The version in effect; 0 for the host's file alone.
    pub effective: u64,
    /// Why the store's present head does not count, or is not in effect.
    pub refused: Option<String>,
    /// Whether other hosts decide by it: the report of a canary, or of a conflict.
    pub counts: bool,
}

impl Report {
    /// Reads a report of the store.
    ///
    /// # Errors
    ///
    /// When the text is none.
    pub fn parse(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    /// Its text.
    ///
    /// # Errors
    ///
    /// When a version has no representation in TOML, above 2⁶³.
    pub fn to_text(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }
}

/// A canary that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub host: String,
    pub reason: String,
}

/// The reports that count for one release.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Board {
    pub trying: u32,
    pub held: u32,
    /// When the last bake ends.
    pub ends: Option<SystemTime>,
    /// The first failed host by name.
    pub failed: Option<Failure>,
    /// The present report of the reading host, if it counts.
    pub mine: Option<Report>,
}

/// Whether hosts that are no canaries begin with a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Canaries have not held yet.
    Closed,
    Open,
    /// A canary failed.
    Stopped(Failure),
}

impl Board {
    /// Counts the reports on a version. Those on another digest do not count, except failures: two documents of one version
    /// are a conflict, and neither proceeds.
    #[must_use]
    pub fn of<'r>(
        reports: impl IntoIterator<Item = &'r Report>,
        version: u64,
        digest: &str,
        host: &str,
    ) -> Self {
        let mut board = Self::default();
        let counted = |report: &&Report| report.counts && report.version == version;
        for report in reports.into_iter().filter(counted) {
            if report.host == host {
                board.mine = Some(report.clone());
            }
            match &report.progress {
                Progress::Failed { reason } => {
                    let earlier = board.failed.as_ref();
                    if earlier.is_none_or(|failed| report.host < failed.host) {
                        let (host, reason) = (report.host.clone(), reason.clone());
                        board.failed = Some(Failure { host, reason });
                    }
                }
                _ if report.digest != digest => {}
                Progress::Trying { ends } => {
                    board.trying += 1;
                    board.ends = board.ends.max(Some(*ends));
                }
                Progress::Held => board.held += 1,
                Progress::Waiting | Progress::Stopped { .. } => {}
            }
        }
        board
    }

    /// Whether canaries have held: all that began, or after `held_for` most of them. So of three or more canaries, one that is
    /// switched off during the bake does not stop a release, and a slow one is waited for.
    #[must_use]
    pub fn gate(&self, held_for: Duration, every: Duration) -> Gate {
        if let Some(failure) = &self.failed {
            return Gate::Stopped(failure.clone());
        }
        let is_late = held_for >= every * 2 + CHECK;
        if self.held > 0 && (self.trying == 0 || is_late && self.held > self.trying) {
            return Gate::Open;
        }
        Gate::Closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(10);

    fn board(trying: u32, held: u32) -> Board {
        Board {
            trying,
            held,
            ..Board::default()
        }
    }

    #[test]
    fn the_gate_opens_when_all_canaries_or_after_a_while_most_have_held() {
        let late = EVERY * 2 + CHECK;
        for (trying, held, at_once, later) in [
            (0, 0, false, false),
            (10, 0, false, false),
            (1, 9, false, true),
            (5, 5, false, false),
            (4, 6, false, true),
            (0, 1, true, true),
            (0, 10, true, true),
        ] {
            let is_open = |held_for| board(trying, held).gate(held_for, EVERY) == Gate::Open;
            assert_eq!(is_open(Duration::ZERO), at_once, "{trying} {held}");
            assert_eq!(is_open(late), later, "{trying} {held}");
        }
    }

    #[test]
    fn one_failure_stops_whatever_the_others_report() {
        let failure = Failure {
            host: "a".into(),
            reason: "r".into(),
        };
        let board = Board {
            failed: Some(failure.clone()),
            ..board(0, 10)
        };
        assert_eq!(board.gate(EVERY * 9, EVERY), Gate::Stopped(failure));
    }

    #[test]
    fn reports_on_another_document_of_the_version_only_stop() {
        let report = |host: &str, digest: &str, progress, counts| Report {
            host: host.into(),
            labels: BTreeMap::new(),
            stream: "web".into(),
            version: 2,
            digest: digest.into(),
            progress,
            effective: 1,
            refused: None,
            counts,
        };
        let failed = || Progress::Failed { reason: "r".into() };
        let reports = [
            report("a", "x", Progress::Held, true),
            report("b", "y", Progress::Held, true),
            report("c", "x", failed(), false),
        ];
        let board = Board::of(&reports, 2, "x", "a");
        assert_eq!((board.held, board.failed), (1, None));
        assert_eq!(board.mine.as_ref(), Some(&reports[0]));
        let failed = [report("d", "y", failed(), true)];
        let board = Board::of(reports.iter().chain(&failed), 2, "x", "z");
        assert_eq!(board.failed.unwrap().host, "d");
    }
}
