//! Migrates state from one table of sources to another, while packets are evaluated.
//!
//! States of the old table are converted to the new policy and copied before the new programs are attached. Charges by
//! the old programs after the copy are added once they evaluate no packets any more. No charge is lost; until it is
//! added, a source may exceed its limit by the charges since the copy.

use std::ops::{Range, RangeInclusive};
use std::sync::atomic::Ordering;

use common::limiter::Instants;
use common::rule::Rule;
use common::table::{
    Claimed, Counted, NO_SLOT, Request, Set, Shape, SlotCounter, Tag, Tally, WIDEST_SLOT,
};
use common::time::is_alive;

use crate::compile::{CarryPlan, StateCarry};
use crate::error::LoadError;
use crate::table::sources::{Sources, Words};

/// A key's place in a larger table may be one of several sets. States are copied to each, and unused copies decay. They
/// may fill at most the table's capacity divided by this.
const MOST_OF_TABLE: u64 = 4;

/// A migration in progress.
pub struct Carry {
    old: Sources,
    new: Sources,
    plan: CarryPlan,
    now: Instants,
    /// Whether instants are equal words in both tables.
    is_same_clock: bool,
    /// The copied slots, with their values at the time. It has the old table's shape, and takes memory only for pages
    /// with such slots. `None` if no program uses the old table.
    was: Option<Sources>,
    /// Slots whose state is reset, because the table has grown too much to find their places.
    lost: u64,
}

/// A slot under the new policy.
struct Carried {
    words: [u64; WIDEST_SLOT as usize],
    /// Its part of the rings: (word, value).
    ring: Vec<(usize, u64)>,
}

/// The way to merge with a slot that the key already has in the new table.
#[derive(Clone, Copy)]
enum Merge<'c> {
    /// The slot is another copy of the key: the later state is valid.
    Copy,
    /// The slot was copied with these states, or created by the new policy's programs if `None`: add the charges since.
    Add(Option<&'c Carried>),
}

/// A set of a mapped table.
#[derive(Clone, Copy)]
pub(crate) struct MappedSet<'t> {
    pub(crate) words: &'t Words,
    pub(crate) first: usize,
}

impl Sources {
    pub(super) fn mapped(&self, set: u32) -> MappedSet<'_> {
        MappedSet {
            words: &self.table,
            first: self.set(set),
        }
    }
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
        match self
            .word(word)
            .compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst)
        {
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

    fn count(self, word: u32, counter: SlotCounter, packets: u32, instant: u8) -> Counted {
        let shift = match counter {
            SlotCounter::Passed => 0,
            SlotCounter::Refused => 8,
        };
        let mut head = self.load(word);
        loop {
            let (tally, counted) = Tally((head >> shift) as u8).plus(packets, instant);
            let new = head & !(0xff << shift) | u64::from(tally.0) << shift;
            match self.compare_exchange(word, head, new) {
                found if found == head => return counted,
                found => head = found,
            }
        }
    }
}

impl Carry {
    /// Copies the states of `plan` from one table to the other, which no program uses yet.
    ///
    /// # Errors
    ///
    /// When there is no memory for the copy.
    pub fn begin(
        old: Sources,
        new: Sources,
        plan: CarryPlan,
        nanoseconds: u64,
    ) -> Result<Self, LoadError> {
        let was = Sources::in_memory(old.settings)?;
        Ok(Self::between(
            (old, Some(was)),
            new,
            plan,
            (nanoseconds, nanoseconds),
        ))
    }

    /// The same for a table of another boot: `then` is the present on that table's clock. Returns the number of sources
    /// whose state is reset, as [`Carry::lost`].
    #[must_use]
    pub fn restore(old: Sources, new: Sources, plan: CarryPlan, then: u64, now: u64) -> u64 {
        Self::between((old, None), new, plan, (then, now)).lost()
    }

    fn between(
        (old, was): (Sources, Option<Sources>),
        new: Sources,
        plan: CarryPlan,
        (then, now): (u64, u64),
    ) -> Self {
        let is_same_clock = then == now && old.settings.scale == new.settings.scale;
        let now = Instants {
            from: old.settings.scale.ticks(then),
            to: new.settings.scale.ticks(now),
        };
        let mut carry = Self {
            old,
            new,
            plan,
            now,
            is_same_clock,
            was,
            lost: 0,
        };
        let (old, new) = (carry.old.shape(), carry.new.shape());
        if new.sets > old.sets {
            let mut slots = 0u64;
            carry.each_slot(|set, nth| {
                slots += u64::from(carry.is_migrated(&slot(&carry.old, set, nth)));
            });
            if slots * u64::from(new.sets.div_ceil(old.sets)) > new.capacity() / MOST_OF_TABLE {
                carry.lost = slots;
                return carry;
            }
        }
        carry.each_slot(|set, nth| {
            let words = slot(&carry.old, set, nth);
            if !carry.is_migrated(&words) {
                return;
            }
            let ring = carry.ring(&carry.old, set, nth);
            carry.put(set, &words, &carry.converted(&words, &ring), Merge::Copy);
            carry.keep(set, nth, &words, &ring);
        });
        carry
    }

