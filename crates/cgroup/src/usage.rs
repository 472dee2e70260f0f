//! The file of the groups' usage, and the readings for it.

use std::time::{Duration, Instant};

use api::group::UsageRow;
use host::{Moment, StateDirectory};

use super::account;
use super::groups::Groups;
use super::ledger::{Ledger, Reading, Traffic};

const NAME: &str = "usage.json";
/// The largest file that is read.
const LARGEST: u64 = 256 << 20;
/// The interval at which the file is written.
const SAVE: Duration = Duration::from_secs(20);
/// The interval between two readings is at least this multiple of a reading's duration.
const LOOK_SHARE: u32 = 200;

/// The ledger of a running agent, and its file.
pub struct Book {
    directory: StateDirectory,
    ledger: Ledger,
    looked: Option<(Instant, Duration)>,
    saved: Instant,
    trouble: Option<String>,
}

impl Book {
    /// Continues with the file of an earlier agent.
    #[must_use]
    pub fn open(directory: StateDirectory) -> Self {
        let read = directory.read(NAME, LARGEST, |text| serde_json::from_slice(text));
        let (ledger, trouble) = match read {
            Ok(ledger) => (ledger, None),
            Err(damaged) => (
                None,
                Some(format!("the usage of groups starts over: {damaged}")),
            ),
        };
        let ledger = ledger.unwrap_or_else(|| Ledger::new(Moment::now()));
        Self {
            directory,
            ledger,
            looked: None,
            saved: Instant::now(),
            trouble,
        }
    }

    /// Reads the groups' counters if the interval has passed, and saves from time to time.
    pub fn tick(&mut self, groups: &Groups) {
        if self
            .looked
            .is_none_or(|(at, took)| at.elapsed() >= took * LOOK_SHARE)
        {
            self.look(groups);
        }
        if self.saved.elapsed() >= SAVE {
            self.save();
        }
    }

    pub fn look(&mut self, groups: &Groups) {
        let start = Instant::now();
        let (readings, traffic) = groups.readings();
        self.ledger.look(Moment::now(), &readings, &traffic);
        self.looked = Some((Instant::now(), start.elapsed()));
    }

    /// Writes the file.
    pub fn save(&mut self) {
        self.saved = Instant::now();
        let text = match serde_json::to_vec(&self.ledger) {
            Ok(text) => text,
            Err(error) => {
                self.trouble = Some(format!("the usage of groups is not saved: {error}"));
                return;
            }
        };
        let saved = self.directory.replace(NAME, &[&text]);
        self.trouble = saved
            .err()
            .map(|error| format!("the usage of groups is not saved: {error}"));
    }

    /// See [`Ledger::rows`].
    #[must_use]
    pub fn rows(&self, group: Option<&str>, from: Option<&str>, to: Option<&str>) -> Vec<UsageRow> {
        self.ledger.rows(group, from, to)
    }

    /// A note for the operator.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        self.trouble.clone()
    }
}

impl Groups {
    /// The counters of all cgroups and networks.
    fn readings(&self) -> (Vec<Reading>, Vec<Traffic>) {
        let mut readings = Vec::new();
        for (nth, member) in self.members.iter().enumerate() {
            for (path, is_groups) in self.used_paths(nth) {
                let Some(inode) = self.inode(&path) else {
                    continue;
                };
                let counters = account::read_counters(&self.tree, &self.host.sys, &path);
                readings.push(Reading {
                    group: member.group.name.clone(),
                    path,
                    inode,
                    is_groups,
                    counters,
                });
            }
        }
        let traffic = self.members.iter().filter_map(|member| {
            let network = member.network.as_ref()?;
            let status = network
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .status()
                .ok()?;
            let group = member.group.name.clone();
            Some(Traffic {
                group,
                egress: status.egress_bytes,
                ingress: status.ingress_bytes,
            })
        });
        (readings, traffic.collect())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_damaged_file_is_kept_aside_and_reported() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(NAME), "{").unwrap();
        let book = Book::open(StateDirectory::at(folder.path()));
        assert!(book.note().unwrap().contains(".damaged"));
        assert!(folder.path().join(format!("{NAME}.damaged")).exists());
        assert!(
            Book::open(StateDirectory::at(folder.path()))
                .note()
                .is_none()
        );
    }
}
