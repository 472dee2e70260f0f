//! The agent's memory, and the limits on it.

use std::fmt;
use std::path::{Path, PathBuf};

use config::human;
use serde::{Deserialize, Serialize};

/// The memory of a policy at rest, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Footprint {
    /// The table of sources, with the rings of logs and other maps of its size.
    pub table: u64,
    /// Programs, rules, prefixes and counters of both directions.
    pub policy: u64,
    /// The agent's own memory.
    pub agent: u64,
    /// The most that a copy of the used part of the table takes while a new table replaces it.
    pub copy: u64,
    /// Additional memory during loading.
    pub loading: u64,
}

impl Footprint {
    /// Kernel memory: the sum of `bpftool map show` and `/proc/PID/fdinfo`, without bans.
    #[must_use]
    pub const fn kernel(&self) -> u64 {
        self.table + self.policy
    }

    /// Memory in the kernel and in the agent.
    #[must_use]
    pub const fn at_rest(&self) -> u64 {
        self.kernel() + self.agent
    }

    /// The peak at a start on a host without pinned state.
    #[must_use]
    pub const fn start(&self) -> u64 {
        self.at_rest() + self.loading
    }
}

/// A memory limit and its usage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The directory of the cgroup that sets it; `null` for the host's memory.
    pub cgroup: Option<PathBuf>,
    /// The file that contains it.
    pub file: String,
    pub limit_bytes: u64,
    /// Used memory that the kernel cannot reclaim by dropping inactive files from the page cache.
    pub used_bytes: u64,
    pub left_bytes: u64,
}

impl Limit {
    /// A limit of a cgroup, or of the host where `cgroup` is `None`, read from `file`.
    #[must_use]
    pub fn new(cgroup: Option<&Path>, file: &str, limit_bytes: u64, used_bytes: u64) -> Self {
        let left_bytes = limit_bytes.saturating_sub(used_bytes);
        Self {
            cgroup: cgroup.map(Path::to_owned),
            file: file.to_owned(),
            limit_bytes,
            used_bytes,
            left_bytes,
        }
    }

    /// Whether the cgroup belongs to a systemd unit.
    #[must_use]
    pub fn is_of_systemd(&self) -> bool {
        let kind = self.cgroup.as_ref().and_then(|path| path.extension());
        kind.is_some_and(|kind| kind == "service" || kind == "scope" || kind == "slice")
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (left, all) = (human::size(self.left_bytes), human::size(self.limit_bytes));
        match &self.cgroup {
            Some(path) => write!(
                formatter,
                "cgroup {} has {left} left of {} = {all}",
                path.display(),
                self.file
            ),
            None => write!(
                formatter,
                "this host has {left} left of {all} ({})",
                self.file
            ),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// The memory of the policy in effect, in bytes.
    pub in_effect: Footprint,
    /// The tightest limit on the agent's memory: the one with the least left; `null` where none can be read.
    pub limit: Option<Limit>,
}
