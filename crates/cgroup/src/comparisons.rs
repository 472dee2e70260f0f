//! The comparisons of limits with their files, and reports of those that other programs have lifted.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::watched::Watched;

/// The most reports that wait for a reader.
pub const MOST_REPORTS: usize = 1_000;

/// A report of a limit that another program has lifted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lifted {
    pub group: String,
    /// The kind and the name of the member, as in `weir groups`.
    pub member: String,
    /// The file of the limit.
    pub file: String,
    /// How often it was lifted in the last ten minutes.
    pub count: u64,
    pub reason: String,
}

/// The comparisons of limits with their files.
#[derive(Debug)]
pub struct Comparisons {
    /// By the path of the cgroup.
    pub watched: BTreeMap<String, Watched>,
    /// The last comparison of all, and its CPU time.
    pub last: Option<(Instant, Duration)>,
    /// The CPU time of setting limits again, which is no reason to compare less often.
    pub setting: Duration,
    /// When units without a cgroup were compared.
    pub units: Instant,
    /// When a unit without a cgroup that could not be limited is tried again, and how often it failed.
    pub failed: BTreeMap<String, (Instant, u32)>,
    /// Units with a record whose cgroup is gone, and how often they were found to exist nevertheless.
    pub gone: BTreeMap<String, u32>,
    /// Reports that no reader has taken yet.
    pub reports: Vec<Lifted>,
}

impl Default for Comparisons {
    fn default() -> Self {
        Self {
            watched: BTreeMap::new(),
            last: None,
            setting: Duration::ZERO,
            units: Instant::now(),
            failed: BTreeMap::new(),
            gone: BTreeMap::new(),
            reports: Vec::new(),
        }
    }
}

impl Comparisons {
    /// The limits of a cgroup that are not in effect, or contended.
    pub fn problems(&self, path: &str) -> impl Iterator<Item = String> {
        self.watched
            .get(path)
            .into_iter()
            .flat_map(Watched::problems)
    }
}
