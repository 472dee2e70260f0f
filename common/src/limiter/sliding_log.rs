//! Sliding log: the instants of all units.
//!
//! State: a ring of N words and a head. Each word is the instant at which its unit leaves the window; the head has the
//! oldest place of the ring and the newest instant. A unit may only take a place whose instant has passed. So at most N
//! pass in any T, exactly, on any number of CPUs: each of N places is taken once in T.
//!
//! Error bound: none on what passes. A CPU moves the head to the next place and then takes the place that the head named;
//! it refuses only if that place is still in use and the head has not moved meanwhile. A CPU that loses this race
//! [`CHARGE_TRIES`] times in a row refuses the unit, which is counted as contended. A unit that is given
//! back after the head has moved on leaves a free place behind the head, which is used when its turn comes, at most a
//! window later.
//!
//! A ring that a larger log uses, too, has more places than N: a unit passes if the Nth unit before it has left the window,
//! and takes the oldest place. Since it reads another place than it takes, CPUs that charge at the same instant may pass one
//! unit more each, and so may each unit that was given back after the head had moved on.

use super::migration::{Instants, scaled};
use super::moves::Moves;
use super::parameters::{Parameters, Parametric};
use super::rate::{Costs, Rate};
use super::rate_algorithm::RateAlgorithm;
use super::refund::Refund;
use super::shared::{CHARGE_TRIES, Charge, SharedCharge, SharedState, Swap};
use crate::share::Share;
use crate::time::{HORIZON, TickScale, Ticks, is_alive};

/// The most units of a log.
pub const LARGEST_LOG: u64 = 1024;

/// A log of `most` instants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    /// The window's length T in ticks.
    pub window: Ticks,
    /// N, 1 to `places`.
    pub most: u32,
    /// The number of places in the ring, 1 to [`LARGEST_LOG`]: N, or more if a larger log uses the same ring.
    pub places: u32,
    /// The number of low bits of the head for the index of the oldest place.
    pub place_bits: u32,
}

impl SlidingLog {
    /// At most `rate.count` ≤ [`LARGEST_LOG`] units in the last `rate.per_nanoseconds`.
    #[must_use]
    pub fn new(rate: Rate, scale: TickScale) -> Self {
        let most = u32::try_from(rate.count.min(LARGEST_LOG)).unwrap_or(1);
        Self {
            window: scale.ticks(rate.per_nanoseconds).max(1),
            most,
            places: most,
            place_bits: u32::BITS - most.leading_zeros(),
        }
    }

    #[inline(always)]
    fn mask(&self) -> u64 {
        (1 << (self.place_bits & 63)) - 1
    }

    /// The place `ahead` places after the oldest, which the head names.
    #[inline(always)]
    #[must_use]
    pub fn place(&self, head: u64, ahead: u32) -> u32 {
        // The head may be any word: a place beyond the ring is its first one.
        let first = (head & self.mask()) as u32;
        let first = first & ones_if_negative(first.wrapping_sub(self.places));
        let over = (first + ahead).wrapping_sub(self.places);
        over.wrapping_add(self.places & ones_if_negative(over))
    }

    /// The new value of a place with `instant`, for compare-and-swap, if it may be taken at `now`.
    #[inline(always)]
    #[must_use]
    pub fn take(&self, instant: u64, now: Ticks) -> Option<u64> {
        // 0 is a place that was never taken, at any time.
        if instant != 0 && is_alive(instant, now) {
            None
        } else {
            Some(now.wrapping_add(self.window) | 1)
        }
    }

    /// The head after `place` was taken: the next place is the oldest, and the log is alive until the new unit leaves.
    #[inline(always)]
    #[must_use]
    pub fn advance(&self, head: u64, place: u32, now: Ticks) -> u64 {
        let mask = self.mask();
        let until = now.wrapping_add(self.window).wrapping_add(mask + 1) & !mask;
        let until = if is_alive(head & !mask, until) {
            head & !mask
        } else {
            until
        };
        let next = if place + 1 < self.places {
            place + 1
        } else {
            0
        };
        until | u64::from(next)
    }

