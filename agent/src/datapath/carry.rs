//! From one table of sources to another, while packets are judged.
//!
//! What is in the old table is copied before the new programs are in force, under the new policy's measure. What the old
//! programs charge after that is added once they judge no packet any more. So nothing is lost, and at the moment of the
//! change a source can have at most what it was charged since the copy was made, for which it is charged a moment later.

use std::ops::{Range, RangeInclusive};
use std::sync::atomic::Ordering;

use common::limiter::carry::{self, Instants};
use common::rule::{Algorithm, Rule};
use common::table::{Claimed, NO_SLOT, Set, Shape, SlotCounter, Tag, WIDEST_SLOT};
use common::time::is_alive;

use super::error::LoadError;
use super::sources::{Sources, Words};
use crate::compile::{CarryPlan, StateCarry};

/// A key's place in a larger table may be one of several sets. States are put into each, and those that nobody finds
/// decay; but they may fill no more than this share of the table.
const MOST_OF_TABLE: u64 = 4;

/// A take-over at work.
pub struct Carry {
    old: Sources,
    new: Sources,
    plan: CarryPlan,
    now: Instants,
    /// Whether an instant is the same word in both tables.
    is_same_clock: bool,
    /// The slots that were copied, as they were then. It has the old table's shape, and takes memory for pages with such
    /// slots only. `None` if no program uses the old table.
    was: Option<Sources>,
    /// Slots whose sources start afresh, since the table is so much larger that their places cannot be told.
    lost: u64,
}

/// A slot under the new policy.
struct Carried {
    words: [u64; WIDEST_SLOT as usize],
    /// Words of its part of the rings: (which, what).
    ring: Vec<(usize, u64)>,
}

/// What is done where the new table has a slot of the key already.
#[derive(Clone, Copy)]
enum Meeting<'c> {
    /// It came from another place of the old table, where it was one of several copies: the later state is the key's.
    Copy,
    /// It was put there with these states, or by the new policy's programs if with none: what was charged since is added.
    Add(Option<&'c Carried>),
}

/// A set of a mapped table.
#[derive(Clone, Copy)]
struct MappedSet<'t> {
    words: &'t Words,
    first: usize,
}

impl MappedSet<'_> {
    fn word(&self, word: u32) -> &std::sync::atomic::AtomicU64 {
        self.words.word(self.first + word as usize)
    }
}

impl Set for MappedSet<'_> {
    fn load(self, word: u32) -> u64 {
        self.word(word).load(Ordering::SeqCst)
    }

    fn store(self, word: u32, value: u64) {
        self.word(word).store(value, Ordering::SeqCst);
    }

    fn compare_exchange(self, word: u32, current: u64, new: u64) -> u64 {
        match self.word(word).compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(found) | Err(found) => found,
        }
    }

    fn exchange(self, word: u32, value: u64) -> u64 {
        self.word(word).swap(value, Ordering::SeqCst)
    }

    fn fetch_or(self, word: u32, bits: u64) -> u64 {
        self.word(word).fetch_or(bits, Ordering::SeqCst)
    }

    fn and(self, word: u32, bits: u64) {
        self.word(word).fetch_and(bits, Ordering::SeqCst);
    }

    fn count(self, word: u32, counter: SlotCounter) -> u8 {
        let one = match counter {
            SlotCounter::Passed => 1,
            SlotCounter::Refused => 1 << 8,
        };
        (self.word(word).fetch_add(one, Ordering::SeqCst).wrapping_add(one) / one) as u8
    }
}

impl Carry {
    /// Copies what goes on by `plan` from one table to the other, which no program uses yet.
    ///
    /// # Errors
    ///
    /// When there is no room for the copy.
    pub fn begin(old: Sources, new: Sources, plan: CarryPlan, nanoseconds: u64) -> Result<Self, LoadError> {
        let was = Sources::in_memory(old.settings)?;
        Ok(Self::between((old, Some(was)), new, plan, (nanoseconds, nanoseconds)))
    }

    /// The same for a table of another boot: `then` is the present on the clock that its states are measured by. Returns
    /// how many sources start afresh, as [`Carry::lost`].
    #[must_use]
    pub fn restore(old: Sources, new: Sources, plan: CarryPlan, then: u64, now: u64) -> u64 {
        Self::between((old, None), new, plan, (then, now)).lost()
    }

