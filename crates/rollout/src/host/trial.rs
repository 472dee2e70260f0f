//! Rules on trial: in effect, and confirmed once health has held for the bake.

use std::mem;
use std::time::{Duration, SystemTime};

use super::saved::Rules;
use super::{CHECK, Clock};

#[derive(Clone, Debug)]
pub(super) struct Trial {
    pub rules: Rules,
    pub is_canary: bool,
    bake: Duration,
    /// How long checks have found it healthy.
    healthy: Duration,
    has_begun: bool,
    /// The last check; `None` until the rules are in effect.
    last: Option<Duration>,
    /// The bake's end by the wall clock, for other hosts.
    pub ends: SystemTime,
}

impl Trial {
    pub fn new(rules: Rules, is_canary: bool, bake: Duration, clock: Clock) -> Self {
        Self {
            rules,
            is_canary,
            bake,
            healthy: Duration::ZERO,
            has_begun: false,
            last: None,
            ends: end(clock, bake),
        }
    }

    /// The bake begins, or begins again under a changed file. Returns whether it is the first time.
    pub fn in_effect(&mut self, clock: Clock) -> bool {
        self.healthy = Duration::ZERO;
        self.last = Some(clock.monotonic);
        self.ends = end(clock, self.bake);
        !mem::replace(&mut self.has_begun, true)
    }

    /// The bake has not begun: others must not take the host for one whose bake is over. Its report changes twice a bake.
    pub fn waits(&mut self, clock: Clock) {
        if self.last.is_none() && self.ends <= clock.wall + self.bake / 2 {
            self.ends = end(clock, self.bake);
        }
    }

    pub const fn bake(&self) -> Duration {
        self.bake
    }

    /// The rules are being merged again, and checks do not count until they are in effect.
    pub const fn pause(&mut self) {
        self.last = None;
    }

    /// A check found the host healthy. Returns whether the bake is over. Time without checks does not count: of a host
    /// that was suspended, or an agent that hung, nobody knows how it was.
    pub fn checked(&mut self, clock: Clock) -> bool {
        let Some(last) = self.last else {
            return false;
        };
        let since = clock.monotonic.saturating_sub(last);
        self.healthy += since.min(CHECK * 2);
        self.last = Some(clock.monotonic);
        self.healthy >= self.bake
    }

    pub const fn is_in_effect(&self) -> bool {
        self.last.is_some()
    }

    /// The monotonic instant at which the bake ends if no check fails; `None` if it is over.
    pub fn ends_at(&self) -> Option<Duration> {
        let left = self.bake.saturating_sub(self.healthy);
        self.last
            .filter(|_| !left.is_zero())
            .map(|last| last + left)
    }
}

/// In whole milliseconds, as reports have it.
fn end(clock: Clock, bake: Duration) -> SystemTime {
    let since = clock
        .wall
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let end = since.saturating_add(bake).as_millis();
    let end = u64::try_from(end).unwrap_or(u64::MAX);
    (SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(end))).unwrap_or(clock.wall)
}
