//! Objects of a stream in a store that can only read and replace objects.
//!
//! | object | contents | written by |
//! |---|---|---|
//! | `STREAM/index` | [`Index`]: which release is the head, which aborts there are, and the reports that count | publishers, canaries |
//! | `STREAM/releases/VERSION` | a signed release | publishers, once |
//! | `STREAM/aborts/VERSION` | a signed abort | publishers |
//! | `STREAM/reports/HOST` | a host's report, for publishers | the host |
//!
//! Hosts read the index, with its ETag, and other objects when it names new ones. So one small request shows all that hosts
//! decide by. The index is not signed: it may hide objects and reports, as the store may, and adds no rules.
//!
//! Writers replace the index by what they have read and their own entry, where the store can on the condition that it has
//! not changed. Without that, two writers at once lose one entry. A lost report is sent again after the next read; until then
//! the host counts as one on trial, so that nobody follows too early. Publishers have to read the index afterwards, and to
//! write a lost head or abort again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::board::{Board, Report};
use crate::refusal::Refusal;

/// An abort in an index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aborted {
    pub version: u64,
    /// The digest of the abort: another publisher may replace it.
    pub digest: String,
}

/// The object that hosts read every time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    /// The version of the newest release; 0 for none.
    pub head: u64,
    /// The digest of the newest release.
    pub digest: String,
    /// The aborted versions in ascending order.
    #[serde(default)]
    pub aborts: Vec<Aborted>,
    /// The reports that count on the newest release, by host.
    #[serde(default)]
    reports: BTreeMap<String, Report>,
}

impl Index {
    /// Reads an index.
    ///
    /// # Errors
    ///
    /// When the text is none.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        toml::from_str(text).map_err(|error: toml::de::Error| {
            Refusal::Malformed(error.to_string().trim_end().to_owned())
        })
    }

    /// Its text.
    ///
    /// # Errors
    ///
    /// When a version has no representation in TOML, above 2⁶³.
    pub fn to_text(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }

    /// Makes a release the head. Reports on the one before do not count any more.
    pub fn publish(&mut self, version: u64, digest: &str) {
        self.head = version;
        digest.clone_into(&mut self.digest);
        self.reports.clear();
    }

    /// Adds an abort, or replaces it.
    pub fn abort(&mut self, version: u64, digest: &str) {
        let digest = digest.to_owned();
        self.aborts.retain(|abort| abort.version != version);
        self.aborts.push(Aborted { version, digest });
        self.aborts.sort_by_key(|abort| abort.version);
    }

    /// Whether it has this abort of a version.
    #[must_use]
    pub fn has_abort(&self, version: u64, digest: &str) -> bool {
        let is_it = |abort: &Aborted| abort.version == version && abort.digest == digest;
        self.aborts.iter().any(is_it)
    }

    /// Replaces a host's report, if it counts.
    pub fn report(&mut self, report: &Report) {
        if report.counts && report.version == self.head {
            self.reports.insert(report.host.clone(), report.clone());
        } else {
            self.reports.remove(&report.host);
        }
    }

    /// Whether it has a report of the host.
    #[must_use]
    pub fn has_report_of(&self, host: &str) -> bool {
        self.reports.contains_key(host)
    }

    /// The reports as a host counts them.
    #[must_use]
    pub fn board(&self, host: &str) -> Board {
        Board::of(self.reports.values(), self.head, &self.digest, host)
    }
}

/// Whether an object in the folder of reports can be a host's: other writers may have left more there.
#[must_use]
pub fn is_host(name: &str) -> bool {
    crate::text::is_plain(name)
}

/// The name of a stream's index.
#[must_use]
pub fn index(stream: &str) -> String {
    format!("{stream}/index")
}

/// The name of a release.
#[must_use]
pub fn release(stream: &str, version: u64) -> String {
    format!("{stream}/releases/{version}")
}

/// The name of the folder of releases.
#[must_use]
pub fn releases(stream: &str) -> String {
    format!("{stream}/releases")
}

/// The name of the folder of reports.
#[must_use]
pub fn reports(stream: &str) -> String {
    format!("{stream}/reports")
}

/// The name of an abort.
#[must_use]
pub fn abort(stream: &str, version: u64) -> String {
    format!("{stream}/aborts/{version}")
}

/// The name of a host's report.
#[must_use]
pub fn report(stream: &str, host: &str) -> String {
    format!("{stream}/reports/{host}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::Progress;
    use crate::testing::start;

    fn on(host: &str, version: u64, progress: Progress, counts: bool) -> Report {
        Report {
            host: host.into(),
            labels: BTreeMap::from([("role".into(), "web".into())]),
            stream: "web".into(),
            version,
            digest: format!("digest {version}"),
            progress,
            effective: version,
            refused: Some("a \"reason\"\nof two lines".into()),
            counts,
        }
    }

    #[test]
    fn an_index_is_read_as_it_was_written() {
        let mut index = Index::default();
        assert_eq!(Index::parse(&index.to_text().unwrap()), Ok(index.clone()));
        index.publish(7, "digest 7");
        index.abort(3, "d");
        index.report(&on("a", 7, Progress::Trying { ends: start() }, true));
        index.report(&on("b", 7, Progress::Held, true));
        assert_eq!(Index::parse(&index.to_text().unwrap()), Ok(index));
        assert!(Index::parse("head = -1").is_err());
    }

    #[test]
    fn an_index_with_ten_canaries_is_small() {
        let mut index = Index::default();
        index.publish(7, "digest 7");
        for host in 0..10 {
            let name = format!("web-{host}.example.net");
            let mut report = on(&name, 7, Progress::Trying { ends: start() }, true);
            report.refused = None;
            report.digest = "0".repeat(64);
            index.report(&report);
        }
        assert!(index.to_text().unwrap().len() < 4_096);
    }

    #[test]
    fn only_reports_that_count_on_the_head_are_kept() {
        let mut index = Index::default();
        index.publish(2, "digest 2");
        for report in [
            on("a", 2, Progress::Held, true),
            on("b", 1, Progress::Held, true),
            on("c", 2, Progress::Held, false),
        ] {
            index.report(&report);
        }
        let board = index.board("a");
        assert_eq!((board.held, board.mine.is_some()), (1, true));
        index.report(&on("a", 2, Progress::Held, false));
        assert_eq!(index.board("a"), Board::default());
        index.report(&on("a", 2, Progress::Held, true));
        index.publish(3, "digest 3");
        assert_eq!(index.board("a"), Board::default());
    }
}