    fn between((old, was): (Sources, Option<Sources>), new: Sources, plan: CarryPlan, (then, now): (u64, u64)) -> Self {
        let is_same_clock = then == now && old.settings.scale == new.settings.scale;
        let now = Instants { from: old.settings.scale.ticks(then), to: new.settings.scale.ticks(now) };
        let mut carry = Self { old, new, plan, now, is_same_clock, was, lost: 0 };
        let (old, new) = (carry.old.shape(), carry.new.shape());
        if new.sets > old.sets {
            let mut slots = 0u64;
            carry.each_slot(|set, nth| slots += u64::from(carry.is_worth_it(&slot(&carry.old, set, nth))));
            if slots * u64::from(new.sets.div_ceil(old.sets)) > new.capacity() / MOST_OF_TABLE {
                carry.lost = slots;
                return carry;
            }
        }
        carry.each_slot(|set, nth| {
            let words = slot(&carry.old, set, nth);
            if !carry.is_worth_it(&words) {
                return;
            }
            let ring = carry.ring(&carry.old, set, nth);
            carry.put(set, &words, &carry.under_the_new(&words, &ring), Meeting::Copy);
            carry.keep(set, nth, &words, &ring);
        });
        carry
    }

    /// Slots whose sources start afresh, since the new table is so much larger that their places in it cannot be told.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// Adds what was charged in the old table since it was copied. No program may use that any more.
    pub fn finish(self) {
        let Some(copy) = self.was.as_ref().filter(|_| self.lost == 0) else { return };
        self.each_slot(|set, nth| {
            // A slot that was not copied reads as one of no key.
            let (was, is) = (slot(copy, set, nth), slot(&self.old, set, nth));
            // Whatever is charged to a log changes its slot as well.
            if was == is || !self.is_worth_it(&is) {
                return;
            }
            let is_same_key = Tag::of_head(was[0]) == Tag::of_head(is[0]);
            let written = is_same_key.then(|| self.under_the_new(&was, &self.ring(copy, set, nth)));
            self.put(
                set,
                &is,
                &self.under_the_new(&is, &self.ring(&self.old, set, nth)),
                Meeting::Add(written.as_ref()),
            );
        });
    }

    fn each_slot(&self, mut work: impl FnMut(u32, u32)) {
        if !self.plan.groups.is_empty() {
            for set in 0..self.old.shape().sets {
                (0..self.old.shape().slots()).for_each(|nth| work(set, nth));
            }
        }
    }

    /// Keeps a slot as it is when it is copied.
    fn keep(&self, set: u32, nth: u32, words: &[u64], ring: &[u64]) {
        let Some(copy) = &self.was else { return };
        let first = copy.set(set) + copy.shape().slot(nth) as usize;
        for (at, word) in words.iter().enumerate().take(copy.shape().slot_words as usize) {
            copy.table.word(first + at).store(*word, Ordering::Relaxed);
        }
        for (place, word) in self.places_of_ring(set, nth).zip(ring) {
            copy.rings.word(place).store(*word, Ordering::Relaxed);
        }
    }

    /// The rings of a slot of the old table, in it or in its copy; none if it has no log that goes on.
    fn ring(&self, of: &Sources, set: u32, nth: u32) -> Vec<u64> {
        let head = of.table.word(of.set(set) + of.shape().slot(nth) as usize).load(Ordering::SeqCst);
        if !self.states(head).iter().any(|state| state.from.is(Algorithm::SlidingLog)) {
            return Vec::new();
        }
        self.places_of_ring(set, nth).map(|word| of.rings.word(word).load(Ordering::SeqCst)).collect()
    }

    /// The words of the old table's rings that belong to a slot.
    fn places_of_ring(&self, set: u32, nth: u32) -> Range<usize> {
        let words = self.old.settings.ring_words as usize;
        let first = (self.old.shape().slots() * set + nth) as usize * words;
        first..first + words
    }

    fn states(&self, head: u64) -> &[StateCarry] {
        let states = Tag::group(head).and_then(|group| self.plan.groups.get(&group));
        states.map_or(&[], Vec::as_slice)
    }

    /// Whether a slot has a state that goes on and has not decayed.
    fn is_worth_it(&self, words: &[u64]) -> bool {
        let is_alive = |state: &StateCarry| {
            let first = usize::from(state.from.position);
            (first..first + state.from.words())
                .any(|word| words.get(word).is_some_and(|word| is_alive(*word, self.now.from)))
        };
        self.states(words[0]).iter().any(is_alive)
    }

