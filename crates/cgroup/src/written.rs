//! A limit in a cgroup's file that is not Weir's: compared, recorded and removed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::GroupsError;
use super::limit::Setting;
use super::plan::{Merge, merge};
use super::restrict;
use super::tree::write;

/// A limit that Weir wrote into a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    pub file: PathBuf,
    /// The content as the kernel reports it.
    pub content: String,
    /// The value that removes the limit.
    pub default: String,
    /// Whether the record is from before the write. Only a file without a limit is written, so that any limit is Weir's.
    #[serde(default)]
    pub is_pending: bool,
}

impl Written {
    /// Whether it is a limit of the same kind, in the same file.
    pub fn is_for(&self, file: &Path, setting: &Setting) -> bool {
        self.file == file && self.default == setting.default
    }

    pub fn is_quota(&self) -> bool {
        self.file.ends_with("cpu.max") || self.file.ends_with("cpu.cfs_quota_us")
    }
}

/// The content of a limit's file; if it has a line for each disk, this disk's line.
pub fn content(file: &Path, setting: &Setting) -> io::Result<String> {
    let text = fs::read_to_string(file)?;
    let text = text.trim();
    if !setting.file.starts_with("io.") && !setting.file.starts_with("blkio.") {
        return Ok(text.to_owned());
    }
    let disk = setting.default.split(' ').next().unwrap_or("");
    let line = text
        .lines()
        .find(|line| line.split(' ').next() == Some(disk));
    Ok(line.unwrap_or("").to_owned())
}

/// Compares a file's value with the group's.
pub fn compare(setting: &Setting, now: &str) -> Merge {
    if now.is_empty()
        || now == setting.default.trim()
        || restrict::limit_in(setting.file, now).is_none()
    {
        return Merge::Set;
    }
    match (level(now), level(&setting.value)) {
        (Some(theirs), Some(ours)) => merge(Some(theirs), ours),
        _ if now == setting.value => Merge::Lower,
        _ => Merge::Higher,
    }
}

/// A limit as a number; a CPU quota is converted to a period of one second.
fn level(text: &str) -> Option<u64> {
    match text.split_once(' ') {
        Some((quota, period)) => {
            let (quota, period): (u64, u64) = (quota.parse().ok()?, period.parse().ok()?);
            Some(quota.saturating_mul(1_000_000) / period.max(1))
        }
        None => text.parse().ok(),
    }
}

/// Removes one limit, unless another program has changed it since.
pub fn take_back(one: &Written) -> Result<(), GroupsError> {
    let text = match fs::read_to_string(&one.file) {
        Ok(text) => text,
        // Its cgroup is gone.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(_) => String::new(),
    };
    let is_ours = one.is_pending
        || text.lines().any(|line| line.trim() == one.content)
        || text.trim() == one.content;
    if is_ours {
        write(&one.file, &one.default)
    } else {
        Ok(())
    }
}
