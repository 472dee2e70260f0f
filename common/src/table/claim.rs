//! Taking a slot for a new key.

use super::{GROUP, KEPT, LOCK, LOCK_TRIES, MOST_SLOTS, NO_SLOT, Set, Shape, Tag, WIDEST_SLOT};
use crate::time::{Ticks, is_alive};

/// The result of looking for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Whether there is a slot, and how it was obtained.
    pub outcome: Claimed,
    /// First word of the slot in the set; [`NO_SLOT`] if there is none.
    pub slot: u32,
    /// Whether the slot is in the key's alternate set.
    pub is_alternate: bool,
}

/// The result of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// A slot that was free, or whose state had decayed. It is locked and belongs to the caller, who writes its states
    /// and publishes it.
    Reserved,
    /// Like `Reserved`, but a key that is no busier than the new one was evicted.
    Displaced,
    /// Another CPU has just created a slot for this key.
    Found,
    /// All slots of the set are used by busier keys.
    Full,
    /// The set stayed locked for longer than a packet may wait.
    Contended,
    /// There is no slot, and the key is counted in its cells; the slot's word is the index of the cell to charge.
    Shared,
}

impl Claim {
    /// No slot.
    #[inline(always)]
    #[must_use]
    pub const fn none(outcome: Claimed) -> Self {
        Self {
            outcome,
            slot: NO_SLOT,
            is_alternate: false,
        }
    }
}

/// A key that requests a slot.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Its home set.
    pub set: u32,
    /// Its tag there.
    pub tag: Tag,
    /// The longest life of a key that may be evicted for it.
    pub life: Ticks,
    /// It leaves some slots to groups with shorter lives.
    pub is_confined: bool,
}

impl Shape {
    /// When the last state of the slot decays, in ticks ahead of now; 0 if it has.
    #[inline(always)]
    #[must_use]
    pub fn life(&self, set: impl Set, slot: u32, now: Ticks) -> Ticks {
        let mut life = 0;
        for word in 1..WIDEST_SLOT {
            if word < self.slot_words {
                let ahead = life_of(set.load(slot + word), now);
                if ahead > life {
                    life = ahead;
                }
            }
        }
        life
    }

    /// Locks the home set of a key and reserves a slot for it: a free one, else one that has decayed, else such a slot of
    /// its alternate set, else that of the same group's key with the shortest life in the home set, if that is no longer
    /// than the request's. `displaced` is called with the head and the first word of an evicted slot before its states
    /// are replaced and after its key can no longer be found.
    ///
    /// The caller must release a reserved slot with [`Shape::publish`].
    // A key gets a slot only under the lock of its home set, so it never has two. A slot in the alternate set is marked
    // in the home set before the home set's lock is released, and is published before the alternate set's lock is. The
    // next claim sees the mark, and waits for that lock.
    #[inline(always)]
    #[must_use]
    pub fn claim<S: Set>(
        &self,
        sets: impl Fn(u32) -> Option<S>,
        request: Request,
        now: Ticks,
        displaced: impl FnOnce(Tag, u32),
    ) -> Claim {
        let Request {
            tag,
            life,
            is_confined,
            ..
        } = request;
        let Some(home) = sets(request.set) else {
            return Claim::none(Claimed::Full);
        };
        if !lock(home) {
            return Claim::none(Claimed::Contended);
        }
        let slot = self.find(home, tag);
        if slot != NO_SLOT {
            unlock(home);
            return Claim {
                outcome: Claimed::Found,
                slot,
                is_alternate: false,
            };
        }
        let (victim, shortest) = self.victim(home, tag, now, life, is_confined);
        let has_room = victim != NO_SLOT && shortest == 0;
        let is_marked = self.may_be_in_alternate(home, tag);
        if is_marked || !has_room {
            let claim = self.claim_in_alternate(&sets, home, &request, now, (is_marked, has_room));
            if claim.outcome != Claimed::Full {
                unlock(home);
                return claim;
            }
        }
        if victim == NO_SLOT {
            unlock(home);
            return Claim::none(Claimed::Full);
        }
        // From here on the old key cannot be found; its states are replaced before the new one can be found.
        let head = vacate(home, victim);
        if shortest > 0 {
            displaced(Tag::of_head(head), victim);
        }
        self.clear(home, victim, now);
        let outcome = if shortest == 0 {
            Claimed::Reserved
        } else {
            Claimed::Displaced
        };
        Claim {
            outcome,
            slot: victim,
            is_alternate: false,
        }
    }

    /// The set of the slot that a claim returned, and the key's tag there.
    #[inline(always)]
    #[must_use]
    pub const fn claimed(&self, request: &Request, claim: &Claim) -> (u32, Tag) {
        if claim.is_alternate {
            (
                self.other_set(request.set, request.tag),
                request.tag.in_alternate(),
            )
        } else {
            (request.set, request.tag)
        }
    }

