//! Bans of sources that a limit keeps refusing.

use std::time::Duration;

use super::Multiplier;
use crate::human;

/// Bans a source for `ban` after `after` refusals within `within`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Escalate {
    /// Refusals of one key of packets, or of one client's address.
    pub after: u64,
    /// The time span of these refusals, in nanoseconds.
    pub within: u64,
    /// The duration of the first ban, in nanoseconds.
    pub ban: u64,
    /// The factor on the duration of each further ban, at least 1.
    pub grow: Multiplier,
    /// The longest ban, in nanoseconds, at least the first one's. A source without a ban for this long starts over.
    pub max: u64,
}

impl Escalate {
    /// The next ban's duration in nanoseconds. `before` is the last ban's; `None` if there was none, or it is too long
    /// ago.
    #[must_use]
    pub fn time_after(&self, before: Option<u64>) -> u64 {
        before.map_or(self.ban, |before| {
            self.grow.units(before).max(self.ban).min(self.max)
        })
    }

    /// The same for a level: a wider key, which this many times as many refusals ban.
    #[must_use]
    pub fn times(self, factor: Multiplier) -> Self {
        Self {
            after: factor.units(self.after),
            ..self
        }
    }

    /// `1,000 refusals in 10 s ban for 10 min, then 2 times as long up to 1 d`.
    #[must_use]
    pub fn words(&self) -> String {
        let time = |nanoseconds| human::time(Duration::from_nanos(nanoseconds));
        let growth = match self.grow == Multiplier::ONE {
            true => String::new(),
            false => format!(
                ", then {} times as long up to {}",
                self.grow.factor(),
                time(self.max)
            ),
        };
        let (ban, within) = (time(self.ban), time(self.within));
        format!(
            "{} refusals in {within} ban for {ban}{growth}",
            human::number(self.after)
        )
    }
}