    /// The slots whose state is reset, because the new table has grown too much to find their places.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// Adds the charges since the copy. No program may use the old table any more.
    pub fn finish(self) {
        let Some(copy) = self.was.as_ref().filter(|_| self.lost == 0) else {
            return;
        };
        self.each_slot(|set, nth| {
            // A slot that was not copied is zero, which is no key's.
            let (was, is) = (slot(copy, set, nth), slot(&self.old, set, nth));
            // A charge to a log changes its slot as well.
            if was == is || !self.is_migrated(&is) {
                return;
            }
            let is_same_key = Tag::of_head(was[0]) == Tag::of_head(is[0]);
            let written = is_same_key.then(|| self.converted(&was, &self.ring(copy, set, nth)));
            self.put(
                set,
                &is,
                &self.converted(&is, &self.ring(&self.old, set, nth)),
                Merge::Add(written.as_ref()),
            );
        });
    }

    fn each_slot(&self, mut work: impl FnMut(u32, u32)) {
        if !self.plan.groups.is_empty() {
            for set in self.old.used_sets() {
                (0..self.old.shape().slots()).for_each(|nth| work(set, nth));
            }
        }
    }

    /// Saves the values of a copied slot.
    fn keep(&self, set: u32, nth: u32, words: &[u64], ring: &[u64]) {
        let Some(copy) = &self.was else { return };
        let first = copy.set(set) + copy.shape().slot(nth) as usize;
        for (at, word) in words
            .iter()
            .enumerate()
            .take(copy.shape().slot_words as usize)
        {
            copy.table.word(first + at).store(*word, Ordering::Relaxed);
        }
        for (place, word) in self.places_of_ring(set, nth).zip(ring) {
            copy.rings.word(place).store(*word, Ordering::Relaxed);
        }
    }

    /// The rings of a slot, in the old table or in its copy; empty if no state with a ring is migrated.
    fn ring(&self, of: &Sources, set: u32, nth: u32) -> Vec<u64> {
        let head = of
            .table
            .word(of.set(set) + of.shape().slot(nth) as usize)
            .load(Ordering::SeqCst);
        if !self
            .states(head)
            .iter()
            .any(|state| state.from.ring_words() > 0)
        {
            return Vec::new();
        }
        self.places_of_ring(set, nth)
            .map(|word| of.rings.word(word).load(Ordering::SeqCst))
            .collect()
    }

    /// The words of a slot's rings in the old table.
    fn places_of_ring(&self, set: u32, nth: u32) -> Range<usize> {
        let words = self.old.settings.ring_words as usize;
        let first = (self.old.shape().slots() * set + nth) as usize * words;
        first..first + words
    }

    fn states(&self, head: u64) -> &[StateCarry] {
        let states = Tag::group(head).and_then(|group| self.plan.groups.get(&group));
        states.map_or(&[], Vec::as_slice)
    }

    /// Whether a slot has a state that is migrated and has not decayed.
    fn is_migrated(&self, words: &[u64]) -> bool {
        let is_alive = |state: &StateCarry| {
            let first = usize::from(state.from.position);
            (first..first + state.from.words()).any(|word| {
                words
                    .get(word)
                    .is_some_and(|word| is_alive(*word, self.now.from))
            })
        };
        self.states(words[0]).iter().any(is_alive)
    }

    /// A slot's states, converted to the new policy.
    fn converted(&self, words: &[u64], ring: &[u64]) -> Carried {
        let mut carried = Carried {
            words: [self.now.to; WIDEST_SLOT as usize],
            ring: Vec::new(),
        };
        let (mut old, mut new) = (Vec::new(), Vec::new());
        for state in self.states(words[0]) {
            let words_of =
                |rule: &Rule| usize::from(rule.position)..usize::from(rule.position) + rule.words();
            let places =
                |rule: &Rule| usize::from(rule.ring)..usize::from(rule.ring) + rule.ring_words();
            old.clear();
            old.extend(
                words_of(&state.from).map(|word| words.get(word).copied().unwrap_or(self.now.from)),
            );
            old.extend_from_slice(ring.get(places(&state.from)).unwrap_or(&[]));
            let is_verbatim = state.is_verbatim(self.is_same_clock);
            if !is_verbatim {
                new.clear();
                new.resize(state.to.words() + state.to.ring_words(), 0);
                let limiter = state.to.any_limiter();
                limiter.migrate(&state.from.any_limiter(), &old, &mut new, self.now);
                limiter.forget_debt(&mut new, self.now.to);
            }
            let (of_slot, of_ring) =
                if is_verbatim { &old } else { &new }.split_at(state.to.words());
            carried.words[words_of(&state.to)].copy_from_slice(of_slot);
            carried
                .ring
                .extend(places(&state.to).zip(of_ring.iter().copied()));
        }
        carried
    }

