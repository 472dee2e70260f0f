//! The refusals of each key, from the kernel programs' counters of sampled keys.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use common::counters::gained;
use common::key::Key;
use common::table::Tally;
use config::policy::Escalate;
use datapath::compile::PrefixKey;

use super::prune::keep_half;
use super::window::SlidingCount;

/// The most keys; beyond it, those with the fewest refusals are dropped. Some 50 MB at most.
const MOST_KEYS: usize = 32_768;
/// The most refusals of a key that are counted at once.
const STEP: u64 = Tally::STEP as u64;
/// The number of readings between two removals of keys without refusals in the window.
const SWEEP: u32 = 8;

/// A key under a limit with `escalate`, the same in every policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Offender {
    /// The limit's name.
    pub limit: Arc<str>,
    /// Its address or prefix.
    pub prefix: PrefixKey,
    /// The local port, if that is part of the key.
    pub port: u32,
}

/// The refusals of all keys.
#[derive(Debug, Default)]
pub struct Refusals {
    /// The value of each counter at the last reading.
    counters: HashMap<Key, u64>,
    /// The same of the refusals that do not count.
    unconnected: HashMap<Key, Unconnected>,
    keys: HashMap<Offender, Counted>,
    /// The instant of the previous reading; `None`: the counters are not those of the previous reading.
    looked_at: Option<u64>,
    looks: u32,
}

#[derive(Debug, Default)]
struct Unconnected {
    counter: u64,
    /// Those that were read before the refusal itself, since a counter of refusals is not read at one instant.
    ahead: u64,
}

#[derive(Debug, Default)]
struct Counted {
    count: SlidingCount,
    /// The window in nanoseconds at the last count.
    within: u64,
}

/// One reading of the counters.
#[derive(Debug)]
pub struct Look<'r> {
    refusals: &'r mut Refusals,
    after: Option<u64>,
    now: u64,
}

impl Refusals {
    /// Treats the counters as new at the next reading: their present values are from before.
    pub fn begin_anew(&mut self) {
        self.counters.clear();
        self.unconnected.clear();
        self.looked_at = None;
    }

    /// Removes all refusals.
    pub fn clear(&mut self) {
        self.begin_anew();
        self.keys.clear();
    }

    /// Whether every counter must be read, not only those that have changed recently.
    #[must_use]
    pub const fn is_new(&self) -> bool {
        self.looked_at.is_none()
    }

    /// Records that no counter has changed.
    pub const fn nothing_refused(&mut self, now: u64) {
        if self.looked_at.is_some() {
            self.looked_at = Some(now);
        }
    }

    /// Starts a reading of the counters; `present` are all existing ones.
    pub fn look<'c>(
        &mut self,
        present: impl Iterator<Item = &'c Key> + Clone,
        now: u64,
    ) -> Look<'_> {
        // A counter that is removed and returns starts at 0. Its key is in `present` whenever it exists.
        if self.counters.len() > 2 * present.clone().count().max(MOST_KEYS / 2) {
            let present: HashSet<&Key> = present.collect();
            self.counters.retain(|key, _| present.contains(key));
            self.unconnected.retain(|key, _| present.contains(key));
        }
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(SWEEP) {
            self.keys
                .retain(|_, counted| counted.count.total(now, counted.within) > 0);
        }
        let after = self.looked_at.replace(now);
        Look {
            refusals: self,
            after,
            now,
        }
    }
}

impl Look<'_> {
    /// Refusals by a counter since the previous reading ([`gained`]); 0 at the first one.
    ///
    /// Never too many, except for a counter that was dropped and returned: up to 63 from before.
    pub fn since(&mut self, key: &Key, counter: u64) -> u64 {
        let Some(_) = self.after else {
            self.refusals.counters.insert(*key, counter);
            return 0;
        };
        let Some(before) = self.refusals.counters.get_mut(key) else {
            self.refusals.counters.insert(*key, counter);
            return counter;
        };
        gained(before, counter)
    }

    /// Of so many refusals since the previous reading, those that count towards a ban; `counter` counts the others.
    pub fn counting(&mut self, key: &Key, refused: u64, counter: u64) -> u64 {
        if counter == 0 {
            return refused;
        }
        let is_new = !self.refusals.unconnected.contains_key(key);
        let entry = self.refusals.unconnected.entry(*key).or_default();
        let before = std::mem::replace(&mut entry.counter, counter);
        // A counter that was removed and returned starts at 0.
        let more = counter.checked_sub(before).unwrap_or(counter);
        if self.after.is_none() {
            return refused;
        }
        // Before a key is sampled, refusals are counted in steps, and the others not at all.
        let missed = if is_new { STEP } else { 0 };
        let others = entry.ahead + more + missed;
        entry.ahead = others.saturating_sub(refused).min(2 * STEP);
        refused.saturating_sub(others)
    }

    /// Counts refusals of a key; returns the number in the window if it leads to a ban, and then restarts the count.
    pub fn count(&mut self, offender: &Offender, refused: u64, escalate: &Escalate) -> Option<u64> {
        let (now, after) = (self.now, self.after.unwrap_or(self.now));
        if self.refusals.keys.len() >= MOST_KEYS && !self.refusals.keys.contains_key(offender) {
            keep_half(&mut self.refusals.keys, |counted| {
                counted.count.total(now, counted.within)
            });
        }
        let counted = self.refusals.keys.entry(offender.clone()).or_default();
        counted.within = escalate.within;
        counted.count.add(refused, (after, now), escalate.within);
        let total = counted.count.total(now, escalate.within);
        if total < escalate.after {
            return None;
        }
        counted.count.clear();
        Some(total)
    }

    /// Removes the refusals of a key.
    pub fn forget(&mut self, offender: &Offender) {
        self.refusals.keys.remove(offender);
    }
}

