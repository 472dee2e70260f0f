//! A store, and what it may do to its readers.

use std::collections::{BTreeMap, VecDeque};

use crate::board::{Board, Report};
use crate::document::Release;
use crate::envelope::Envelope;
use crate::host::{Head, Reply};
use crate::index::Index;
use crate::text::digest;

/// A published release.
#[derive(Clone)]
pub struct Published {
    pub release: Release,
    pub object: String,
    pub digest: String,
}

impl Published {
    pub fn new(release: Release, object: String) -> Self {
        let text = Envelope::open(&object).unwrap().text();
        Self {
            digest: digest(text),
            release,
            object,
        }
    }
}

/// The lies of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// The first release in place of the head.
    Replay,
    Truncated,
    Changed,
    Unsigned,
    Empty,
}

impl Lie {
    pub const ALL: [Self; 5] = [
        Self::Replay,
        Self::Truncated,
        Self::Changed,
        Self::Unsigned,
        Self::Empty,
    ];
}

/// The objects of a store.
#[derive(Clone, Default)]
pub struct Contents {
    pub releases: Vec<Published>,
    aborts: BTreeMap<u64, String>,
    /// All reports, by host.
    reports: BTreeMap<String, Report>,
}

#[derive(Default)]
pub struct Store {
    pub contents: Contents,
    index: Index,
    /// Earlier indexes, the newest last, one a tenth of a second.
    earlier: VecDeque<Index>,
    pub is_down: bool,
    pub lie: Option<Lie>,
    /// Whether it replaces an index on no condition: writers lose what others write within a second.
    pub is_racy: bool,
}

impl Store {
    pub fn publish(&mut self, published: Published) {
        let version = published.release.version;
        self.index.publish(version, &published.digest);
        self.contents.releases.push(published);
    }

    pub fn abort(&mut self, version: u64, object: String) {
        self.index.abort(version, &digest(&object));
        self.contents.aborts.insert(version, object);
    }

    /// Returns to its first releases, as from a backup.
    pub fn restore(&mut self, releases: usize) {
        self.contents.releases.truncate(releases);
        if let Some(head) = self.contents.releases.last() {
            self.index.publish(head.release.version, &head.digest);
        }
    }

    pub fn read(&self, host: &str, known: Option<&str>) -> Reply {
        let Contents {
            releases, aborts, ..
        } = &self.contents;
        let Some(head) = releases.last() else {
            return Reply {
                head: Head::Missing,
                aborts: Vec::new(),
                board: Board::default(),
            };
        };
        let object = |change: fn(&str) -> String| Head::Is(change(&head.object));
        let head = match self.lie {
            None if known == Some(&self.index.digest) => Head::Unchanged,
            None => object(str::to_owned),
            Some(Lie::Replay) => Head::Is(releases[0].object.clone()),
            Some(Lie::Truncated) => object(|text| text[..text.len() - 10].to_owned()),
            Some(Lie::Changed) => object(|text| text.replace("000/s", "999/s")),
            Some(Lie::Unsigned) => object(|text| {
                let lines = text.split_inclusive('\n').skip(4);
                lines.collect()
            }),
            Some(Lie::Empty) => Head::Missing,
        };
        if self.lie.is_some() {
            // It has lost reports and aborts as well.
            return Reply {
                head,
                aborts: Vec::new(),
                board: Board::default(),
            };
        }
        let aborted = self.index.aborts.iter();
        let aborts = aborted
            .filter_map(|abort| aborts.get(&abort.version))
            .cloned();
        Reply {
            head,
            aborts: aborts.collect(),
            board: self.index.board(host),
        }
    }

    pub fn put(&mut self, report: &Report) {
        let reports = &mut self.contents.reports;
        reports.insert(report.host.clone(), report.clone());
        if self.is_racy
            && let Some(read) = self.earlier.front()
            && read.head == self.index.head
        {
            self.index = read.clone();
        }
        self.index.report(report);
    }

    /// A tenth of a second passes.
    pub fn pass(&mut self) {
        if self.is_racy {
            self.earlier.push_back(self.index.clone());
            if self.earlier.len() > 10 {
                self.earlier.pop_front();
            }
        }
    }

    /// All reports, for a publisher.
    pub fn reports(&self) -> Vec<Report> {
        self.contents.reports.values().cloned().collect()
    }

    /// Loses all reports that count.
    pub fn forget_reports(&mut self) {
        let (version, digest) = (self.index.head, self.index.digest.clone());
        self.index.publish(version, &digest);
    }
}