    /// Copies a slot of the old table's `set` to the new table.
    fn put(&self, set: u32, words: &[u64], carried: &Carried, merge: Merge<'_>) {
        let (old, shape) = (self.old.shape(), self.new.shape());
        let (home, tag) = old.home(set, Tag::of_head(words[0]));
        if home >= old.sets {
            // Only a damaged table has such a key.
            return;
        }
        let life = |word: &u64| {
            if is_alive(*word, self.now.to) {
                word.wrapping_sub(self.now.to)
            } else {
                0
            }
        };
        let life = carried.words.iter().map(life).max().unwrap_or(0);
        let new = |number: u32| self.new.mapped(number);
        for set in sets(old, shape, home) {
            let (number, _, known) = shape.locate(new, set, tag);
            if known != NO_SLOT {
                self.merge((number, known), words[0], carried, merge);
                continue;
            }
            let request = Request {
                set,
                tag,
                life,
                is_confined: false,
            };
            let claim = shape.claim(|number| Some(new(number)), request, self.now.to, |_, _| ());
            let (number, tag) = shape.claimed(&request, &claim);
            match claim.outcome {
                Claimed::Found => self.merge((number, claim.slot), words[0], carried, merge),
                Claimed::Reserved | Claimed::Displaced => {
                    let (set, slot) = (new(number), claim.slot);
                    for word in 1..shape.slot_words {
                        set.store(slot + word, carried.words[word as usize]);
                    }
                    for (place, value) in &carried.ring {
                        self.cell(number, slot, *place)
                            .store(*value, Ordering::SeqCst);
                    }
                    shape.publish(set, slot, tag);
                    // The count of passed packets; if another CPU changes it meanwhile, it is lost. Refusals are in the
                    // samples that the next policy takes up.
                    let head = set.load(slot);
                    if Tag::of_head(head) == tag && head & 0xff == 0 {
                        let _ = set.compare_exchange(slot, head, head | words[0] & 0xff);
                    }
                }
                // The new table is smaller, and full of busier keys.
                Claimed::Full | Claimed::Contended | Claimed::Shared => {}
            }
        }
    }

    fn merge(&self, (number, slot): (u32, u32), head: u64, carried: &Carried, merge: Merge<'_>) {
        let set = self.new.mapped(number);
        let mut is_later = false;
        for state in self.states(head) {
            let first = u32::from(state.to.position);
            for word in first..first + state.to.words() as u32 {
                let last = carried.words[word as usize];
                let mut current = set.load(slot + word);
                loop {
                    let next = match merge {
                        Merge::Copy if is_alive(last, current) => last,
                        Merge::Copy => current,
                        Merge::Add(written) => {
                            let then =
                                written.map_or(self.now.to, |written| written.words[word as usize]);
                            state
                                .to
                                .any_limiter()
                                .merge(current, then, last, self.now.to)
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
            match merge {
                Merge::Copy if is_later => cell.store(*value, Ordering::SeqCst),
                Merge::Copy => {}
                // A place that the new policy has taken meanwhile stays taken.
                Merge::Add(written) => {
                    let then = written
                        .and_then(|written| written.ring.get(nth))
                        .map_or(0, |(_, value)| *value);
                    let _ = cell.compare_exchange(then, *value, Ordering::SeqCst, Ordering::SeqCst);
                }
            }
        }
    }

    fn cell(&self, set: u32, slot: u32, place: usize) -> &std::sync::atomic::AtomicU64 {
        let number = self.new.shape().slot_number(set, slot) as usize;
        self.new
            .rings
            .word(number * self.new.settings.ring_words as usize + place)
    }
}

/// The words of a slot; missing ones are 0.
fn slot(table: &Sources, set: u32, nth: u32) -> [u64; WIDEST_SLOT as usize] {
    let first = table.set(set) + table.shape().slot(nth) as usize;
    let mut words = [0; WIDEST_SLOT as usize];
    for (at, word) in words
        .iter_mut()
        .enumerate()
        .take(table.shape().slot_words as usize)
    {
        *word = table.table.word(first + at).load(Ordering::Relaxed);
    }
    words
}

/// The sets of a table that can contain a key of this set of another.
fn sets(old: Shape, new: Shape, set: u32) -> RangeInclusive<u32> {
    // A set contains the hashes whose lower half, as a fraction of 2³², lies in its part.
    let first = (u64::from(set) << 32).div_ceil(u64::from(old.sets));
    let last = (u64::from(set + 1) << 32).div_ceil(u64::from(old.sets)) - 1;
    let of = |hash: u64| ((hash * u64::from(new.sets)) >> 32) as u32;
    of(first)..=of(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::key::{HashSeed, Key};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_key_is_in_one_of_the_sets_that_are_named(lo: u64, old in 1u32..1 << 21, twice in 0u32..3) {
            let new = [old, old * 2, old.div_ceil(2)][twice as usize];
            let shape = |sets| Shape { sets, slot_words: 2, groups: 1, cells: 1 };
            let hash = HashSeed::of_number(1).hash(&Key { lo, ..Key::default() });
            let named: Vec<u32> = sets(shape(old), shape(new), shape(old).set(hash)).collect();
            prop_assert!(named.contains(&shape(new).set(hash)) && named.len() <= 3, "{:?}", named);
        }
    }
}