    /// The head with `place` as the oldest again, if that was the last one taken.
    #[inline(always)]
    #[must_use]
    pub fn step_back(&self, head: u64, place: u32) -> Option<u64> {
        let next = if place + 1 < self.places {
            place + 1
        } else {
            0
        };
        if head & self.mask() == u64::from(next) {
            Some(head & !self.mask() | u64::from(place))
        } else {
            None
        }
    }

    /// The Nth newest unit's instant: while that counts, none passes.
    #[inline(always)]
    fn decisive<S: SharedState>(&self, state: &S, head: u64) -> Option<u64> {
        let number = self.place(head, self.places.wrapping_sub(self.most));
        Some(state.load_place(state.place(number)?))
    }

    /// The log of the whole ring. A smaller one uses as many places, but not the same ones at all times, so that the ring
    /// stays in order when N changes.
    const fn ring(&self) -> Self {
        Self {
            most: self.places,
            ..*self
        }
    }

    /// Replaces a state by the units that leave at these instants, in order.
    fn write(&self, words: &mut [u64], leaving: &[u64], now: Ticks) {
        let (head, places) = words.split_at_mut(1);
        places.fill(0);
        head[0] = now;
        let free = (self.most as usize).saturating_sub(leaving.len());
        for (nth, instant) in leaving.iter().enumerate() {
            if let Some(place) = places.get_mut(free + nth) {
                *place = *instant;
                head[0] = self.advance(
                    head[0],
                    (free + nth) as u32,
                    instant.wrapping_sub(self.window),
                );
            }
        }
    }

    /// The units that would pass now, by the whole ring.
    #[must_use]
    pub fn remaining(&self, ring: impl Iterator<Item = u64>, now: Ticks) -> u64 {
        ring.take(self.most as usize)
            .filter(|instant| self.take(*instant, now).is_some())
            .count() as u64
    }

    /// Ticks until one more would pass.
    #[must_use]
    pub fn wait(&self, ring: impl Iterator<Item = u64>, now: Ticks) -> Ticks {
        ring.take(self.most as usize)
            .map(|instant| {
                if self.take(instant, now).is_some() {
                    0
                } else {
                    instant.wrapping_sub(now)
                }
            })
            .min()
            .unwrap_or(0)
    }
}

impl Parametric for SlidingLog {
    const NAME: &'static str = "sliding-log";

    #[inline(always)]
    fn from_parameters(parameters: Parameters) -> Self {
        Self {
            window: parameters.interval,
            most: parameters.most as u32,
            places: parameters.tolerance as u32,
            place_bits: u32::from(parameters.shift),
        }
    }

    fn parameters(&self) -> Parameters {
        Parameters {
            interval: self.window,
            most: u64::from(self.most),
            tolerance: u64::from(self.places),
            shift: self.place_bits as u8,
            ..Parameters::default()
        }
    }
}

/// All bits if `difference` is below 0, none otherwise: a select without a branch, for the verifier.
#[inline(always)]
const fn ones_if_negative(difference: u32) -> u32 {
    ((difference as i32) >> 31) as u32
}

/// A state is the head, followed by the ring.
impl RateAlgorithm for SlidingLog {
    const HAS_RING: bool = true;
    const LARGEST_COUNT: u64 = LARGEST_LOG;
    const COUNTS_BYTES: bool = false;
    const MOVES: Moves = Moves::Nowhere;
    const PARTIAL_WINDOWS: u32 = 0;

    fn build(rate: Rate, _: u64, _: Costs, scale: TickScale) -> Self {
        Self::new(rate, scale)
    }

    /// What is charged beyond N leaves the window no later than the newest N.
    fn with_room_for_debt(&self) -> Self {
        *self
    }

    fn without_room_for_debt(&self) -> Self {
        *self
    }

    fn on_states_of(&self, larger: &Self) -> Self {
        Self {
            places: larger.places,
            place_bits: larger.place_bits,
            ..*self
        }
    }

    /// The same ring, of which fewer places may be in use at a time: [`Self::ring`].
    fn at_share(&self, share: Share) -> Self {
        Self {
            most: share.units(u64::from(self.most)) as u32,
            ..*self
        }
    }

    fn open(&self, words: &mut [u64], now: Ticks) {
        words[0] = now;
        // A place of 0 was never taken, whatever the clock says.
        words[1..].fill(0);
    }

