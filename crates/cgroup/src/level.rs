//! Limits as numbers.

/// A limit as a number; a CPU quota is converted to a period of one second.
#[must_use]
pub fn level(text: &str) -> Option<u64> {
    match text.split_once(' ') {
        Some((quota, period)) => {
            let (quota, period): (u64, u64) = (quota.parse().ok()?, period.parse().ok()?);
            Some(quota.saturating_mul(1_000_000) / period.max(1))
        }
        None => text.parse().ok(),
    }
}
