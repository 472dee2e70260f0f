//! A map from fingerprints to states that is looked up in one cache line.
//!
//! Open addressing by groups of four: keys and states of a group lie together, so that a key which is in no cache costs
//! one wait for memory, where a table with control bytes of its own costs two; and all four keys are compared without a
//! branch that could be guessed wrongly. A fingerprint is its own hash. Nothing marks what was removed: what follows
//! moves up, so that a table is never slower for what it has forgotten.

use super::fingerprint::Fingerprint;

/// Places in a group: with states of one word, a group is a cache line.
const LANES: usize = 4;
/// Groups of the smallest table.
const FEWEST_GROUPS: usize = 4;
/// The key of a place that is free; no fingerprint is so.
const FREE: u64 = 0;

#[derive(Clone, Debug)]
#[repr(align(64))]
struct Group<S> {
    keys: [u64; LANES],
    states: [S; LANES],
}

impl<S: Default> Group<S> {
    fn empty() -> Self {
        Self { keys: [FREE; LANES], states: std::array::from_fn(|_| S::default()) }
    }

    #[inline]
    fn lane_of(&self, key: u64) -> Option<usize> {
        let mut found = LANES;
        for lane in 0..LANES {
            // No early end: four comparisons side by side are quicker than a wrong guess.
            found = if self.keys[lane] == key { lane } else { found };
        }
        (found < LANES).then_some(found)
    }
}

/// Where a key is.
#[derive(Clone, Copy)]
struct Place {
    group: usize,
    lane: usize,
}

/// The map. At least three sixteenths of its places are free, or there are none.
#[derive(Debug)]
pub struct Table<S> {
    groups: Box<[Group<S>]>,
    keys: usize,
}

impl<S> Default for Table<S> {
    fn default() -> Self {
        Self { groups: Box::default(), keys: 0 }
    }
}

impl<S> Table<S> {
    /// Bytes that it takes with at most so many keys.
    pub fn most_bytes(keys: usize) -> usize {
        let groups = keys.saturating_mul(16).div_ceil(13 * LANES).next_power_of_two().max(FEWEST_GROUPS);
        groups * size_of::<Group<S>>()
    }
}

impl<S: Clone + Default> Table<S> {
    /// How many keys it holds.
    pub fn len(&self) -> usize {
        self.keys
    }

    /// How many it has places for.
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

    /// Sets a key's state; a table that would be more than thirteen sixteenths full becomes twice as large.
    pub fn insert(&mut self, key: Fingerprint, state: S) {
        if let Some(held) = self.get_mut(key) {
            *held = state;
            return;
        }
        if 16 * (self.keys + 1) > 13 * self.places() {
            drop(self.resize((2 * self.groups.len()).max(FEWEST_GROUPS)));
        }
        self.put(key.word(), state);
    }

    /// Looks at every key and its state.
    pub fn each(&self, mut look: impl FnMut(Fingerprint, &S)) {
        for Group { keys, states } in &self.groups {
            for (key, state) in keys.iter().zip(states).filter(|(key, _)| **key != FREE) {
                look(Fingerprint::of_word(*key), state);
            }
        }
    }

    /// Forgets a key.
    pub fn remove(&mut self, key: Fingerprint) {
        if let Some(place) = self.find(key.word()) {
            self.free(place);
        }
    }

    /// Forgets the keys whose states are not to be kept.
    pub fn retain(&mut self, keep: impl Fn(&S) -> bool) {
        // Backwards from a group that nothing was pushed beyond, so that whatever moves up was looked at before.
        let Some(end) = self.groups.iter().position(|group| group.lane_of(FREE).is_some()) else { return };
        for back in 0..self.groups.len() {
            let group = end.wrapping_sub(back) & self.mask();
            for lane in 0..LANES {
                let is_dead = |Group { keys, states }: &Group<S>| keys[lane] != FREE && !keep(&states[lane]);
                if is_dead(&self.groups[group]) {
                    self.free(Place { group, lane });
                }
            }
        }
    }

    /// Moves into few places that hold `keys`, which is at least as many as there are; hands over what it had.
    pub fn fit(&mut self, keys: usize) -> Self {
        self.resize((2 * keys).div_ceil(LANES).next_power_of_two().max(FEWEST_GROUPS))
    }

    /// Of no groups, no place is one.
    #[inline]
    fn mask(&self) -> usize {
        self.groups.len().wrapping_sub(1)
    }

    #[inline]
    fn find(&self, key: u64) -> Option<Place> {
        let mut group = key as usize & self.mask();
        loop {
            let held = self.groups.get(group)?;
            if let Some(lane) = held.lane_of(key) {
                return Some(Place { group, lane });
            }
            // A key is pushed on only by a full group.
            if held.lane_of(FREE).is_some() {
                return None;
            }
            group = (group + 1) & self.mask();
        }
    }

    /// Puts a key that is not there into the first free place from its own group on; there has to be one.
    fn put(&mut self, key: u64, state: S) {
        let mut group = key as usize & self.mask();
        loop {
            let held = &mut self.groups[group];
            if let Some(lane) = held.lane_of(FREE) {
                (held.keys[lane], held.states[lane]) = (key, state);
                self.keys += 1;
                return;
            }
            group = (group + 1) & self.mask();
        }
    }

    /// Frees a place, and closes the gap: who was pushed beyond its group moves up, so that no key is looked for in vain.
    fn free(&mut self, mut gap: Place) {
        let mut next = gap.group;
        let mut is_full = self.groups[next].lane_of(FREE).is_none();
        while is_full {
            next = (next + 1) & self.mask();
            is_full = self.groups[next].lane_of(FREE).is_none();
            let from_gap = next.wrapping_sub(gap.group) & self.mask();
            let may_move = |key: &u64| *key != FREE && next.wrapping_sub(*key as usize) & self.mask() >= from_gap;
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
        let mut old = Self { groups: std::mem::replace(&mut self.groups, empty), keys: 0 };
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

    proptest! {
        /// Whatever is done to it, it holds what the standard library's map holds, also when groups are full and
        /// clusters run around the end.
        #[test]
        fn it_holds_what_a_plain_map_holds(steps in prop::collection::vec(step(), 0..400), spread in 1u64..300) {
            // Keys crowd: many have the same group, and the last ones of a table are among those.
            let fingerprint = |key: u8| {
                let group = (u64::from(key) % spread).wrapping_sub(3) & 0xffff_ffff;
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
