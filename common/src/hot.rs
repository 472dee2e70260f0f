//! A CPU's own counts and holds of a key of which other CPUs have packets, too.
//!
//! Each write to a key's slot takes its cache line from all other CPUs: where sixteen of them have packets of one key, they
//! would wait for it nearly all the time. So a CPU counts refused packets of such a key in its own row of the rule's
//! counters, and takes allowance for several packets at once, a *hold*, which it then spends without reading anything
//! shared.
//!
//! # Holds and the limit
//!
//! Let τ be the tolerance, and L the longest life of a hold. A CPU that finds the state S at the instant `now` takes
//! k units with the charge C by
//!
//! ```text
//! base = max(S, now + L)
//! next = base + C            only if next ≤ now + τ
//! ```
//!
//! and spends them until `now + L`: it pays as if all of them came when its hold ends. A single packet has L = 0, which is
//! [`TokenBucket::decide`].
//!
//! **Bound.** The packets that pass in [s, t] cost at most τ + (t − s), as without holds. Takes are in the order of their
//! exchanges, and each starts at or after the `next` of the one before. So those of which a unit is spent in [s, t], from
//! the first, i, to the last, j, cost at most next_j − base_i. A unit of i is spent at or after s, so that
//! base_i ≥ now_i + L ≥ s; and one of j at or before t, after its take, so that next_j ≤ now_j + τ ≤ t + τ. ∎
//!
//! Neither the number of CPUs nor the size of a hold is in it. `hot/tests.rs` explores every interleaving of a few CPUs.
//!
//! A reset of a key and a reload move the state itself. Holds from before are spent for up to L afterwards, at most 262 µs,
//! and each CPU's costs at most L / 2 at the rate.

use crate::counters::Counters;
use crate::key::Key;
use crate::limiter::TokenBucket;
use crate::table::{Counted, Tally};
use crate::time::{TickScale, Ticks, is_alive};

/// A CPU's row of a rule's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct CpuRow {
    /// The key that this CPU counts by itself.
    pub hot: HotKey,
    /// Counters of all packets. `passed` is first, next to the fields that a passing packet reads.
    pub counters: Counters,
}

/// A key that this CPU counts by itself under one rule, and its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct HotKey {
    /// The key, if `step` is not 0.
    pub key: Key,
    /// So many packets are added to the key's samples at once.
    step: u32,
    /// Units that are left to spend.
    units: u32,
    /// The last instant at which they may be spent.
    expiry: Ticks,
    /// Packets passed since counts were last added.
    pub passed: u32,
    /// Packets refused since.
    pub refused: u32,
    /// When counts were last added.
    added_at: Ticks,
    /// The last take.
    taken_at: Ticks,
    /// The state that it left.
    left: u64,
    /// The row of the rule under which the hold was taken: a key may have packets of classes with other rates.
    rule: u32,
    /// How often the cost of a packet is taken at once; 1 without holds.
    size: u16,
    /// 0: not used since another key wanted the row.
    is_used: u16,
}

/// The charge of a conforming packet of a [`HotKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// Charge it alone.
    Single,
    /// Refuse it, until there are units for a hold again.
    Refuse,
    /// Change the state to this one, for this hold.
    Hold {
        /// The new state.
        next: u64,
        /// The units left after the packet.
        units: u32,
    },
}

impl HotKey {
    /// The most packets that a CPU counts by itself: some 0.3 ms at 15 million packets a second.
    const MOST_STEP: u32 = 4_096;
    /// The most packets of a hold.
    const MOST_PACKETS: u16 = 256;

    /// Whether this is its key.
    #[inline(always)]
    #[must_use]
    pub const fn is(&self, key: &Key) -> bool {
        if self.step == 0 {
            return false;
        }
        // Without branches, each of which multiplies the verifier's work.
        self.key.hi ^ key.hi
            | self.key.lo ^ key.lo
            | (self.key.extra ^ key.extra | self.key.group ^ key.group) as u64
            == 0
    }

    /// Returns whether another key may have the row. If not, it may the next time, unless this key is used until then.
    #[inline(always)]
    #[must_use]
    pub const fn give_way(&mut self) -> bool {
        let was_unused = self.is_used == 0;
        self.is_used = 0;
        was_unused
    }

    /// Starts with a key. `size` is 1, or more if it was seen to change on another CPU.
    #[inline(always)]
    pub const fn begin(&mut self, key: &Key, now: Ticks, size: u16) {
        self.key = *key;
        (self.expiry, self.taken_at, self.left, self.added_at) = (now, now, 0, now);
        (self.refused, self.passed, self.step) = (0, 0, Tally::STEP);
        (self.units, self.size, self.is_used) = (0, size, 1);
    }