#[cfg(test)]
mod tests {
    use config::policy::Multiplier;
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const ESCALATE: Escalate = Escalate {
        after: 1_000,
        within: 10 * SECOND,
        ban: SECOND,
        grow: Multiplier::ONE,
        max: SECOND,
    };

    fn key(number: u64) -> Key {
        Key {
            hi: 0,
            lo: number,
            extra: 0,
            group: 1,
        }
    }

    fn offender(number: u8) -> Offender {
        let address = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, number];
        Offender {
            limit: "web".into(),
            prefix: PrefixKey {
                address,
                length: 128,
            },
            port: 0,
        }
    }

    /// The counts of one key whose counter has these values, by reading.
    fn counted(counters: &[u64]) -> Vec<u64> {
        let mut refusals = Refusals::default();
        let mut look = |nth: usize, counter: u64| {
            refusals
                .look([key(1)].iter(), nth as u64 * SECOND)
                .since(&key(1), counter)
        };
        counters
            .iter()
            .enumerate()
            .map(|(nth, counter)| look(nth, *counter))
            .collect()
    }

    #[test]
    fn a_counter_is_counted_from_the_first_look_on() {
        assert_eq!(counted(&[5_000, 5_000, 5_063, 5_064]), [0, 0, 63, 1]);
        // The part beyond the samples restarted before the sample was read.
        assert_eq!(counted(&[63, 127, 64, 128]), [0, 64, 0, 1]);
        // The sample was dropped, and returned with the part beyond it.
        assert_eq!(counted(&[640, 900, 64 + 63]), [0, 260, 64]);
        assert_eq!(counted(&[640, 900, 30]), [0, 260, 0]);
    }

    #[test]
    fn refusals_of_no_connection_do_not_count_whichever_is_read_first() {
        let mut refusals = Refusals::default();
        let mut look = |nth: u64, refused: u64, others: u64| {
            refusals
                .look([key(1)].iter(), nth * SECOND)
                .counting(&key(1), refused, others)
        };
        // Those of the first reading are from before.
        assert_eq!(look(0, 0, 500), 0);
        assert_eq!(
            [look(1, 100, 600), look(2, 100, 650), look(3, 7, 650)],
            [0, 50, 7]
        );
        // The others are read before the refusals of a step.
        assert_eq!(
            [look(4, 0, 700), look(5, 64, 714), look(6, 10, 714)],
            [0, 0, 10]
        );
        // A new sample.
        assert_eq!(look(7, 30, 20), 10);
    }

    #[test]
    fn a_key_that_appears_is_counted_whole_but_not_at_the_first_look() {
        let mut refusals = Refusals::default();
        assert!(refusals.is_new());
        assert_eq!(refusals.look([].iter(), SECOND).since(&key(1), 70), 0);
        assert_eq!(refusals.look([].iter(), 2 * SECOND).since(&key(2), 70), 70);
        refusals.begin_anew();
        assert_eq!(
            refusals.look([].iter(), 3 * SECOND).since(&key(2), 5_000),
            0
        );
    }

    #[test]
    fn refusals_lead_to_a_ban_once_there_are_enough_in_the_window() {
        let mut refusals = Refusals::default();
        let mut refuse = |second: u64, refused| {
            refusals
                .look([].iter(), second * SECOND)
                .count(&offender(1), refused, &ESCALATE)
        };
        assert_eq!((refuse(1, 500), refuse(5, 499)), (None, None));
        assert_eq!(refuse(6, 1), Some(1_000));
        // The count has restarted.
        assert_eq!((refuse(7, 999), refuse(18, 999)), (None, None));
        assert_eq!(refuse(19, 2), Some(1_001));
    }

    #[test]
    fn a_flood_of_sources_is_bounded_and_pushes_out_no_busier_one() {
        let mut refusals = Refusals::default();
        let prefix = |number: u32| {
            let mut one = offender(0);
            one.prefix.address[12..].copy_from_slice(&number.to_be_bytes());
            one
        };
        refusals
            .look([].iter(), SECOND)
            .count(&prefix(0), 998, &ESCALATE);
        let mut look = refusals.look([].iter(), 2 * SECOND);
        for number in 1..200_000 {
            look.count(&prefix(number), 1, &ESCALATE);
        }
        assert_eq!(look.count(&prefix(0), 2, &ESCALATE), Some(1_000));
        assert!(refusals.keys.len() <= MOST_KEYS, "{}", refusals.keys.len());
        // They are removed with the window.
        for _ in 0..SWEEP {
            refusals.look([].iter(), 13 * SECOND);
        }
        assert!(refusals.keys.is_empty(), "{}", refusals.keys.len());
    }

    #[test]
    fn removed_counters_are_forgotten() {
        let mut refusals = Refusals::default();
        for round in 0..10u64 {
            let keys: Vec<Key> = (0..MOST_KEYS as u64 / 2)
                .map(|nth| key(round << 32 | nth))
                .collect();
            let mut look = refusals.look(keys.iter(), round * SECOND);
            keys.iter().for_each(|key| {
                look.since(key, 1);
            });
            assert!(
                refusals.counters.len() <= 2 * MOST_KEYS,
                "{}",
                refusals.counters.len()
            );
        }
    }

    proptest! {
        /// A counter that only rises is counted exactly, over all readings but the first.
        #[test]
        fn a_rising_counter_is_counted_exactly(steps in prop::collection::vec(0u64..1_000, 1..50)) {
            let mut sum = 0;
            let counters: Vec<u64> = steps.iter().map(|step| { sum += step; sum }).collect();
            prop_assert_eq!(counted(&counters).iter().sum::<u64>(), sum - steps[0]);
        }
    }
}
