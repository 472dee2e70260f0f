//! A map from fingerprints to states that needs one cache line per lookup.
//!
//! Open addressing in groups of four. Keys and states of a group are adjacent, so that an uncached key costs one memory
//! access; tables with separate control bytes need two. The four keys are compared without branches. A fingerprint is
//! its own hash. Removal leaves no tombstones: later keys move up, so that removed keys do not slow the table down.

use super::fingerprint::Fingerprint;

/// Places in a group: with states of one word, a group fills a cache line.
const LANES: usize = 4;
/// Groups of the smallest table.
const FEWEST_GROUPS: usize = 4;
/// The key of a free place; never a fingerprint.
const FREE: u64 = 0;

#[derive(Clone, Debug)]
#[repr(align(64))]
struct Group<S> {
    keys: [u64; LANES],
    states: [S; LANES],
}

impl<S: Default> Group<S> {
    fn empty() -> Self {
        Self {
            keys: [FREE; LANES],
            states: std::array::from_fn(|_| S::default()),
        }
    }

    #[inline]
    fn lane_of(&self, key: u64) -> Option<usize> {
        let mut found = LANES;
        for lane in 0..LANES {
            // No early exit: four comparisons cost less than a mispredicted branch.
            found = if self.keys[lane] == key { lane } else { found };
        }
        (found < LANES).then_some(found)
    }
}

/// The position of a key.
#[derive(Clone, Copy)]
struct Place {
    group: usize,
    lane: usize,
}

/// The map. At least three sixteenths of its places are free, unless it has none.
#[derive(Debug)]
pub struct Table<S> {
    groups: Box<[Group<S>]>,
    keys: usize,
}

impl<S> Default for Table<S> {
    fn default() -> Self {
        Self {
            groups: Box::default(),
            keys: 0,
        }
    }
}

impl<S> Table<S> {
    /// The most bytes with this many keys.
    pub fn most_bytes(keys: usize) -> usize {
        grown(keys.saturating_mul(16).div_ceil(13 * LANES)).max(FEWEST_GROUPS)
            * size_of::<Group<S>>()
    }
}

/// The next number of groups: a quarter more, so that at least 13 of 20 places are used after growing.
const fn grown(groups: usize) -> usize {
    groups.saturating_add(groups / 4 + 1)
}

impl<S: Clone + Default> Table<S> {
    /// The number of keys.
    pub fn len(&self) -> usize {
        self.keys
    }

    /// The number of places.
    pub fn places(&self) -> usize {
        LANES * self.groups.len()
    }

    /// A key's state.
    pub fn get(&self, key: Fingerprint) -> Option<&S> {
        let Place { group, lane } = self.find(key.word())?;
        self.groups.get(group)?.states.get(lane)
    }

    /// A key's state, to be changed.
    #[inline]
    pub fn get_mut(&mut self, key: Fingerprint) -> Option<&mut S> {
        let Place { group, lane } = self.find(key.word())?;
        self.groups.get_mut(group)?.states.get_mut(lane)
    }

    /// Sets a key's state. A table that would be more than thirteen sixteenths full grows by a quarter.
    pub fn insert(&mut self, key: Fingerprint, state: S) {
        if let Some(held) = self.get_mut(key) {
            *held = state;
            return;
        }
        if 16 * (self.keys + 1) > 13 * self.places() {
            drop(self.resize(grown(self.groups.len()).max(FEWEST_GROUPS)));
        }
        self.put(key.word(), state);
    }

    /// Visits every key and its state.
    pub fn each(&self, mut look: impl FnMut(Fingerprint, &S)) {
        for Group { keys, states } in &self.groups {
            for (key, state) in keys.iter().zip(states).filter(|(key, _)| **key != FREE) {
                look(Fingerprint::of_word(*key), state);
            }
        }
    }

    /// Changes every state.
    pub fn each_mut(&mut self, mut change: impl FnMut(&mut S)) {
        for Group { keys, states } in &mut self.groups {
            keys.iter()
                .zip(states)
                .filter(|(key, _)| **key != FREE)
                .for_each(|(_, state)| change(state));
        }
    }

    /// Removes a key.
    pub fn remove(&mut self, key: Fingerprint) {
        if let Some(place) = self.find(key.word()) {
            self.free(place);
        }
    }

    /// Removes the keys whose states `keep` rejects.
    pub fn retain(&mut self, keep: impl Fn(&S) -> bool) {
        // Backwards from a group without overflow, so that keys which move up have been visited before.
        let Some(end) = self
            .groups
            .iter()
            .position(|group| group.lane_of(FREE).is_some())
        else {
            return;
        };
        for back in 0..self.groups.len() {
            let group = self.distance(back, end);
            for lane in 0..LANES {
                let is_dead =
                    |Group { keys, states }: &Group<S>| keys[lane] != FREE && !keep(&states[lane]);
                if is_dead(&self.groups[group]) {
                    self.free(Place { group, lane });
                }
            }
        }
    }

    /// Moves to a table with room for `keys`, at least the present number; returns the old one.
    pub fn fit(&mut self, keys: usize) -> Self {
        self.resize((2 * keys).div_ceil(LANES).max(FEWEST_GROUPS))
    }