    fn conforms(&self, words: &[u64], now: Ticks, cost: u64) -> bool {
        RateAlgorithm::wait(self, words, now, cost) == Some(0)
    }

    fn charge(&self, words: &mut [u64], now: Ticks, cost: u64) -> bool {
        if !self.conforms(words, now, cost) {
            return false;
        }
        let ring = self.ring();
        for _ in 0..cost {
            let place = ring.place(words[0], 0);
            let cell = 1 + place as usize;
            if let Some(instant) = ring.take(words[cell], now) {
                words[cell] = instant;
                words[0] = ring.advance(words[0], place, now);
            }
        }
        true
    }

    /// Takes up to N places: the newest N units decide every verdict. A unit that displaces one which still counts is
    /// marked, so that no refund makes room that the displaced one would need.
    fn charge_beyond(&self, words: &mut [u64], until: Ticks, cost: u64) {
        let ring = self.ring();
        let is_more = cost > u64::from(ring.most);
        for _ in 0..cost.min(u64::from(ring.most)) {
            let place = ring.place(words[0], 0);
            let cell = 1 + place as usize;
            let displaces = is_more || ring.take(words[cell], until).is_none();
            let leaves = until.wrapping_add(ring.window) | 1;
            words[cell] = leaves.wrapping_add(u64::from(displaces));
            words[0] = ring.advance(words[0], place, until);
        }
    }

    /// Of the units up to the charge, the newest. None while a unit counts that has displaced another one.
    fn refund(&self, words: &mut [u64], now: Ticks, refund: Refund) {
        let ring = self.ring();
        let mut held = [0; LARGEST_LOG as usize];
        let mut alive = 0;
        for instant in words[1..].iter().take(ring.most as usize) {
            if let (None, Some(held)) = (ring.take(*instant, now), held.get_mut(alive)) {
                *held = *instant;
                alive += 1;
            }
        }
        let held = &mut held[..alive];
        if held.iter().any(|instant| instant & 1 == 0) {
            return;
        }
        held.sort_unstable_by_key(|instant| instant.wrapping_sub(now));
        // An instant after the present is ahead of it by a window at most.
        let last = (refund.at.wrapping_add(ring.window) | 1).wrapping_sub(now);
        let eligible = if last < HORIZON {
            held.partition_point(|instant| instant.wrapping_sub(now) <= last)
        } else {
            0
        };
        let first = eligible.saturating_sub(usize::try_from(refund.units()).unwrap_or(eligible));
        held.copy_within(eligible.., first);
        ring.write(words, &held[..alive - (eligible - first)], now);
    }

    /// A log does not count what it has displaced.
    fn debt(&self, _: &[u64], _: Ticks) -> u64 {
        0
    }

    fn remaining(&self, words: &[u64], now: Ticks) -> u64 {
        let ring = self.ring();
        let free = ring.remaining(words[1..].iter().copied(), now);
        u64::from(self.most).saturating_sub(u64::from(ring.most) - free)
    }

    /// The ring is in the order of its instants, from the head's place on.
    fn wait(&self, words: &[u64], now: Ticks, cost: u64) -> Option<Ticks> {
        let cost = u32::try_from(cost).ok().filter(|cost| *cost <= self.most)?;
        let ring = self.ring();
        let waits = (0..cost).map(|ahead| {
            let instant = words[1 + ring.place(words[0], ahead) as usize];
            if ring.take(instant, now).is_some() {
                0
            } else {
                instant.wrapping_sub(now)
            }
        });
        let wait = waits.max()?;
        if ring == *self {
            return Some(wait);
        }
        // Of a share, as many units have to leave as are too many.
        let mut left = [0; LARGEST_LOG as usize];
        let mut alive = 0;
        for instant in words[1..].iter().take(ring.most as usize) {
            if let (None, Some(left)) = (ring.take(*instant, now), left.get_mut(alive)) {
                *left = instant.wrapping_sub(now);
                alive += 1;
            }
        }
        left[..alive].sort_unstable();
        let too_many = (alive + cost as usize).saturating_sub(self.most as usize);
        let leaves = too_many
            .checked_sub(1)
            .and_then(|last| left.get(last).copied());
        Some(wait.max(leaves.unwrap_or(0)))
    }

