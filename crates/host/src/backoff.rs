//! Pauses between attempts after failures.

use std::time::Duration;

/// Pauses that double with each failure, up to the longest. Each is shortened at random by up to a half, so that what
/// failed at the same instant, on one host or on many, does not return at the same instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// Pauses from `first` to `longest`.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// Pauses that do not grow.
    #[must_use]
    pub const fn steady(pause: Duration) -> Self {
        Self::new(pause, pause)
    }

    /// The pause after so many failures in a row, of which there is at least one.
    #[must_use]
    pub fn pause(self, failures: u32) -> Duration {
        self.pause_by(failures, random())
    }

    /// The same by a random number from 0 to 1.
    #[must_use]
    pub fn pause_by(self, failures: u32, random: f64) -> Duration {
        let doublings = failures.saturating_sub(1).min(u32::BITS - 1);
        let whole = self.first.saturating_mul(1 << doublings).min(self.longest);
        whole.saturating_sub(whole.mul_f64(random.clamp(0.0, 1.0) / 2.0))
    }
}

/// A random number from 0 to 1; 0 if there is no randomness.
#[must_use]
pub fn random() -> f64 {
    f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

    #[test]
    fn pauses_double_up_to_the_longest() {
        let seconds: Vec<u64> = (0..=9)
            .map(|failures| MINUTE.pause_by(failures, 0.0).as_secs())
            .collect();
        assert_eq!(seconds, [1, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(MINUTE.pause_by(u32::MAX, 0.0), Duration::from_secs(60));
        let longest = Backoff::new(Duration::from_secs(1 << 40), Duration::MAX);
        assert_eq!(longest.pause_by(u32::MAX, 0.0), Duration::MAX);
        // A config may have an interval below the first pause.
        let short = Backoff::new(Duration::from_secs(10), Duration::from_secs(1));
        assert_eq!(short.pause_by(1, 0.0), Duration::from_secs(1));
    }

    #[test]
    fn a_pause_is_shortened_by_at_most_a_half() {
        for backoff in [MINUTE, Backoff::steady(Duration::from_millis(50))] {
            for failures in 1..20 {
                let whole = backoff.pause_by(failures, 0.0);
                assert_eq!(backoff.pause_by(failures, 1.0) * 2, whole);
                assert_eq!(backoff.pause_by(failures, 0.5) * 4, whole * 3);
                assert_eq!(backoff.pause_by(failures, f64::INFINITY) * 2, whole);
                let found = backoff.pause(failures);
                assert!((whole / 2..=whole).contains(&found), "{found:?}");
            }
        }
    }

    #[test]
    fn hosts_that_fail_together_do_not_return_together() {
        let pauses: std::collections::BTreeSet<Duration> =
            (0..100).map(|_| MINUTE.pause(7)).collect();
        // Two of a hundred in 2^32 values are equal once in a million runs, and two pairs of them in a trillion.
        assert!(pauses.len() >= 99, "{pauses:?}");
    }
}
