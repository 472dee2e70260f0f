//! How long an exchange waits for its reply.

use std::time::Duration;

use crate::error::StoreError;
use crate::member::Terms;

/// The timeout of the next exchange, by the replies before it.
#[derive(Debug)]
pub(super) struct ExchangeTimeout {
    sync: Duration,
    /// The time of the last reply; `None` if it is not known how far the store is.
    reply: Option<Duration>,
}

impl ExchangeTimeout {
    pub(super) const fn new(sync: Duration) -> Self {
        Self { sync, reply: None }
    }

    pub(super) const fn set_sync(&mut self, sync: Duration) {
        self.sync = sync;
    }

    /// Where a lease leaves time for it, a far store may be late: a new connection to it takes three round trips. Beyond half
    /// a lease, the lease of one exchange ends before the reply to the next, so that this host is better off alone.
    pub(super) fn get(&self) -> Duration {
        let lease = Terms::lease_for(self.sync);
        match self.reply {
            Some(reply) if reply <= lease / 6 => Terms::patience_for(self.sync),
            Some(reply) if reply > lease / 2 => (lease - self.sync) / 2,
            _ => lease - self.sync,
        }
    }

    pub(super) const fn replied(&mut self, after: Duration) {
        self.reply = Some(after);
    }

    /// The store may be farther away than before.
    pub(super) fn failed(&mut self, error: &StoreError) {
        let lease = Terms::lease_for(self.sync);
        if matches!(error, StoreError::Slow(_)) {
            self.reply = self.reply.filter(|reply| *reply > lease / 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYNC: Duration = Duration::from_millis(100);

    /// The timeouts of exchanges with a store whose replies take this long each.
    fn timeouts(replies: &[u64]) -> Vec<u64> {
        let mut timeout = ExchangeTimeout::new(SYNC);
        let exchange = |milliseconds: &u64| {
            let (wait, reply) = (timeout.get(), Duration::from_millis(*milliseconds));
            if reply <= wait {
                timeout.replied(reply);
            } else {
                timeout.failed(&StoreError::Slow(wait));
            }
            wait.as_millis() as u64
        };
        replies.iter().map(exchange).collect()
    }

    #[test]
    fn a_far_store_may_be_late_and_a_near_one_is_missed_soon() {
        assert_eq!(timeouts(&[1, 1, 2_000, 1, 1]), [900, 333, 333, 900, 333]);
        assert_eq!(timeouts(&[360, 700, 360]), [900, 900, 450]);
        assert_eq!(timeouts(&[360, 2_000, 360]), [900, 900, 900]);
    }

    #[test]
    fn a_store_that_comes_to_be_far_away_is_found_again() {
        assert_eq!(timeouts(&[1, 360, 360, 360]), [900, 333, 900, 900]);
    }

    #[test]
    fn a_store_beyond_half_a_lease_is_away_until_it_is_nearer() {
        assert_eq!(
            timeouts(&[600, 600, 600, 360, 360]),
            [900, 450, 450, 450, 900]
        );
    }
}
