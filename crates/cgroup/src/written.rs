//! A limit in a cgroup's file that is not Weir's: compared, recorded and removed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use config::group::CpuShare;
use serde::{Deserialize, Serialize};

use super::error::GroupsError;
use super::in_effect::{is_in_effect, lower};
use super::level::level;
use super::limit::{Origin, Setting};
use super::plan::{Merge, merge};
use super::restrict;
use super::tree::write;

/// The CPU quota of v1 and its period.
pub const QUOTA: &str = "cpu.cfs_quota_us";
pub const PERIOD: &str = "cpu.cfs_period_us";

/// A limit that Weir wrote into a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    pub file: PathBuf,
    /// The content as the kernel reports it.
    pub content: String,
    /// The value that removes the limit.
    pub default: String,
    /// The value of another program that it replaced, if that was none.
    #[serde(default)]
    pub theirs: Option<String>,
    /// Whether the record is from before the write.
    #[serde(default)]
    pub is_pending: bool,
}

impl Written {
    /// Whether it is a limit of the same kind, in the same file.
    pub fn is_for(&self, file: &Path, setting: &Setting) -> bool {
        self.file == file && self.default == setting.default
    }

    /// The value that the file has without Weir.
    fn restored(&self) -> &str {
        self.theirs.as_deref().unwrap_or(&self.default)
    }

    /// Whether a file of one value has it.
    pub fn is_in_file(&self) -> bool {
        self.is_pending
            || fs::read_to_string(&self.file).is_ok_and(|text| text.trim() == self.content)
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

/// What limits now, as [`content`]; a quota of v1 is converted to Weir's period.
pub fn effective(file: &Path, setting: &Setting) -> io::Result<String> {
    let now = content(file, setting)?;
    if setting.file != QUOTA {
        return Ok(now);
    }
    let period = fs::read_to_string(file.with_file_name(PERIOD))?;
    Ok(scaled(&now, period.trim()))
}

/// A quota of another period as one of Weir's; none stays none.
fn scaled(quota: &str, period: &str) -> String {
    let known = quota.parse::<u64>().ok().zip(period.parse::<u64>().ok());
    known.map_or_else(
        || quota.to_owned(),
        |(quota, period)| {
            let quota = quota.saturating_mul(CpuShare::PERIOD_MICROSECONDS);
            (quota / period.max(1)).to_string()
        },
    )
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
        _ if is_in_effect(setting, now) => Merge::Lower,
        _ => Merge::Higher,
    }
}

/// Another program's value in a file that Weir is about to write, to be restored at the end; `None` if it is the default.
pub fn replaced(setting: &Setting, now: &str) -> Option<String> {
    let is_weight = ["cpu.weight", "cpu.shares", "cpu.cfs_period_us"].contains(&setting.file);
    let is_theirs = is_weight || restrict::limit_in(setting.file, now).is_some();
    let is_default = now.is_empty() || now == setting.default.trim();
    (is_theirs && !is_default).then(|| now.to_owned())
}

/// The writes that set a group's limits on a cgroup.
pub struct Plan<'s> {
    writes: Vec<Write<'s>>,
    /// Records of limits that another program has lowered since: that value stays.
    lowered: Vec<Written>,
    /// Limits that are not enforced.
    pub problems: Vec<GroupsError>,
    /// Whether each write is recorded already.
    pub is_recorded: bool,
}

/// One write.
struct Write<'s> {
    file: PathBuf,
    setting: &'s Setting,
    value: String,
    theirs: Option<String>,
    /// The record before, and whether the file has Weir's limit.
    known: Option<Written>,
    is_ours: bool,
}

impl<'s> Plan<'s> {
    /// Compares a group's limits with the files of the cgroup at `path` and the records `before`. A limit of another
    /// program stays where Weir had none, and is reported if it is higher. Where Weir had one, the lower of both applies.
    pub fn new(path: &str, settings: &'s [(PathBuf, Setting)], before: &[Written]) -> Self {
        let mut plan = Self {
            writes: Vec::new(),
            lowered: Vec::new(),
            problems: Vec::new(),
            is_recorded: true,
        };
        for (directory, setting) in settings {
            let file = directory.join(setting.file);
            match setting.file {
                _ if setting.origin == Origin::Default => {}
                // With the quota.
                PERIOD => {}
                QUOTA => {
                    let period = settings
                        .iter()
                        .find(|(other, setting)| other == directory && setting.file == PERIOD);
                    let period = period.map(|(_, setting)| setting);
                    plan.add_quota(path, file, setting, period, before);
                }
                _ => plan.add(path, file, setting, before),
            }
        }
        plan
    }

