//! A host's requests to the store, and their times.

use std::time::Duration;

use super::machine::Host;
use super::trial::Trial;
use super::{Clock, Request, Stop};
use crate::board::{Progress, Report};
use crate::text::brief;

impl Host {
    /// When the next request is due, by the monotonic clock.
    #[must_use]
    pub fn next_at(&self) -> Duration {
        if self.is_report_due() {
            return self.pace.next();
        }
        let trial = self.trial.as_ref().filter(|trial| trial.is_canary);
        let waits = self.known.as_ref().filter(|_| self.trial.is_none());
        match (
            trial.and_then(Trial::ends_at),
            waits.and_then(|known| known.ends),
        ) {
            (Some(end), _) => self.pace.before_report(end),
            (None, Some(end)) => self.pace.after_bake(end),
            (None, None) => self.pace.next(),
        }
    }

    /// The request that is due now, if one is. It counts as sent.
    pub fn take_request(&mut self, clock: Clock) -> Option<Request> {
        if clock.monotonic < self.next_at() {
            return None;
        }
        let request = if self.is_report_due() || self.is_renewal_due(clock) {
            Request::Report(Box::new(self.report()))
        } else {
            Request::Read
        };
        self.reads_next = false;
        self.pace.sent(clock.monotonic);
        Some(request)
    }

    /// Not while a read may begin or end a trial.
    fn is_renewal_due(&self, clock: Clock) -> bool {
        let is_idle = self.trial.is_none() && !self.saved.is_open() && !self.reads_next;
        is_idle && self.renewed_at.is_some_and(|at| clock.monotonic >= at)
    }

    fn is_report_due(&self) -> bool {
        !self.reads_next && self.reported.as_ref() != Some(&self.report())
    }

    /// The host's present report.
    #[must_use]
    pub fn report(&self) -> Report {
        let seen = self.saved.seen.as_ref();
        let stopped = seen.and_then(|seen| seen.stopped.as_ref());
        let version = self.in_effect().map_or(0, |rules| rules.version);
        let left_out = self.effective.filter(|_| self.trial.is_none());
        let left_out = left_out.map(|effective| match effective {
            0 => format!(
                "the host's file is in effect without version {version}: the host's status shows why"
            ),
            other => format!("version {other} is still in effect: the host's status shows why"),
        });
        let refused = (self.refused.as_ref()).map(|refusal| brief(&refusal.to_string()));
        let is_in_conflict = seen.is_some_and(|seen| seen.is_in_conflict);
        let counts = is_in_conflict || seen.is_some_and(|seen| seen.is_canary);
        let progress = match (&self.trial, stopped) {
            _ if is_in_conflict => Progress::Failed {
                reason: Stop::Conflict.to_string(),
            },
            (Some(trial), _) => Progress::Trying { ends: trial.ends },
            (None, Some(stop)) if stop.is_own() => Progress::Failed {
                reason: brief(&stop.to_string()),
            },
            (None, Some(stop)) => Progress::Stopped {
                reason: brief(&stop.to_string()),
            },
            (None, None) if seen.is_some() && !self.saved.is_open() => Progress::Held,
            (None, None) => Progress::Waiting,
        };
        Report {
            host: self.settings.host.clone(),
            labels: self.settings.labels.clone(),
            stream: self.settings.stream.clone(),
            version: self.saved.highest(),
            digest: seen.map_or_else(String::new, |seen| seen.digest.clone()),
            progress,
            effective: self.effective.unwrap_or(version),
            refused: left_out.or(refused),
            counts,
        }
    }
}
