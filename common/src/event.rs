//! Events of refused keys: the record in the ring buffer, and its rate.
//!
//! There is never an event per packet. The packet path samples a key only at its first refusal and at every 64th, and
//! sends at most one event in each [`Event::INTERVAL`]. So a flood of duration T leads to at most 1 + T /
//! [`Event::INTERVAL`] records, regardless of its packets.

use crate::fields::{half, word};
use crate::key::Key;

/// A record of the ring buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Event {
    /// The packet's key.
    pub key: Key,
    /// The instant in nanoseconds of the monotonic clock.
    pub at: u64,
    /// Packets of this key so far with the same verdict, as far as the kernel has sampled them.
    pub count: u64,
    /// Index of the counters of the rule.
    pub counter: u32,
    /// [`Event::THROTTLED`] or [`Event::WOULD_THROTTLE`].
    pub verdict: u32,
}

impl Event {
    /// The packet was refused.
    pub const THROTTLED: u32 = 1;
    /// The packet would have been refused if the rule were not on `observe`.
    pub const WOULD_THROTTLE: u32 = 2;
    /// The least time between two records of one key, in nanoseconds.
    pub const INTERVAL: u64 = 1_000_000_000;
    /// The length of a record, in bytes.
    pub const LENGTH: usize = size_of::<Self>();

    /// Whether a record is due for a key whose last record was at `reported_at`, 0 if none.
    #[inline(always)]
    #[must_use]
    pub const fn is_due(reported_at: u64, now: u64) -> bool {
        reported_at == 0 || now.wrapping_sub(reported_at) >= Self::INTERVAL
    }

    /// Parses a record; `None` if it is too short.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            key: Key {
                hi: word(bytes, 0)?,
                lo: word(bytes, 8)?,
                extra: half(bytes, 16)?,
                group: half(bytes, 20)?,
            },
            at: word(bytes, 24)?,
            count: word(bytes, 32)?,
            counter: half(bytes, 40)?,
            verdict: half(bytes, 44)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back_as_it_was_laid_out() {
        let event = Event {
            key: Key {
                hi: 1,
                lo: 2,
                extra: 3,
                group: 4,
            },
            at: 5,
            count: 6,
            counter: 7,
            verdict: Event::WOULD_THROTTLE,
        };
        let mut bytes = [0; Event::LENGTH];
        for (place, value) in [(0, 1u64), (8, 2), (24, 5), (32, 6)] {
            bytes[place..place + 8].copy_from_slice(&value.to_ne_bytes());
        }
        for (place, value) in [(16, 3u32), (20, 4), (40, 7), (44, Event::WOULD_THROTTLE)] {
            bytes[place..place + 4].copy_from_slice(&value.to_ne_bytes());
        }
        assert_eq!(Event::from_bytes(&bytes), Some(event));
        assert_eq!(Event::from_bytes(&bytes[1..]), None);
    }

    #[test]
    fn a_key_is_reported_at_once_and_then_once_an_interval() {
        assert!(Event::is_due(0, 1));
        assert!(!Event::is_due(5, 5 + Event::INTERVAL - 1));
        assert!(Event::is_due(5, 5 + Event::INTERVAL));
    }
}
