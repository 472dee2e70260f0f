//! The limiters' time: ticks of a 64-bit clock that wraps.
//!
//! A tick is 2⁻⁵ ns unless a limit is so slow that its state would not fit (see [`TickScale`]). Fine ticks make fast
//! limits exact: one packet of a limit of a million a second is 1,000 ns, or 32,000 ticks, and rounding its emission
//! interval up to a whole tick makes the rate at most 0.003 % slower. Finer ones would wrap within the uptime of a host
//! that is never restarted.

/// Ticks of the limiters' clock, modulo 2⁶⁴.
pub type Ticks = u64;

/// The furthest that a live state may be ahead of now. A value that is further ahead is from before the clock last
/// wrapped, and decayed long ago.
///
/// The clock starts at 0 when the host boots. At 2⁻⁵ ns a tick it wraps after 18.2 years. Until a host has run for 13.7
/// years, an unused or zero state is distinguishable from a fresh one.
pub const HORIZON: Ticks = 1 << 62;

/// Whether `state`, as an instant, is still ahead of `now`.
///
/// Every word of limiter state, read as an instant, is the time at which the state has decayed: from then on, removing
/// it changes no verdict. So for every algorithm this one comparison decides whether a place in the table of sources
/// may be reused.
#[inline(always)]
pub fn is_alive(state: u64, now: Ticks) -> bool {
    // 1..HORIZON ahead; a state equal to now has decayed.
    state.wrapping_sub(now).wrapping_sub(1) < HORIZON - 1
}

/// The conversion of nanoseconds to ticks: one shift, the same for all limits of a policy, so that any two states are
/// comparable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct TickScale {
    /// Nanoseconds are shifted left by this many bits …
    pub left: u32,
    /// … and then right by this many. One of the two is 0.
    pub right: u32,
}

impl TickScale {
    /// 2⁻⁵ ns a tick, the finest.
    pub const FINEST: Self = Self { left: 5, right: 0 };

    /// The finest scale on which a state with a life of at most `nanoseconds` stays below half the [`HORIZON`], so that
    /// one more charge cannot reach the horizon.
    #[must_use]
    pub const fn for_longest_life(nanoseconds: u128) -> Self {
        let mut left = Self::FINEST.left;
        while left > 0 && nanoseconds << left > (HORIZON / 2) as u128 {
            left -= 1;
        }
        let mut right = 0;
        while nanoseconds >> right > (HORIZON / 2) as u128 {
            right += 1;
        }
        Self { left, right }
    }

    /// The tick that contains the instant `nanoseconds`.
    #[inline(always)]
    #[must_use]
    pub fn ticks(self, nanoseconds: u64) -> Ticks {
        (nanoseconds << (self.left & 63)) >> (self.right & 63)
    }

    /// The instant by a clock that counts 2³¹ ns, some 2.1 s, modulo 4: to tell that time has passed.
    #[inline(always)]
    #[must_use]
    pub const fn coarse(self, ticks: Ticks) -> u8 {
        (ticks >> ((31 + self.left - self.right) & 63) & 3) as u8
    }

    /// 2ⁿ ns in ticks, rounded down; for n below 32.
    #[inline(always)]
    #[must_use]
    pub const fn span(self, n: u32) -> Ticks {
        (1 << ((n + self.left) & 63)) >> (self.right & 63)
    }

    /// A span of ticks in whole nanoseconds, rounded down; for spans below 2⁶⁴ ns.
    #[inline(always)]
    #[must_use]
    pub fn whole_nanoseconds(self, ticks: Ticks) -> u64 {
        (ticks >> (self.left & 63)) << (self.right & 63)
    }

    /// A span of ticks in nanoseconds, rounded up: waiting that long is waiting long enough. Saturates.
    #[must_use]
    pub fn nanoseconds(self, ticks: Ticks) -> u64 {
        let shifted = u128::from(ticks) << self.right;
        let rounded = (shifted + ((1u128 << self.left) - 1)) >> self.left;
        u64::try_from(rounded).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_instant_is_alive_strictly_ahead_of_now_and_below_the_horizon() {
        for now in [0, 1, 1 << 40, u64::MAX - 3, u64::MAX] {
            assert!(!is_alive(now, now));
            assert!(is_alive(now.wrapping_add(1), now));
            assert!(is_alive(now.wrapping_add(HORIZON - 1), now));
            assert!(!is_alive(now.wrapping_add(HORIZON), now));
            assert!(!is_alive(now.wrapping_sub(1), now));
        }
    }

    #[test]
    fn the_scale_is_the_finest_that_holds_the_longest_life() {
        assert_eq!(
            TickScale::for_longest_life(2_000_000_000),
            TickScale::FINEST
        );
        let century = 100u128 * 365 * 86_400 * 1_000_000_000;
        assert_eq!(
            TickScale::for_longest_life(century),
            TickScale { left: 0, right: 1 }
        );
        // Ten million a day's worth of burst at 1/day: 27,000 years.
        let longest = 10_000_000u128 * 86_400 * 1_000_000_000;
        let scale = TickScale::for_longest_life(longest);
        assert_eq!(scale.left, 0);
        assert!(longest >> scale.right <= u128::from(HORIZON / 2));
    }

    #[test]
    fn memory_that_is_all_zero_is_no_state_within_thirteen_years() {
        let year = 365 * 86_400 * 1_000_000_000;
        assert!(!is_alive(0, TickScale::FINEST.ticks(13 * year)));
        assert!(is_alive(0, TickScale::FINEST.ticks(14 * year)));
    }

    proptest! {
        #[test]
        fn waiting_the_rounded_span_is_waiting_long_enough(left in 0u32..=8, right in 0u32..=20, ticks in 0u64..1 << 50, start in 0u64..1 << 50) {
            let scale = if right > 0 { TickScale { left: 0, right } } else { TickScale { left, right: 0 } };
            if let Some(end) = start.checked_add(scale.nanoseconds(ticks)) {
                prop_assume!(end < 1 << 55);
                prop_assert!(scale.ticks(end) - scale.ticks(start) >= ticks);
            }
        }
    }
}
