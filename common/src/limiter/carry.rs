//! A state under another rate: what of the allowance was used stays used, in proportion.
//!
//! A source that has half of its burst left has half of the new burst left; half of a window's count is half of the new
//! window's, with the same share of the window to go. Proportions are rounded such that never less is used than was.
//! The rule is the same for every multiplier of a class where the state is a span of time (buckets), since a multiplier
//! changes rate and burst alike.

use super::{FixedWindow, SlidingLog, SlidingWindow, TokenBucket};
use crate::time::{Ticks, is_alive};

/// An instant of the clock that states are measured by, in the ticks of both policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instants {
    /// In the ticks of the policy that a state comes from.
    pub from: Ticks,
    /// In those of the policy that it goes to.
    pub to: Ticks,
}

/// `value` × `numerator` ÷ `denominator`, rounded up.
fn share(value: u64, numerator: u64, denominator: u64) -> u64 {
    let scaled = (u128::from(value) * u128::from(numerator)).div_ceil(u128::from(denominator.max(1)));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// How far ahead of now an instant lies under the new policy, if it is not past.
fn ahead(instant: u64, now: Instants, old: Ticks, new: Ticks) -> Option<u64> {
    is_alive(instant, now.from).then(|| share(instant.wrapping_sub(now.from), new, old))
}

/// A bucket: what is missing of it keeps its share of the burst.
#[must_use]
pub fn bucket(old: &TokenBucket, new: &TokenBucket, state: u64, now: Instants) -> u64 {
    ahead(state, now, old.tolerance, new.tolerance).map_or(now.to, |ahead| now.to.wrapping_add(ahead))
}

/// A fixed window: both the count and what is left of the window keep their shares.
#[must_use]
pub fn fixed_window(old: &FixedWindow, new: &FixedWindow, state: u64, now: Instants) -> u64 {
    let (end, count) = old.parts(state);
    match ahead(end, now, old.window, new.window) {
        Some(ahead) => new.state(now.to.wrapping_add(ahead), share(count, new.most, old.most).min(new.most)),
        None => now.to,
    }
}

/// A sliding window: what is in view, of both windows, counts as passed in the one at hand.
#[must_use]
pub fn sliding_window(old: &SlidingWindow, new: &SlidingWindow, words: [u64; 2], now: Instants) -> [u64; 2] {
    let (of_old, of_window) = old.in_view(words, now.from);
    // In view: (count × window + count before × what is left) ÷ window, of N.
    let whole = u128::from(old.most) * u128::from(of_window);
    let count = (of_old * u128::from(new.most)).div_ceil(whole.max(1));
    new.opened_with(u64::try_from(count).unwrap_or(u64::MAX).min(new.most), now.to)
}

/// A sliding log: as large a share of its places is taken, the newest among them, for as large a share of the window.
///
/// `taken` is the old log's ring, whose order is lost. Writes `ring`, which holds as many words as the new log has
/// places, and returns its head.
pub fn sliding_log(old: &SlidingLog, new: &SlidingLog, taken: &mut [u64], ring: &mut [u64], now: Instants) -> u64 {
    ring.fill(0);
    // The living first, the oldest of them foremost.
    taken.sort_unstable_by_key(|instant| {
        if *instant != 0 && is_alive(*instant, now.from) { instant.wrapping_sub(now.from) } else { u64::MAX }
    });
    let alive = taken.iter().take_while(|instant| **instant != 0 && is_alive(**instant, now.from)).count() as u64;
    if alive == 0 {
        return now.to;
    }
    let places = share(alive, u64::from(new.most), u64::from(old.most)).min(u64::from(new.most));
    let mut head = now.to;
    for place in 0..places {
        // The nth of the new ones is the newest of the old ones that it stands for.
        let nth = ((place + 1) * alive).div_ceil(places) - 1;
        let instant = taken.get(nth as usize).copied().unwrap_or(now.from);
        let instant = now.to.wrapping_add(share(instant.wrapping_sub(now.from), new.window, old.window)) | 1;
        if let Some(cell) = ring.get_mut(place as usize) {
            *cell = instant;
        }
        head = new.advance(head, place as u32, instant.wrapping_sub(new.window));
    }
    head
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::limiter::token_bucket::Costs;
    use crate::limiter::{Decision, Rate, sliding_window::Step};
    use crate::time::TickScale;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    const NOW: u64 = 1 << 41;

    fn instants(old: TickScale, new: TickScale) -> Instants {
        Instants { from: old.ticks(NOW), to: new.ticks(NOW) }
    }

    proptest! {
        /// What is left of the new burst is the share that was left of the old one, to a unit, on any two scales.
        #[test]
        fn a_bucket_keeps_its_share(old_rate in 1u64..100_000, old_burst in 1u64..10_000, new_rate in 1u64..100_000, new_burst in 1u64..10_000, used in 0.0f64..1.0, shift in 0u32..6) {
            let scales = (TickScale::FINEST, TickScale { left: TickScale::FINEST.left - shift, right: 0 });
            let old = TokenBucket::new(Rate::per_second(old_rate), old_burst, Costs::Single, scales.0);
            let new = TokenBucket::new(Rate::per_second(new_rate), new_burst, Costs::Single, scales.1);
            let now = instants(scales.0, scales.1);
            let used = (used * old_burst as f64) as u64;
            let state = now.from + old.charge(used);
            let left = new.remaining(bucket(&old, &new, state, now), now.to) as f64;
            let wanted = new_burst as f64 * (old_burst - used) as f64 / old_burst as f64;
            prop_assert!(left <= wanted + 1e-6 * new_burst as f64 && left > wanted - 1.001 - 1e-3 * new_burst as f64, "{left} of {wanted}");
        }

        #[test]
        fn a_fixed_window_keeps_its_share(old_count in 1u64..5_000, new_count in 1u64..5_000, seconds in 1u64..100, used in 0.0f64..=1.0, later in 0.0f64..0.9) {
            let rate = |count, seconds| Rate { count, per_nanoseconds: seconds * 1_000_000_000 };
            let old = FixedWindow::new(rate(old_count, 10), TickScale::FINEST);
            let new = FixedWindow::new(rate(new_count, seconds), TickScale::FINEST);
            let used = (used * old_count as f64) as u64;
            let mut now = instants(TickScale::FINEST, TickScale::FINEST);
            let mut state = now.from;
            if used > 0 {
                let Decision::Pass(next) = old.decide(state, now.from, used) else { panic!("there is room") };
                state = next;
            }
            let elapsed = (later * old.window as f64) as u64;
            now = Instants { from: now.from + elapsed, to: now.to + elapsed };
            let carried = fixed_window(&old, &new, state, now);
            prop_assert_eq!(new.remaining(carried, now.to), new_count - (used * new_count).div_ceil(old_count));
            if used == old_count {
                let wait = new.wait(carried, now.to, 1).unwrap() as f64;
                let wanted = (1.0 - later) * new.window as f64;
                prop_assert!((wait - wanted).abs() <= 1e-4 * new.window as f64 + 1e5, "{wait} of {wanted}");
            }
        }

        #[test]
        fn a_sliding_window_keeps_its_share(old_count in 1u64..5_000, new_count in 1u64..5_000, before in 0.0f64..1.0, used in 0.0f64..1.0, later in 0.0f64..1.0) {
            let rate = |count| Rate { count, per_nanoseconds: 1_000_000_000 };
            let (old, new) = (SlidingWindow::new(rate(old_count), TickScale::FINEST), SlidingWindow::new(rate(new_count), TickScale::FINEST));
            let start = (1 << 49) / old.window * old.window;
            let mut words = [SlidingWindow::fresh(start); 2];
            let charge = |words: &mut [u64; 2], at: u64, cost: u64| for _ in 0..3 {
                match old.step(words[0], words[1], at, cost) {
                    Step::Seal { word, to, .. } => words[word as usize] = to,
                    Step::Pass { word, to, .. } => { words[word as usize] = to; break; }
                    Step::Refuse => break,
                }
            };
            charge(&mut words, start, (before * old_count as f64) as u64);
            let at = start + old.window + (later * old.window as f64) as u64;
            charge(&mut words, at, (used * old_count as f64) as u64);
            let left = old.remaining(words[0], words[1], at) as f64;
            let now = Instants { from: at, to: at };
            let carried = sliding_window(&old, &new, words, now);
            let carried = new.remaining(carried[0], carried[1], at) as f64;
            let wanted = left * new_count as f64 / old_count as f64;
            // A unit of the old count is so many of the new.
            let unit = 1.0 + new_count as f64 / old_count as f64;
            prop_assert!((carried - wanted).abs() <= 2.0 * unit, "{carried} of {wanted}");
        }

        #[test]
        fn a_log_keeps_its_share_and_the_newest(old_count in 1u64..200, new_count in 1u64..200, used in 0u64..200, seconds in 1u64..20) {
            let rate = |count, seconds| Rate { count, per_nanoseconds: seconds * 1_000_000_000 };
            let (old, new) = (SlidingLog::new(rate(old_count, 10), TickScale::FINEST), SlidingLog::new(rate(new_count, seconds), TickScale::FINEST));
            let used = used.min(old_count);
            let now = instants(TickScale::FINEST, TickScale::FINEST);
            let mut taken = vec![0; old_count as usize];
            for (nth, place) in taken.iter_mut().enumerate().take(used as usize) {
                *place = now.from + (nth as u64 + 1) * old.window / (old_count + 1);
            }
            let newest = taken.iter().max().copied().unwrap_or(0);
            let mut ring = vec![0; new_count as usize];
            let head = sliding_log(&old, &new, &mut taken, &mut ring, now);
            let left = new.remaining(ring.iter().copied(), now.to);
            prop_assert_eq!(left, new_count - (used * new_count).div_ceil(old_count));
            if used > 0 {
                let end = ring.iter().max().copied().unwrap() - now.to;
                let wanted = share(newest - now.from, new.window, old.window);
                prop_assert!(end.abs_diff(wanted) <= 1);
                prop_assert!(is_alive(head, now.to));
                // The places that are free, or else the first to be, come first.
                let first = new.place(head, 0) as usize;
                let waits: Vec<u64> = ring.iter().map(|instant| if new.take(*instant, now.to).is_some() { 0 } else { instant - now.to }).collect();
                prop_assert_eq!(waits[first], waits.iter().copied().min().unwrap());
            }
        }
    }

    #[test]
    fn what_has_decayed_stays_so() {
        let bucket_of = |rate| TokenBucket::new(Rate::per_second(rate), 10, Costs::Single, TickScale::FINEST);
        let now = instants(TickScale::FINEST, TickScale::FINEST);
        for old in [now.from, now.from - 5, 0] {
            assert_eq!(bucket(&bucket_of(5), &bucket_of(9), old, now), now.to);
        }
    }
}