    /// A slot's states as the new policy has them.
    fn under_the_new(&self, words: &[u64], ring: &[u64]) -> Carried {
        let mut carried = Carried { words: [self.now.to; WIDEST_SLOT as usize], ring: Vec::new() };
        for state in self.states(words[0]) {
            let (from, to) = (usize::from(state.from.position), usize::from(state.to.position));
            let word = |nth: usize| words.get(from + nth).copied().unwrap_or(self.now.from);
            let places = |rule: &Rule| usize::from(rule.ring)..usize::from(rule.ring) + rule.most as usize;
            if state.is_verbatim(self.is_same_clock) {
                for nth in 0..state.to.words() {
                    carried.words[to + nth] = word(nth);
                }
                if state.to.is(Algorithm::SlidingLog) {
                    let taken = ring.get(places(&state.from)).unwrap_or(&[]);
                    carried.ring.extend(places(&state.to).zip(taken.iter().copied()));
                }
            } else if state.to.is_bucket() {
                carried.words[to] =
                    carry::bucket(&state.from.token_bucket(), &state.to.token_bucket(), word(0), self.now);
            } else if state.to.is(Algorithm::FixedWindow) {
                let (old, new) = (state.from.fixed_window(), state.to.fixed_window());
                carried.words[to] = carry::fixed_window(&old, &new, word(0), self.now);
            } else if state.to.is(Algorithm::SlidingWindow) {
                let (old, new) = (state.from.sliding_window(), state.to.sliding_window());
                let both = carry::sliding_window(&old, &new, [word(0), word(1)], self.now);
                carried.words[to..to + 2].copy_from_slice(&both);
            } else {
                let mut taken = ring.get(places(&state.from)).unwrap_or(&[]).to_vec();
                let mut cells = vec![0; state.to.most as usize];
                let (old, new) = (state.from.sliding_log(), state.to.sliding_log());
                carried.words[to] = carry::sliding_log(&old, &new, &mut taken, &mut cells, self.now);
                carried.ring.extend(places(&state.to).zip(cells));
            }
        }
        carried
    }

    /// Puts a slot of the old table's `set` into the new one.
    fn put(&self, set: u32, words: &[u64], carried: &Carried, meeting: Meeting<'_>) {
        let tag = Tag::of_head(words[0]);
        let shape = self.new.shape();
        let life = |word: &u64| if is_alive(*word, self.now.to) { word.wrapping_sub(self.now.to) } else { 0 };
        let life = carried.words.iter().map(life).max().unwrap_or(0);
        for set_number in sets(self.old.shape(), shape, set) {
            let set = MappedSet { words: &self.new.table, first: self.new.set(set_number) };
            let known = shape.find(set, tag);
            let claim =
                if known == NO_SLOT { Some(shape.claim(set, tag, self.now.to, life, false, |_, _| ())) } else { None };
            match claim.map(|claim| (claim.outcome, claim.slot)) {
                None => self.meet(set, set_number, known, words[0], carried, meeting),
                Some((Claimed::Found, slot)) => self.meet(set, set_number, slot, words[0], carried, meeting),
                Some((Claimed::Reserved | Claimed::Displaced, slot)) => {
                    for word in 1..shape.slot_words {
                        set.store(slot + word, carried.words[word as usize]);
                    }
                    for (place, value) in &carried.ring {
                        self.cell(set_number, slot, *place).store(*value, Ordering::SeqCst);
                    }
                    shape.publish(set, slot, tag);
                    // Counters of the key, which other CPUs may move on by now; a count is lost then.
                    let _ = set.compare_exchange(slot, tag.0, tag.0 | words[0] & 0xffff);
                }
                // The new table is smaller, and full of keys that are busier.
                Some((Claimed::Full | Claimed::Contended | Claimed::Shared, _)) => {}
            }
        }
    }

    fn meet(&self, set: MappedSet<'_>, number: u32, slot: u32, head: u64, carried: &Carried, meeting: Meeting<'_>) {
        let mut is_later = false;
        for state in self.states(head) {
            let first = u32::from(state.to.position);
            for word in first..first + state.to.words() as u32 {
                let last = carried.words[word as usize];
                let mut current = set.load(slot + word);
                loop {
                    let next = match meeting {
                        Meeting::Copy if is_alive(last, current) => last,
                        Meeting::Copy => current,
                        Meeting::Add(written) => {
                            let then = written.map_or(self.now.to, |written| written.words[word as usize]);
                            merged(&state.to, current, then, last, self.now.to)
                        }
                    };
                    let found = set.compare_exchange(slot + word, current, next);
                    if found == current {
                        is_later |= next != current;
                        break;
                    }
                    current = found;
                }
            }
        }
        for (nth, (place, value)) in carried.ring.iter().enumerate() {
            let cell = self.cell(number, slot, *place);
            match meeting {
                Meeting::Copy if is_later => cell.store(*value, Ordering::SeqCst),
                Meeting::Copy => {}
                // A place that the new policy has taken meanwhile stays taken.
                Meeting::Add(written) => {
                    let then = written.and_then(|written| written.ring.get(nth)).map_or(0, |(_, value)| *value);
                    let _ = cell.compare_exchange(then, *value, Ordering::SeqCst, Ordering::SeqCst);
                }
            }
        }
    }

