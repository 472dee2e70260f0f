//! The state of limits that are compared with the files of their cgroup.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use host::backoff::Backoff;

use super::limit::Setting;
use super::written::effective;

/// The interval at which all limits are compared.
pub const CHECK: Duration = Duration::from_secs(5);
/// The pauses before a limit is set again that had no effect the last time.
const AGAIN: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// A limit that is lifted this often in [`WINDOW`] is contended.
const CONTENDED: usize = 3;
const WINDOW: Duration = Duration::from_secs(600);
/// Attempts without effect before they are reported.
const FAILURES: u32 = 3;

/// The limits of one cgroup.
#[derive(Debug)]
pub struct Watched {
    pub group: usize,
    pub inode: u64,
    pub limits: Vec<Limit>,
}

/// An error that keeps a limit from being set.
#[derive(Debug)]
pub struct Refusal {
    pub text: String,
    /// Whether it is among the problems of the member or the notes of the group.
    pub is_known: bool,
}

/// The state of one limit.
#[derive(Debug)]
pub struct Limit {
    pub file: PathBuf,
    pub setting: Setting,
    /// Whether it was in effect at a comparison.
    was_in_effect: bool,
    /// The content of the file while the limit is not in effect.
    found: Option<String>,
    /// When it was set again, until the next comparison.
    pub is_pending: bool,
    /// Attempts without effect since it was in effect.
    failures: u32,
    /// The error of the last attempt.
    pub refusal: Option<Refusal>,
    /// Not set again before.
    due: Option<Instant>,
    pub lifts: VecDeque<Instant>,
    /// Whether it was lifted often, until [`WINDOW`] has passed without.
    is_contended: bool,
}

impl Limit {
    pub fn new((file, setting): (PathBuf, Setting)) -> Self {
        Self {
            file,
            setting,
            was_in_effect: false,
            found: None,
            is_pending: false,
            failures: 0,
            refusal: None,
            due: None,
            lifts: VecDeque::new(),
            is_contended: false,
        }
    }

    /// Forgets when it was lifted long ago.
    pub fn forget(&mut self, now: Instant) {
        let is_old = |at: &Instant| now.duration_since(*at) >= WINDOW;
        while self.lifts.front().is_some_and(is_old) {
            self.lifts.pop_front();
        }
        self.is_contended &= !self.lifts.is_empty();
    }

    /// Reads the file; `None` if the cgroup has just been removed.
    pub fn read(&self) -> Option<String> {
        match effective(&self.file, &self.setting) {
            Ok(now) => Some(now),
            // Its controller is not enabled there.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(String::new()),
            Err(_) => None,
        }
    }

    /// Processes that the limit is in effect. Returns the report, if it was lifted.
    pub fn found_in_effect(&mut self, now: Instant) -> Option<String> {
        let found = self.found.take();
        let was_in_effect = std::mem::replace(&mut self.was_in_effect, true);
        let had_failed = std::mem::take(&mut self.failures) >= FAILURES;
        (self.is_pending, self.due) = (false, None);
        let found = found.filter(|_| was_in_effect)?;
        self.lifts.push_back(now);
        let value = &self.setting.value;
        if self.is_contended {
            return had_failed.then(|| format!("{value} is in effect again"));
        }
        self.is_contended = self.lifts.len() >= CONTENDED;
        Some(if self.is_contended {
            format!(
                "another program has lifted it {CONTENDED} times in ten minutes, the last time to {found}; it is set again each time, and further times are not reported until ten minutes pass without"
            )
        } else {
            format!("another program set {found} instead of {value}; the limit is in effect again")
        })
    }

    /// Processes that the limit is not in effect. Returns whether it is to be set again, and the report.
    pub fn found_lifted(&mut self, found: String, now: Instant) -> (bool, Option<String>) {
        let mut report = None;
        if std::mem::take(&mut self.is_pending) {
            self.failures += 1;
            self.due = Some(now + AGAIN.pause(self.failures));
            if self.failures == FAILURES && self.was_in_effect {
                report = Some(format!(
                    "it is {} instead of {}, and setting it again has no effect",
                    shown(&found),
                    self.setting.value
                ));
            }
        }
        self.found = Some(shown(&found));
        (self.due.is_none_or(|due| now >= due), report)
    }

    /// The text in `weir groups` and `weir status`, while there is something to say.
    pub fn problem(&self) -> Option<String> {
        let (file, value) = (self.setting.file, &self.setting.value);
        if let Some(found) = &self.found {
            let again = match &self.refusal {
                Some(refusal) if refusal.is_known => return None,
                Some(refusal) => &refusal.text,
                None if self.failures >= FAILURES => "setting it again has no effect",
                None => "it is set again",
            };
            return Some(format!(
                "{file} is {found} instead of {value}, which is not in effect; {again}"
            ));
        }
        self.is_contended.then(|| {
            format!(
                "{file} is contended: another program lifts it again and again, {} times in the last ten minutes; it is set again each time",
                self.lifts.len()
            )
        })
    }
}

/// A file's content in a text.
fn shown(content: &str) -> String {
    if content.is_empty() {
        "empty or missing".to_owned()
    } else {
        content.to_owned()
    }
}

impl Watched {
    /// What is not in effect, or contended.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        self.limits.iter().filter_map(Limit::problem)
    }

    pub fn is_pending(&self) -> bool {
        self.limits.iter().any(|limit| limit.is_pending)
    }
}