    fn wait_for_one(&self, words: &[u64], now: Ticks) -> Ticks {
        if self.places > self.most {
            return RateAlgorithm::wait(self, words, now, 1).unwrap_or(0);
        }
        self.wait(words[1..].iter().copied(), now)
    }

    /// The newest units stay, as many as there are places, for as large a share of the window. A log that had more is
    /// marked like one that was charged beyond N.
    fn migrate(&self, old: &Self, old_words: &[u64], words: &mut [u64], now: Instants) {
        let mut taken = [0; LARGEST_LOG as usize];
        let taken = &mut taken[..old_words.len() - 1];
        taken.copy_from_slice(&old_words[1..]);
        let (head, ring) = words.split_at_mut(1);
        ring.fill(0);
        // The living first, the oldest of them foremost.
        taken.sort_unstable_by_key(|instant| {
            if *instant != 0 && is_alive(*instant, now.from) {
                instant.wrapping_sub(now.from)
            } else {
                u64::MAX
            }
        });
        let alive = taken
            .iter()
            .take_while(|instant| **instant != 0 && is_alive(**instant, now.from))
            .count() as u64;
        head[0] = now.to;
        if alive == 0 {
            return;
        }
        let is_marked = |instant: &u64| *instant & 1 == 0;
        let displaces =
            alive > u64::from(self.most) || taken.iter().take(alive as usize).any(is_marked);
        let places = alive.min(u64::from(self.most));
        for place in 0..places {
            let nth = alive - places + place;
            let instant = taken.get(nth as usize).copied().unwrap_or(now.from);
            let instant = now.to.wrapping_add(scaled(
                instant.wrapping_sub(now.from),
                self.window,
                old.window,
            )) | 1;
            let instant = instant.wrapping_add(u64::from(displaces));
            if let Some(cell) = ring.get_mut(place as usize) {
                *cell = instant;
            }
            head[0] = self.advance(head[0], place as u32, instant.wrapping_sub(self.window));
        }
    }

    /// The later head. Places are merged by themselves.
    fn merge(&self, current: u64, _: u64, last: u64, _: Ticks) -> u64 {
        if is_alive(last, current) {
            last
        } else {
            current
        }
    }
}

impl SharedCharge for SlidingLog {
    #[inline(always)]
    fn swap_shared<S: SharedState>(&self, _: &S, _: u64, _: Ticks, _: u64) -> Swap {
        Swap::Several
    }

    #[inline(always)]
    fn conforms_shared<S: SharedState>(&self, state: &S, head: u64, now: Ticks, _: u64) -> bool {
        // If another CPU has moved the head on meanwhile, this was not the oldest place: the charge decides.
        self.decisive(state, head)
            .is_some_and(|instant| self.take(instant, now).is_some() || state.load(0) != head)
    }

    #[inline(always)]
    fn charge_shared<S: SharedState>(&self, state: &S, now: Ticks, _: u64) -> Charge {
        for _ in 0..CHARGE_TRIES {
            let head = state.load(0);
            let number = self.place(head, 0);
            let Some((place, decisive)) = state.place(number).zip(self.decisive(state, head))
            else {
                return Charge::LOST;
            };
            // Only a place that was free when it was read is taken, also where the same one decides: the head may look
            // unchanged after others have taken it.
            let instant = state.load_place(place);
            match self.take(decisive, now).and(self.take(instant, now)) {
                // The head moves before the place is taken, so that it never lags behind the places that are.
                Some(next)
                    if state.compare_exchange(0, head, self.advance(head, number, now)) == head
                        && state.compare_exchange_place(place, instant, next) == instant =>
                {
                    return Charge::took(number);
                }
                None if state.load(0) == head => return Charge::REFUSED,
                // Another CPU was faster, or took this place after the head was read: it was not the oldest any more.
                _ => {}
            }
            if state.has_gone() {
                return Charge::LOST;
            }
        }
        Charge::LOST
    }