    /// The first group of a key: the lower half of the word, scaled to the number of groups without a division (Lemire
    /// 2019, "Fast random integer generation in an interval").
    #[inline]
    fn home(&self, key: u64) -> usize {
        (((key & 0xffff_ffff) * self.groups.len() as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, group: usize) -> usize {
        if group + 1 == self.groups.len() {
            0
        } else {
            group + 1
        }
    }

    /// The distance between two groups, modulo their number; also the group that is `to` groups before another.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from {
            to - from
        } else {
            to + self.groups.len() - from
        }
    }

    #[inline]
    fn find(&self, key: u64) -> Option<Place> {
        let mut group = self.home(key);
        loop {
            let held = self.groups.get(group)?;
            if let Some(lane) = held.lane_of(key) {
                return Some(Place { group, lane });
            }
            // Keys overflow only from full groups.
            if held.lane_of(FREE).is_some() {
                return None;
            }
            group = self.after(group);
        }
    }

    /// Inserts a new key at the first free place from its own group on; there must be one.
    fn put(&mut self, key: u64, state: S) {
        let mut group = self.home(key);
        loop {
            let held = &mut self.groups[group];
            if let Some(lane) = held.lane_of(FREE) {
                (held.keys[lane], held.states[lane]) = (key, state);
                self.keys += 1;
                return;
            }
            group = self.after(group);
        }
    }

    /// Frees a place and closes the gap: keys that overflowed move up, so that lookups find them.
    fn free(&mut self, mut gap: Place) {
        let mut next = gap.group;
        let mut is_full = self.groups[next].lane_of(FREE).is_none();
        while is_full {
            next = self.after(next);
            is_full = self.groups[next].lane_of(FREE).is_none();
            let from_gap = self.distance(gap.group, next);
            let may_move =
                |key: &u64| *key != FREE && self.distance(self.home(*key), next) >= from_gap;
            if let Some(lane) = self.groups[next].keys.iter().position(may_move) {
                let key = self.groups[next].keys[lane];
                let state = std::mem::take(&mut self.groups[next].states[lane]);
                let into = &mut self.groups[gap.group];
                (into.keys[gap.lane], into.states[gap.lane]) = (key, state);
                gap = Place { group: next, lane };
            }
        }
        let group = &mut self.groups[gap.group];
        (group.keys[gap.lane], group.states[gap.lane]) = (FREE, S::default());
        self.keys -= 1;
    }

    fn resize(&mut self, groups: usize) -> Self {
        let empty = vec![Group::empty(); groups].into();
        let mut old = Self {
            groups: std::mem::replace(&mut self.groups, empty),
            keys: 0,
        };
        self.keys = 0;
        for Group { keys, states } in &mut old.groups {
            for (key, state) in keys.iter().zip(states).filter(|(key, _)| **key != FREE) {
                self.put(*key, std::mem::take(state));
            }
        }
        old
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u8, u64),
        Remove(u8),
        Keep(u64),
        Fit,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (any::<u8>(), 0u64..10).prop_map(|(key, state)| Step::Insert(key, state)),
            3 => any::<u8>().prop_map(Step::Remove),
            1 => (0u64..10).prop_map(Step::Keep),
            1 => Just(Step::Fit),
        ]
    }

    #[test]
    fn a_table_that_grows_is_well_used_within_the_bytes_that_were_predicted() {
        let mut table = Table::<[u64; 1]>::default();
        for key in 1..=20_000u64 {
            table.insert(
                Fingerprint::of_word(key.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
                [key],
            );
            let bytes = table.places() * 16;
            assert!(
                bytes <= Table::<[u64; 1]>::most_bytes(key as usize),
                "{bytes} bytes for {key} keys"
            );
            assert!(
                key < 14 || 20 * table.len() + 60 >= 13 * table.places(),
                "{key} of {} places",
                table.places()
            );
        }
    }

    proptest! {
        /// Compares it with the standard library's map under random steps, also with full groups and clusters that wrap
        /// around the end.
        #[test]
        fn it_holds_what_a_plain_map_holds(steps in prop::collection::vec(step(), 0..400), spread in 1u64..300) {
            // Many keys have the same group, among them the first and last groups of a table.
            let fingerprint = |key: u8| {
                let group = (u64::from(key) % spread).wrapping_sub(3).wrapping_mul(0x2_4924_9249) & 0xffff_ffff;
                Fingerprint::of_word((u64::from(key) + 1) << 32 | group)
            };
            let mut table = Table::default();
            let mut plain = HashMap::new();
            for step in steps {
                match step {
                    Step::Insert(key, state) => {
                        table.insert(fingerprint(key), state);
                        plain.insert(key, state);
                    }
                    Step::Remove(key) => {
                        table.remove(fingerprint(key));
                        plain.remove(&key);
                    }
                    Step::Keep(bound) => {
                        table.retain(|state| *state < bound);
                        plain.retain(|_, state| *state < bound);
                    }
                    Step::Fit => drop(table.fit(plain.len())),
                }
                prop_assert_eq!(table.len(), plain.len());
                prop_assert!(16 * table.len() <= 13 * table.places());
                for key in 0..=u8::MAX {
                    prop_assert_eq!(table.get(fingerprint(key)), plain.get(&key));
                }
            }
        }
    }
}
