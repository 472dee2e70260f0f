//! Rates by the week and by the month: as exact as those by the second.

use common::limiter::{Costs, Decision, FixedWindow, Rate, SlidingWindow, TokenBucket};
use common::time::TickScale;

const DAY: u64 = 86_400 * 1_000_000_000;
const MONTH: u64 = 30 * DAY;

/// Counts as "5/week", "1000/month" and "1TB/month" have them.
const RATES: [(u64, u64); 4] = [
    (5, 7 * DAY),
    (1_000, MONTH),
    (1_000_000_000_000, MONTH),
    (1 << 40, MONTH),
];

/// The scale of a policy whose slowest state is that of a bucket for this rate with ten times its count as burst.
fn scale(per: u64) -> TickScale {
    TickScale::for_longest_life(10 * u128::from(per))
}

#[test]
fn a_bucket_refills_within_a_millionth_of_the_rate() {
    for (count, per) in RATES {
        let scale = scale(per);
        let costs = if count > 1_000_000 {
            Costs::Many
        } else {
            Costs::Single
        };
        let bucket = TokenBucket::new(
            Rate {
                count,
                per_nanoseconds: per,
            },
            count,
            costs,
            scale,
        );
        let start = scale.ticks(DAY);
        let Decision::Pass(state) = bucket.decide(start, start, count) else {
            panic!("{count}: a whole burst passes")
        };
        assert!(
            matches!(bucket.decide(state, start, 1), Decision::Refuse),
            "{count}"
        );
        for part in [2, 3, 7] {
            let now = start + scale.ticks(per / part);
            let (left, due) = (bucket.remaining(state, now), count / part);
            assert!(
                left <= due && left + 1 + due / 1_000_000 >= due,
                "{left} of {due} after 1/{part} of the time"
            );
        }
        assert!(
            matches!(
                bucket.decide(
                    state,
                    start + scale.ticks(per) + scale.ticks(per) / 1_000_000,
                    count
                ),
                Decision::Pass(_)
            ),
            "{count}"
        );
    }
}

#[test]
fn windows_last_their_time_and_pass_their_count() {
    for (count, per) in RATES {
        let scale = TickScale::for_longest_life(2 * u128::from(per));
        let rate = Rate {
            count,
            per_nanoseconds: per,
        };
        let (fixed, start) = (FixedWindow::new(rate, scale), scale.ticks(DAY));
        let Decision::Pass(state) = fixed.decide(0, start, count) else {
            panic!("{count}: a whole window passes")
        };
        let almost = start + scale.ticks(per) - 1;
        assert!(
            matches!(fixed.decide(state, almost, 1), Decision::Refuse),
            "{count}"
        );
        // The window's end is rounded up to what its state can hold: 2.7·10⁻⁵ of a month at 2⁴⁰ units.
        let late = start + scale.ticks(per) + (1 << fixed.count_bits);
        assert!(
            (1u64 << fixed.count_bits) < scale.ticks(per) / 30_000,
            "{count}"
        );
        assert!(
            matches!(fixed.decide(state, late, count), Decision::Pass(_)),
            "{count}"
        );
        assert!(
            SlidingWindow::new(rate, scale).is_representable(),
            "{count}"
        );
    }
}