    #[inline(always)]
    fn refund_shared<S: SharedState>(&self, state: &S, charged: Charge, now: Ticks, _: u64) {
        let Some(place) = state.place(charged.place()) else {
            return;
        };
        // As in `take`: once this unit has left the window, the place may be another one's.
        let taken = now.wrapping_add(self.window) | 1;
        if state.compare_exchange_place(place, taken, now) == taken {
            // If the head has not moved since, this place is the next one that is taken. Otherwise the head reaches it later.
            let head = state.load(0);
            if let Some(back) = self.step_back(head, charged.place()) {
                state.compare_exchange(0, head, back);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn decide(limiter: &SlidingLog, head: &mut u64, ring: &mut [u64], now: Ticks) -> bool {
        let place = limiter.place(*head, 0);
        let Some(instant) = limiter.take(ring[place as usize], now) else {
            return false;
        };
        ring[place as usize] = instant;
        *head = limiter.advance(*head, place, now);
        true
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn every_verdict_is_that_of_a_queue_of_instants(count in 1u64..=LARGEST_LOG, per_nanoseconds in 1_000u64..10_000_000_000, start in 0u64..1 << 60, gaps in prop::collection::vec(0u64..4_000, 1..600)) {
            let limiter = SlidingLog::new(Rate { count, per_nanoseconds }, TickScale::FINEST);
            let (mut head, mut ring) = (start, vec![0; count as usize]);
            let mut queue = VecDeque::new();
            let mut now = start;
            for gap in gaps {
                now += gap * limiter.window / (1_000 * count.min(200));
                // Instants have the lowest bit set.
                while queue.front().is_some_and(|at: &u64| (at + limiter.window) | 1 <= now) { queue.pop_front(); }
                let expected = (queue.len() as u64) < count;
                prop_assert_eq!(limiter.remaining(ring.iter().copied(), now), count - queue.len() as u64);
                if !expected {
                    let wait = limiter.wait(ring.iter().copied(), now);
                    prop_assert!(!decide(&limiter, &mut head.clone(), &mut ring.clone(), now + wait - 1));
                    prop_assert!(decide(&limiter, &mut head.clone(), &mut ring.clone(), now + wait));
                }
                prop_assert_eq!(decide(&limiter, &mut head, &mut ring, now), expected);
                if expected { queue.push_back(now); }
                prop_assert!(is_alive(head, now));
            }
        }

        /// The share changes at any time, and other hosts' units are charged: what is in use is what counts.
        #[test]
        fn a_share_passes_as_many_as_its_places(count in 1u64..100, parts in prop::collection::vec((0u64..=8, 0u64..4, 0u64..4_000, 0u64..10), 1..300)) {
            let whole = SlidingLog::new(Rate { count, per_nanoseconds: 1_000_000_000 }, TickScale::FINEST);
            let (mut words, mut queue, mut now) = (vec![0; 1 + count as usize], VecDeque::new(), 1u64 << 46);
            RateAlgorithm::open(&whole, &mut words, now);
            for (share, cost, gap, elsewhere) in parts {
                let limiter = RateAlgorithm::at_share(&whole, Share::of_parts(share * (Share::PARTS / 8)));
                // A unit that displaced another leaves a tick later. Instants are whole nanoseconds, so even numbers of ticks.
                now += (gap * whole.window / (1_000 * count)) & !1;
                while queue.front().is_some_and(|at: &u64| (at + whole.window) | 1 <= now) { queue.pop_front(); }
                if elsewhere > 8 {
                    RateAlgorithm::charge_beyond(&limiter, &mut words, now, cost);
                    queue.extend((0..cost).map(|_| now));
                    while queue.len() as u64 > count { queue.pop_front(); }
                }
                let (cost, most) = (cost.max(1), u64::from(limiter.most));
                let expected = queue.len() as u64 + cost <= most;
                prop_assert_eq!(RateAlgorithm::remaining(&limiter, &words, now), most.saturating_sub(queue.len() as u64));
                match RateAlgorithm::wait(&limiter, &words, now, cost) {
                    None => prop_assert!(cost > most),
                    Some(0) => prop_assert!(expected),
                    Some(wait) => {
                        prop_assert!(!RateAlgorithm::conforms(&limiter, &words, now + wait - 1, cost));
                        prop_assert!(RateAlgorithm::conforms(&limiter, &words, now + wait, cost));
                    }
                }
                prop_assert_eq!(RateAlgorithm::charge(&limiter, &mut words, now, cost), expected);
                if expected { queue.extend((0..cost).map(|_| now)); }
            }
        }

        #[test]
        fn logs_of_two_sizes_on_one_ring_count_the_units_of_both(sizes in prop::array::uniform2(1u64..=40), start in 0u64..1 << 60, steps in prop::collection::vec((0usize..2, 0u64..3_000), 1..400)) {
            let log = |count| SlidingLog::new(Rate { count, per_nanoseconds: 1_000_000 }, TickScale::FINEST);
            let larger = log(sizes[0].max(sizes[1]));
            let logs = sizes.map(|size| log(size).on_states_of(&larger));
            let mut words = vec![0; 1 + larger.places as usize];
            RateAlgorithm::open(&larger, &mut words, start);
            let mut queue = VecDeque::new();
            let mut now = start;
            for (nth, gap) in steps {
                now += gap * larger.window / 40_000;
                while queue.front().is_some_and(|at: &u64| (at + larger.window) | 1 <= now) { queue.pop_front(); }
                let room = sizes[nth].saturating_sub(queue.len() as u64);
                prop_assert_eq!(RateAlgorithm::remaining(&logs[nth], &words, now), room);
                let wait = logs[nth].wait_for_one(&words, now);
                prop_assert_eq!(wait == 0, room > 0);
                prop_assert!(logs[nth].conforms(&words, now + wait, 1));
                prop_assert_eq!(logs[nth].charge(&mut words, now, 1), room > 0);
                if room > 0 { queue.push_back(now); }
            }
        }

        #[test]
        fn a_place_that_is_given_back_at_once_is_the_next_to_be_taken(count in 1u64..=LARGEST_LOG, head: u64, now in 1u64 << 40..1 << 60) {
            let limiter = SlidingLog::new(Rate::per_second(count), TickScale::FINEST);
            let place = limiter.place(head, 0);
            let taken = limiter.advance(head, place, now);
            prop_assert_eq!(limiter.place(limiter.step_back(taken, place).unwrap(), 0), place);
            let other = limiter.place(taken, 0);
            prop_assert!(count == 1 || limiter.step_back(taken, other).is_none());
        }

        #[test]
        fn any_head_names_a_place_of_the_ring(count in 1u64..=LARGEST_LOG, head: u64, ahead in 0u32..LARGEST_LOG as u32) {
            let limiter = SlidingLog::new(Rate::per_second(count), TickScale::FINEST);
            prop_assert!(limiter.place(head, ahead.min(limiter.most - 1)) < limiter.most);
        }

        #[test]
        fn a_log_keeps_its_newest_units(old_count in 1u64..200, new_count in 1u64..200, used in 0u64..200, seconds in 1u64..20) {
            let rate = |count, seconds| Rate { count, per_nanoseconds: seconds * 1_000_000_000 };
            let (old, new) = (SlidingLog::new(rate(old_count, 10), TickScale::FINEST), SlidingLog::new(rate(new_count, seconds), TickScale::FINEST));
            let used = used.min(old_count);
            let now = Instants { from: 1 << 46, to: 1 << 46 };
            let mut words = vec![0; 1 + old_count as usize];
            let taken = &mut words[1..];
            for (nth, place) in taken.iter_mut().enumerate().take(used as usize) {
                *place = now.from + (nth as u64 + 1) * old.window / (old_count + 1);
            }
            let newest = taken.iter().max().copied().unwrap_or(0);
            let mut migrated = vec![0; 1 + new_count as usize];
            new.migrate(&old, &words, &mut migrated, now);
            let (head, ring) = (migrated[0], &migrated[1..]);
            let left = new.remaining(ring.iter().copied(), now.to);
            prop_assert_eq!(left, new_count.saturating_sub(used));
            if used > 0 {
                let end = ring.iter().max().copied().unwrap() - now.to;
                let wanted = scaled(newest - now.from, new.window, old.window);
                prop_assert!(end.abs_diff(wanted) <= 2);
                prop_assert!(is_alive(head, now.to));
                // The places that are free, or else the first to be, come first.
                let first = new.place(head, 0) as usize;
                let waits: Vec<u64> = ring.iter().map(|instant| if new.take(*instant, now.to).is_some() { 0 } else { instant - now.to }).collect();
                prop_assert_eq!(waits[first], waits.iter().copied().min().unwrap());
            }
        }
    }
}