    /// Adds the quota of v1 and its period, which are one limit: both are written, or neither.
    fn add_quota(
        &mut self,
        path: &str,
        file: PathBuf,
        setting: &'s Setting,
        period: Option<&'s Setting>,
        before: &[Written],
    ) {
        let Some(period) = period else {
            return self.add(path, file, setting, before);
        };
        let period_file = file.with_file_name(PERIOD);
        let read = |file: &Path, setting| {
            content(file, setting).map_err(|source| GroupsError::read(file, source))
        };
        let (now, now_period) = match (read(&file, setting), read(&period_file, period)) {
            (Ok(now), Ok(period)) => (now, period),
            (Err(problem), _) | (_, Err(problem)) => return self.problems.push(problem),
        };
        let known = before.iter().find(|one| one.is_for(&file, setting));
        let known_period = before.iter().find(|one| one.is_for(&period_file, period));
        let is_same = |one: &Written, now: &str| one.is_pending || one.content == now;
        let has_quota = known.filter(|one| is_same(one, &now));
        let has_period = known_period.map_or(now_period == period.default, |one| {
            is_same(one, &now_period)
        });
        let is_ours = has_quota.is_some() && has_period;
        let scaled = scaled(&now, &now_period);
        let merge = compare(setting, &scaled);
        if !is_ours && (merge == Merge::Lower || merge == Merge::Higher && known.is_none()) {
            if merge == Merge::Higher {
                self.problems.push(GroupsError::SetByOthers {
                    path: path.to_owned(),
                    file: setting.file.to_owned(),
                    theirs: format!("{now} of {now_period}"),
                    ours: setting.value.clone(),
                });
            }
            self.lowered
                .extend(known.into_iter().chain(known_period).cloned());
            return;
        }
        // Their quota counts with their period.
        let theirs = has_quota.map_or_else(|| replaced(setting, &now), |ours| ours.theirs.clone());
        let theirs_period = match known_period.filter(|one| is_same(one, &now_period)) {
            Some(ours) => ours.theirs.clone(),
            None => replaced(period, &now_period),
        };
        let value = match &theirs {
            Some(theirs) => {
                let of = theirs_period.as_deref().unwrap_or(&period.default);
                lower(setting, &self::scaled(theirs, of))
            }
            None => setting.value.clone(),
        };
        for (file, setting, value, theirs, known, now) in [
            (
                period_file,
                period,
                period.value.clone(),
                theirs_period,
                known_period,
                now_period,
            ),
            (file, setting, value, theirs, known, now),
        ] {
            self.is_recorded &= known.is_some_and(|one| is_same(one, &now)) && now == value;
            self.writes.push(Write {
                file,
                setting,
                value,
                theirs,
                is_ours: known.is_some_and(|one| is_same(one, &now)),
                known: known.cloned(),
            });
        }
    }

    fn add(&mut self, path: &str, file: PathBuf, setting: &'s Setting, before: &[Written]) {
        let now = match content(&file, setting) {
            Ok(now) => now,
            Err(source) => return self.problems.push(GroupsError::read(&file, source)),
        };
        let known = before.iter().find(|one| one.is_for(&file, setting));
        let ours = known.filter(|one| one.is_pending || one.content == now);
        let stays = |theirs: String| GroupsError::SetByOthers {
            path: path.to_owned(),
            file: setting.file.to_owned(),
            theirs,
            ours: setting.value.clone(),
        };
        let theirs = match (ours, compare(setting, &now), known) {
            (Some(ours), ..) => ours.theirs.clone(),
            (None, Merge::Lower, known) => return self.lowered.extend(known.cloned()),
            (None, Merge::Higher, None) => return self.problems.push(stays(now)),
            (None, ..) => replaced(setting, &now),
        };
        let value = theirs
            .as_deref()
            .map_or_else(|| setting.value.clone(), |theirs| lower(setting, theirs));
        if !is_in_effect(setting, &value) {
            self.problems.push(stays(value));
            return self.lowered.extend(known.cloned());
        }
        self.is_recorded &= ours.is_some() && now == value;
        self.writes.push(Write {
            file,
            setting,
            value,
            theirs,
            known: known.cloned(),
            is_ours: ours.is_some(),
        });
    }

    /// Whether a record is of a limit that stays.
    pub fn has(&self, one: &Written) -> bool {
        let mut writes = self.writes.iter();
        writes.any(|write| one.is_for(&write.file, write.setting)) || self.lowered.contains(one)
    }

    /// The records before the writes.
    pub fn pending(&self) -> impl Iterator<Item = Written> {
        let pending = |write: &Write<'_>| Written {
            file: write.file.clone(),
            content: write.value.clone(),
            default: write.setting.default.clone(),
            theirs: write.theirs.clone(),
            is_pending: true,
        };
        self.writes
            .iter()
            .map(pending)
            .chain(self.lowered.iter().cloned())
    }

    /// Writes the limits. Returns the records, and the failures.
    pub fn write(&self) -> (Vec<Written>, Vec<GroupsError>) {
        let mut problems = Vec::new();
        let mut written: Vec<Written> = self.pending().collect();
        let mut writes = self.writes.iter();
        written.retain_mut(|one| {
            let Some(planned) = writes.next() else {
                return true;
            };
            let result = write(&planned.file, &planned.value);
            // A limit that could not be changed is still Weir's, with its earlier content.
            if let Ok(content) = content(&planned.file, planned.setting) {
                (one.content, one.is_pending) = (content, false);
            }
            let Err(problem) = result else { return true };
            problems.push(problem);
            // What Weir had set before is known at the next attempt, which sets it again.
            let known = planned.known.as_ref().filter(|_| !planned.is_ours);
            known.into_iter().for_each(|known| one.clone_from(known));
            planned.known.is_some()
        });
        (written, problems)
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
        write(&one.file, one.restored())
    } else {
        Ok(())
    }
}
