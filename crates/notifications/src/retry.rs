//! The pauses between attempts.

use std::time::Duration;

/// The pause after the first failure.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(60);

/// The pause after so many failures: it doubles from 1 s to 1 min, and is shortened by up to a half, so that many hosts
/// do not return at the same instant. `jitter` is from 0 to 1.
pub fn pause(failures: u32, jitter: f64) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    let whole = FIRST.saturating_mul(1 << doublings).min(LONGEST);
    whole.mul_f64(1.0 - jitter.clamp(0.0, 1.0) / 2.0)
}

/// A random number from 0 to 1; 0 if there is no randomness.
pub fn jitter() -> f64 {
    f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute() {
        let seconds: Vec<u64> = (0..=9)
            .map(|failures| pause(failures, 0.0).as_secs())
            .collect();
        assert_eq!(seconds, [1, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(pause(u32::MAX, 0.0), LONGEST);
    }

    #[test]
    fn a_pause_is_shortened_by_at_most_a_half() {
        for failures in 1..20 {
            let (least, most) = (pause(failures, 1.0), pause(failures, 0.0));
            assert_eq!(least * 2, most);
            let between = pause(failures, jitter());
            assert!((least..=most).contains(&between), "{between:?}");
        }
    }
}
