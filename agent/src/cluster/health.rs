//! How the store has been replying, over all limits.

use std::time::Duration;

use super::store::StoreError;

/// What is known of the store. Instants are nanoseconds of the host's boot clock.
#[derive(Debug)]
pub(super) struct Health {
    /// For how long it may say nothing before it is down.
    patience: u64,
    /// When it granted something last, or when the agent started.
    granted_at: u64,
    /// When it replied last, be it with an error.
    replied_at: u64,
    has_granted: bool,
    granted_in: Duration,
    failures: u64,
    /// Failures since the last grant.
    failing: u64,
    is_down: bool,
    last_error: Option<String>,
}

/// What has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Down,
    /// After so many failures.
    Up(u64),
}

impl Health {
    pub(super) fn new(patience: Duration, now: u64) -> Self {
        Self {
            patience: patience.as_nanos() as u64,
            granted_at: now,
            replied_at: now,
            has_granted: false,
            granted_in: Duration::ZERO,
            failures: 0,
            failing: 0,
            is_down: false,
            last_error: None,
        }
    }

    /// A request of `asked` was granted.
    pub(super) fn granted(&mut self, asked: u64, now: u64) -> Option<Turn> {
        let turn = self.is_down.then_some(Turn::Up(self.failing));
        (self.granted_at, self.replied_at) = (now, now);
        self.granted_in = Duration::from_nanos(now.saturating_sub(asked));
        (self.has_granted, self.is_down, self.failing) = (true, false, 0);
        turn
    }

    /// A request failed. One that the store refuses to one limit says nothing of others, so that the store is down only
    /// once nothing was granted for a while.
    pub(super) fn failed(&mut self, error: &StoreError, now: u64) -> Option<Turn> {
        self.failures += 1;
        self.failing += 1;
        self.last_error = Some(error.to_string());
        if error.is_reply() {
            self.replied_at = now;
        }
        let is_down = now.saturating_sub(self.granted_at) >= self.patience;
        let turn = (is_down && !self.is_down).then_some(Turn::Down);
        self.is_down |= is_down;
        turn
    }

    /// Whether it has said nothing at all for so long that another server may go by its name.
    pub(super) const fn is_silent(&self, now: u64) -> bool {
        now.saturating_sub(self.replied_at) >= self.patience
    }

    pub(super) const fn is_failing(&self) -> bool {
        self.failing > 0
    }

    pub(super) fn word(&self, sync: Duration) -> &'static str {
        match self.has_granted {
            _ if self.is_down => "down",
            false => "connecting",
            true if self.granted_in >= sync => "slow",
            true => "up",
        }
    }

    pub(super) fn granted_at(&self) -> Option<u64> {
        self.has_granted.then_some(self.granted_at)
    }

    pub(super) fn granted_in(&self) -> Option<Duration> {
        self.has_granted.then_some(self.granted_in)
    }

    pub(super) const fn failures(&self) -> u64 {
        self.failures
    }

    pub(super) fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_store_that_refuses_one_limit_and_grants_others_is_up() {
        let mut health = Health::new(Duration::from_millis(300), 0);
        let refusal = StoreError::Refused { error: "WRONGTYPE".to_owned(), help: "" };
        for step in 1..20 {
            assert_eq!(health.granted(step * 100 * MS, step * 100 * MS + MS), None);
            assert_eq!(health.failed(&refusal, step * 100 * MS + 2 * MS), None);
        }
        assert_eq!((health.word(Duration::from_millis(100)), health.failures()), ("up", 19));
        // Nothing is granted any more, though it replies.
        assert_eq!(health.failed(&refusal, 2_100 * MS), None);
        assert_eq!(health.failed(&refusal, 2_300 * MS), Some(Turn::Down));
        assert_eq!(health.failed(&refusal, 2_400 * MS), None);
        assert!(!health.is_silent(2_500 * MS));
        assert_eq!(health.failed(&StoreError::Slow(Duration::ZERO), 2_750 * MS), None);
        assert!(health.is_silent(2_750 * MS));
        assert_eq!(health.granted(2_800 * MS, 2_801 * MS), Some(Turn::Up(5)));
        assert_eq!(health.word(Duration::from_millis(100)), "up");
    }
}
