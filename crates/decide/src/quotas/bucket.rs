//! The units that one proxy may spend of a bucket, and those that it has reported.
//!
//! A grant is charged before the proxy has it. A report that follows a new grant has units of both: the proxy has spent the earlier one
//! until the new one arrived. They count to the earlier one first, and its rest is returned: no unit is returned that
//! the proxy may still spend.

use crate::reservations::Reservation;
use crate::resolve::MOST_COST;

/// The interval of reports before it is known, in nanoseconds: that of Envoy.
const INTERVAL: u64 = 5_000_000_000;
const LONGEST_INTERVAL: u64 = 60_000_000_000;
/// A bucket without requests for this long is abandoned, in nanoseconds.
const IDLE: u64 = 60_000_000_000;
/// An assignment arrives within this time, in nanoseconds: later reports are made with it.
const ARRIVES: u64 = 200_000_000;

/// Units that are charged to the limits of a bucket.
#[derive(Debug)]
pub struct Grant {
    pub units: u64,
    /// One of each limit.
    pub reservations: Vec<Reservation>,
    used: u64,
    /// The reports since it was made.
    reports: u32,
    /// Units that counted to the earlier grant, and may be of this one.
    uncertain: u64,
}

impl Grant {
    pub const fn new(units: u64, reservations: Vec<Reservation>) -> Self {
        Self {
            units,
            reservations,
            used: 0,
            reports: 0,
            uncertain: 0,
        }
    }

    pub const fn used(&self) -> u64 {
        self.used
    }

    /// The most units that the proxy may still have of it.
    pub const fn left(&self) -> u64 {
        self.units - self.used
    }

    /// The units that the proxy has of it at least.
    const fn certain(&self) -> u64 {
        self.left().saturating_sub(self.uncertain)
    }

    /// Counts reported units as far as it has them; returns the others.
    fn spend(&mut self, reported: u64) -> u64 {
        let spent = reported.min(self.left());
        self.used += spent;
        reported - spent
    }
}

/// A report of a proxy.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    pub allowed: u64,
    pub denied: u64,
    pub now: u64,
}

impl Report {
    pub fn new(allowed: u64, denied: u64, now: u64) -> Self {
        Self {
            allowed: allowed.min(MOST_COST),
            denied: denied.min(MOST_COST),
            now,
        }
    }

    pub const fn requests(&self) -> u64 {
        self.allowed + self.denied
    }
}

/// The next assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The same as before.
    Keep,
    /// Up to so many units, if they are more than the proxy has.
    Grant {
        most: u64,
        more_than: u64,
    },
    /// None: the next report has the last use of the grant.
    Drain,
    Abandon,
}

/// The state of a bucket at one proxy.
#[derive(Debug)]
pub struct Bucket {
    current: Option<Grant>,
    /// The proxy has spent of it until the current assignment arrived.
    replaced: Option<Grant>,
    /// The instants of the last report, of the last one with a request, and of the last replacement.
    reported: Option<u64>,
    requested: u64,
    replaced_at: u64,
    /// The end of the last assignment.
    until: u64,
    /// It had no grant.
    is_new: bool,
    is_draining: bool,
}

impl Bucket {
    /// Without a grant.
    pub const fn new() -> Self {
        Self {
            current: None,
            replaced: None,
            reported: None,
            requested: 0,
            replaced_at: 0,
            until: u64::MAX,
            is_new: true,
            is_draining: false,
        }
    }

    /// The nanoseconds since the last report, at most [`LONGEST_INTERVAL`].
    pub fn interval(&self, now: u64) -> u64 {
        self.reported.map_or(INTERVAL, |last| {
            now.saturating_sub(last).min(LONGEST_INTERVAL)
        })
    }

    /// Counts a report. Returns the grant that it settles, and the units that no grant had.
    pub fn count(&mut self, report: Report) -> (Option<Grant>, u64) {
        self.reported = Some(report.now);
        if report.requests() > 0 {
            (self.requested, self.is_draining) = (report.now, false);
        }
        if report.now >= self.until.saturating_add(ARRIVES) && self.replaced.is_none() {
            self.replaced = self.current.take();
        }
        let mut beyond = report.allowed;
        if let Some(replaced) = &mut self.replaced {
            beyond = replaced.spend(beyond);
            if let Some(current) = &mut self.current {
                current.uncertain += report.allowed - beyond;
            }
        }
        if let Some(current) = &mut self.current {
            beyond = current.spend(beyond);
            current.reports = current.reports.saturating_add(1);
        }
        let has_arrived = report.now.saturating_sub(self.replaced_at) >= ARRIVES;
        let settled = self.replaced.take_if(|_| has_arrived);
        (settled, beyond)
    }

    /// The next assignment after a report.
    pub fn next(&self, report: Report) -> Next {
        let requests = report.requests();
        // Its units are spent if it had them during the whole interval: reports may be lost.
        let is_spent = |current: &Grant| report.denied > 0 && current.reports > 1;
        let certain = match &self.current {
            Some(current) if is_spent(current) => 0,
            current => current.as_ref().map_or(0, Grant::certain),
        };
        match () {
            () if self.replaced.is_some() => Next::Keep,
            () if self.is_draining => Next::Abandon,
            () if requests == 0 && report.now.saturating_sub(self.requested) >= IDLE => {
                if self.current.is_some() {
                    Next::Drain
                } else {
                    Next::Abandon
                }
            }
            () if report.denied == 0 && certain >= requests.max(1) => Next::Keep,
            () => Next::Grant {
                // The first report has one request.
                most: if self.is_new {
                    u64::MAX
                } else {
                    requests.saturating_mul(2).max(1)
                },
                more_than: certain,
            },
        }
    }

    /// Whether it had no grant yet.
    pub const fn is_new(&self) -> bool {
        self.is_new
    }

    /// The proxy's grant.
    pub const fn current(&self) -> Option<&Grant> {
        self.current.as_ref()
    }

    /// The most units that the proxy may have.
    pub fn held(&self) -> u64 {
        let grants = [&self.replaced, &self.current];
        grants.into_iter().flatten().map(Grant::left).sum()
    }

    /// Replaces the grant.
    pub fn replace(&mut self, grant: Grant, now: u64) {
        self.is_new = false;
        self.replaced = self.current.replace(grant);
        self.replaced_at = now;
    }

    /// Sets the end of the assignment, when the proxy loses its units.
    pub const fn set_end(&mut self, until: u64) {
        self.until = until;
    }

    /// Ends the grant; the next report has the last use of it.
    pub fn drain(&mut self, now: u64) {
        self.replaced = self.current.take();
        self.replaced_at = now;
        self.is_draining = true;
    }

    /// Takes all grants: no limit applies.
    pub fn take_all(&mut self) -> impl Iterator<Item = Grant> {
        [self.replaced.take(), self.current.take()]
            .into_iter()
            .flatten()
    }
}