    fn cell(&self, set: u32, slot: u32, place: usize) -> &std::sync::atomic::AtomicU64 {
        let number = self.new.shape().slot_number(set, slot) as usize;
        self.new.rings.word(number * self.new.settings.ring_words as usize + place)
    }
}

/// `current` with what lies between `then` and `last` added to it.
fn merged(rule: &Rule, current: u64, then: u64, last: u64, now: u64) -> u64 {
    if current == then {
        return last;
    }
    if rule.is_bucket() {
        return match (is_alive(last, now), is_alive(current, now)) {
            (false, _) => current,
            (true, false) => last,
            (true, true) => {
                let then = if is_alive(then, now) { then } else { now };
                current.wrapping_add(last.wrapping_sub(then))
            }
        };
    }
    if rule.is(Algorithm::SlidingLog) {
        return if is_alive(last, current) { last } else { current };
    }
    // A count of the same window; the lowest bit of a sliding window's word is a mark, not a count.
    let mask = (1u64 << (rule.shift & 63)) - 1;
    let bits = u32::from(rule.is(Algorithm::SlidingWindow));
    let count = |word: u64| (word & mask) >> bits;
    if current & !mask != last & !mask {
        return if is_alive(last & !mask, current & !mask) { last } else { current };
    }
    let before = if then & !mask == last & !mask { count(then) } else { 0 };
    let sum = (count(current) + count(last).saturating_sub(before)).min(mask >> bits);
    current & !mask | sum << bits | (current | last) & u64::from(bits)
}

/// The words of a slot, those that it does not have being 0.
fn slot(table: &Sources, set: u32, nth: u32) -> [u64; WIDEST_SLOT as usize] {
    let first = table.set(set) + table.shape().slot(nth) as usize;
    let mut words = [0; WIDEST_SLOT as usize];
    for (at, word) in words.iter_mut().enumerate().take(table.shape().slot_words as usize) {
        *word = table.table.word(first + at).load(Ordering::Relaxed);
    }
    words
}

/// The sets of a table in which a key can be that is in this set of another.
fn sets(old: Shape, new: Shape, set: u32) -> RangeInclusive<u32> {
    // A set is that of the hashes whose lower half, as a fraction of 2³², lies in its part.
    let first = (u64::from(set) << 32).div_ceil(u64::from(old.sets));
    let last = (u64::from(set + 1) << 32).div_ceil(u64::from(old.sets)) - 1;
    let of = |hash: u64| ((hash * u64::from(new.sets)) >> 32) as u32;
    of(first)..=of(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::key::{HashSeed, Key};
    use common::limiter::token_bucket::Costs;
    use common::limiter::{Rate, TokenBucket};
    use common::time::TickScale;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_key_is_in_one_of_the_sets_that_are_named(lo: u64, old in 1u32..1 << 21, twice in 0u32..3) {
            let new = [old, old * 2, old.div_ceil(2)][twice as usize];
            let shape = |sets| Shape { sets, slot_words: 2, groups: 1, cells: 1 };
            let hash = HashSeed::new([3, 5, 7, 0x9e37_79b9_7f4a_7c15]).hash(&Key { lo, ..Key::default() });
            let named: Vec<u32> = sets(shape(old), shape(new), shape(old).set(hash)).collect();
            prop_assert!(named.contains(&shape(new).set(hash)) && named.len() <= 3, "{:?}", named);
        }

        /// Whatever was charged on either side of the copy is charged in the end.
        #[test]
        fn charges_on_both_sides_add_up(before in 0u64..100, old_side in 0u64..100, new_side in 0u64..100) {
            let bucket = TokenBucket::new(Rate::per_second(1_000), 1_000, Costs::Single, TickScale::FINEST);
            let rule = Rule::EMPTY.with_token_bucket(bucket);
            let now = 1 << 40;
            let after = |state: u64, count: u64| state + bucket.charge(1) * count;
            let then = after(now, before);
            prop_assert_eq!(merged(&rule, after(then, new_side), then, after(then, old_side), now), after(then, new_side + old_side));
        }
    }

    #[test]
    fn counts_of_one_window_add_up_and_those_of_another_do_not() {
        let window = common::limiter::FixedWindow::new(Rate::per_second(100), TickScale::FINEST);
        let rule = Rule::EMPTY.with_fixed_window(window);
        let label = |nth: u64| nth << window.count_bits;
        assert_eq!(merged(&rule, label(9) + 12, label(9) + 10, label(9) + 15, 0), label(9) + 17);
        assert_eq!(merged(&rule, label(9) + 12, 0, label(9) + 15, 0), label(9) + 27);
        assert_eq!(merged(&rule, label(10) + 2, label(9) + 10, label(9) + 15, 0), label(10) + 2);
    }
}