    /// Another CPU changed the state during an exchange.
    #[inline(always)]
    pub const fn note_contention(&mut self) {
        if self.size < 2 {
            self.size = 2;
        }
    }

    /// Whether the counts have to be added to the key's samples: after every `step` packets, or 0.5 s. A step takes some 1 ms.
    #[inline(always)]
    #[must_use]
    pub const fn is_due(&self, now: Ticks, scale: TickScale) -> bool {
        (self.refused.wrapping_add(self.passed) >= self.step)
            | (now.wrapping_sub(self.added_at) >= scale.span(29))
    }

    /// Starts the next step, after the counts were added.
    #[inline(always)]
    pub const fn next_step(&mut self, now: Ticks, scale: TickScale) {
        let took = now.wrapping_sub(self.added_at);
        if took < scale.span(19) && self.step < Self::MOST_STEP {
            self.step *= 2;
        } else if took > scale.span(21) && self.step > Tally::STEP {
            self.step /= 2;
        }
        (self.added_at, self.is_used) = (now, 1);
    }

    /// Counts a refused packet. Those that are carried have to be added.
    #[inline(always)]
    #[must_use]
    pub const fn refuse(&mut self, packets: u32, now: Ticks, scale: TickScale) -> Counted {
        self.refused = self.refused.wrapping_add(packets);
        let mut carried = 0;
        if self.is_due(now, scale) {
            carried = self.refused;
            self.refused = 0;
            self.next_step(now, scale);
        }
        Counted {
            carried,
            rest: 0,
            is_due: false,
        }
    }

    /// Whether the hold is of this rule and has so many units, alive or not.
    #[inline(always)]
    #[must_use]
    pub const fn has_units(&self, rule: u32, cost: u64) -> bool {
        self.units as u64 >= cost && self.rule == rule
    }

    /// Spends `cost` units, which the hold has, if it is alive.
    #[inline(always)]
    #[must_use]
    pub fn spend(&mut self, now: Ticks, cost: u64, packets: u32) -> bool {
        if is_alive(now, self.expiry) {
            return false;
        }
        self.units -= cost as u32;
        self.passed = self.passed.wrapping_add(packets);
        true
    }

    /// Returns the charge of a packet that conforms in the state `from`. `longest` is [`longest_hold`].
    #[inline(always)]
    #[must_use]
    pub fn take(
        &mut self,
        bucket: &TokenBucket,
        from: u64,
        now: Ticks,
        cost: u64,
        longest: Ticks,
    ) -> Take {
        self.adapt(from, now, longest);
        let mut units = cost.wrapping_mul(u64::from(self.size));
        if self.size < 2 || units > bucket.burst {
            return Take::Single;
        }
        let mut charge = bucket.charge(units);
        // Sizes are powers of two, and half a hold costs half, rounded up.
        if charge > longest / 2 {
            self.size /= 2;
            if self.size < 2 {
                return Take::Single;
            }
            (charge, units) = (charge.div_ceil(2), units / 2);
        }
        let until = now.wrapping_add(longest);
        let base = if is_alive(from, until) { from } else { until };
        let left = bucket.tolerance.saturating_sub(base.wrapping_sub(now));
        if charge > left {
            (charge, units) = (charge.div_ceil(2), units / 2);
        }
        if charge > left {
            return Take::Refuse;
        }
        Take::Hold {
            next: base.wrapping_add(charge),
            units: units.wrapping_sub(cost) as u32,
        }
    }

    /// Doubles the size of holds that were spent in a quarter of their life while other CPUs changed the state, and halves
    /// that of others. If none did for two lives, packets are charged one by one.
    #[inline(always)]
    const fn adapt(&mut self, from: u64, now: Ticks, longest: Ticks) {
        let since = now.wrapping_sub(self.taken_at);
        if from == self.left {
            if since > longest * 2 {
                self.size = 1;
            }
        } else if since > longest / 2 {
            self.size /= 2;
        } else if since < longest / 4 && self.size < Self::MOST_PACKETS {
            self.size *= 2;
        }
    }

    /// Starts a hold that was taken.
    #[inline(always)]
    pub const fn hold(&mut self, rule: u32, next: u64, units: u32, now: Ticks, longest: Ticks) {
        self.rule = rule;
        (self.units, self.left, self.taken_at, self.is_used) = (units, next, now, 1);
        self.expiry = now.wrapping_add(longest);
    }
}

/// The longest life of a hold: an eighth of the tolerance, at most 262 µs.
#[inline(always)]
#[must_use]
pub const fn longest_hold(tolerance: Ticks, scale: TickScale) -> Ticks {
    let (eighth, most) = (tolerance >> 3, scale.span(18));
    if eighth < most { eighth } else { most }
}

#[cfg(test)]
mod tests;
