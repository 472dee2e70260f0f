//! The size of the sample.

/// The samples of one period: 4,000 a second.
const TARGET: u64 = 200;
/// One in this many packets is sampled first, before the rate of packets is known.
pub(super) const FIRST: u32 = 1_024;
/// The smallest sample: one in this many packets.
const SMALLEST: u32 = 1 << 20;
/// The most by which a sample becomes larger at once, so that a short pause does not fill the rings after it.
const GROWTH: u32 = 16;

/// One in how many packets to sample, after a period in which one in `one_in` was and `found` were in the sample.
pub(super) fn next(one_in: u32, found: u64) -> u32 {
    let one_in = one_in.max(1);
    if (TARGET / 2..=TARGET * 2).contains(&found) {
        return one_in;
    }
    let wanted = u64::from(one_in) * found / TARGET;
    let wanted = u32::try_from(wanted).unwrap_or(u32::MAX).clamp(1, SMALLEST);
    wanted.next_power_of_two().max((one_in / GROWTH).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_its_size_after_a_few_periods_at_any_rate_of_packets() {
        // Packets in 50 ms: from nothing to 20 million a second.
        for packets in [0u64, 1, 100, 399, 401, 5_000, 50_000, 1_000_000] {
            let mut one_in = FIRST;
            for _ in 0..4 {
                one_in = next(one_in, packets / u64::from(one_in));
            }
            let found = packets / u64::from(one_in);
            assert!(
                found <= TARGET * 2 && (one_in == 1 || found >= TARGET / 2),
                "{packets}: {found} by 1 in {one_in}"
            );
            assert_eq!(next(one_in, found), one_in, "{packets}");
        }
    }

    #[test]
    fn a_flood_after_silence_is_sampled_at_once() {
        assert_eq!(next(1, 1_000_000), 8_192);
        assert_eq!(next(SMALLEST, u64::MAX / u64::from(SMALLEST)), SMALLEST);
        assert_eq!(next(1_024, 0), 64);
    }
}