    /// Finds the key in its alternate set, else reserves a slot there unless its home set has room. `Full` if there is
    /// neither. The home set is locked, and stays so.
    #[inline(always)]
    fn claim_in_alternate<S: Set>(
        &self,
        sets: &impl Fn(u32) -> Option<S>,
        home: S,
        request: &Request,
        now: Ticks,
        (is_marked, has_room): (bool, bool),
    ) -> Claim {
        let tag = request.tag.in_alternate();
        let number = self.other_set(request.set, request.tag);
        let mut claim = Claim::none(Claimed::Full);
        if number >= self.sets || Tag::is_free(tag.0) {
            return claim;
        }
        let Some(set) = sets(number) else {
            return claim;
        };
        if !lock(set) {
            // Without the mark, the key is not there.
            return if is_marked {
                Claim::none(Claimed::Contended)
            } else {
                claim
            };
        }
        let slot = self.find(set, tag);
        if slot != NO_SLOT {
            claim = Claim {
                outcome: Claimed::Found,
                slot,
                is_alternate: true,
            };
        } else if !has_room {
            let (victim, _) = self.victim(set, tag, now, 0, request.is_confined);
            if victim != NO_SLOT {
                vacate(set, victim);
                self.clear(set, victim, now);
                home.fetch_or(self.mark(request.tag), LOCK);
                // Published, and unlocked, by the caller.
                return Claim {
                    outcome: Claimed::Reserved,
                    slot: victim,
                    is_alternate: true,
                };
            }
        } else if !self.has_key_of(set, number, request.set) {
            home.and(self.mark(request.tag), !LOCK);
        }
        unlock(set);
        claim
    }

    /// Whether a set has a slot of a key whose home set is another one.
    #[inline(always)]
    fn has_key_of(&self, set: impl Set, number: u32, home: u32) -> bool {
        for nth in 0..MOST_SLOTS {
            if nth < self.slots() {
                let tag = Tag::of_head(set.load(self.slot(nth)));
                if tag.is_alternate() && self.other_set(number, tag) == home {
                    return true;
                }
            }
        }
        false
    }

    /// The slot for a new key in a locked set, and its life: a free one, else one that has decayed, else that of the
    /// same group's key with the shortest life, if that is at most `most`; [`NO_SLOT`] if there is none.
    #[inline(always)]
    fn victim(
        &self,
        set: impl Set,
        tag: Tag,
        now: Ticks,
        most: Ticks,
        is_confined: bool,
    ) -> (u32, Ticks) {
        let mut victim = NO_SLOT;
        let mut shortest = most;
        for nth in 0..MOST_SLOTS {
            // No slot is better than a decayed one.
            if nth < self.slots()
                && (victim == NO_SLOT || shortest > 0)
                && !(is_confined && nth & 3 == KEPT)
            {
                let slot = self.nth_of(tag, nth);
                let head = set.load(slot);
                let life = if Tag::is_free(head) {
                    0
                } else {
                    self.life(set, slot, now)
                };
                // A decayed slot of any group; a live one only of the same group, whose lives are comparable.
                if life == 0 || (life <= shortest && head & GROUP == tag.0 & GROUP) {
                    victim = slot;
                    shortest = life;
                }
            }
        }
        (victim, shortest)
    }

    #[inline(always)]
    fn clear(&self, set: impl Set, slot: u32, now: Ticks) {
        for word in 1..WIDEST_SLOT {
            if word < self.slot_words {
                set.store(slot + word, now);
            }
        }
    }

    /// Makes the slot that was reserved for `tag` visible, whose states the caller has written, and unlocks the set.
    #[inline(always)]
    pub fn publish(&self, set: impl Set, slot: u32, tag: Tag) {
        set.fetch_or(slot, tag.0);
        unlock(set);
    }
}

/// How far a state lies ahead of now; 0 if it has decayed.
#[inline(always)]
#[must_use]
pub fn life_of(state: u64, now: Ticks) -> Ticks {
    if is_alive(state, now) {
        state.wrapping_sub(now)
    } else {
        0
    }
}

/// Makes a slot of a locked set invisible, and returns its head. The lock, or a mark, stays.
#[inline(always)]
fn vacate(set: impl Set, slot: u32) -> u64 {
    set.exchange(slot, set.load(slot) & LOCK)
}

/// Counters of the first slot may change while the lock is set, so the lock bit is set and cleared separately.
#[inline(always)]
fn lock(set: impl Set) -> bool {
    for _ in 0..LOCK_TRIES {
        if set.load(0) & LOCK == 0 && set.fetch_or(0, LOCK) & LOCK == 0 {
            return true;
        }
    }
    false
}

#[inline(always)]
fn unlock(set: impl Set) {
    set.and(0, !LOCK);
}

#[cfg(test)]
mod tests {
    use super::super::{AT_HOME, HASH};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The two sets of a key follow from each other, and are different sets of one block.
        #[test]
        fn the_sets_of_a_key_follow_from_each_other(set in 0u32..1 << 24, hash in any::<u64>(), slot_words in 1u32..4) {
            let shape = Shape { sets: 1 << 24, slot_words: 1 << slot_words, groups: 1, cells: 1 };
            let tag = Tag(hash & HASH | AT_HOME);
            let other = shape.other_set(set, tag);
            prop_assert!(other != set && other / shape.slots() == set / shape.slots());
            prop_assert_eq!(shape.home(set, tag), (set, tag));
            if !Tag::is_free(tag.in_alternate().0) {
                prop_assert_eq!(shape.home(other, tag.in_alternate()), (set, tag));
            }
        }
    }
}
