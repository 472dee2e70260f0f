//! The tiers of a limit on the adjacent words of one key: charged all or none.
//!
//! A soft or elastic limit has its tiers twice: those of the limit, and after them those of what passes above it. A cost
//! that passes above the limit is charged to the second, and uses up what the first have left.

mod refund;
mod set;

use std::cmp::Reverse;
use std::time::Duration;

use common::rate_limiter::{DecidingTier, Outcome, Policy};

pub use self::refund::{Charges, TierCharge, refund, returned, shares};
pub use self::set::Tiers;

pub fn parts<'a>(
    tiers: &'a [Policy],
    mut words: &'a [u64],
) -> impl Iterator<Item = (&'a Policy, &'a [u64])> {
    tiers.iter().map(move |tier| {
        let (part, rest) = words.split_at(tier.words());
        words = rest;
        (tier, part)
    })
}

fn each_mut(tiers: &[Policy], mut words: &mut [u64], mut work: impl FnMut(&Policy, &mut [u64])) {
    for tier in tiers {
        let (part, rest) = words.split_at_mut(tier.words());
        words = rest;
        work(tier, part);
    }
}

/// Initializes the state of a key that is new at `now`.
pub fn open(tiers: &[Policy], words: &mut [u64], now: u64) {
    each_mut(tiers, words, |tier, part| tier.open(part, now));
}

/// Charges all tiers for consumption elsewhere, even beyond the limit.
pub fn charge_beyond(tiers: &[Policy], words: &mut [u64], (now, until): (u64, u64), cost: u64) {
    each_mut(tiers, words, |tier, part| {
        tier.charge_beyond(part, now, until, cost);
    });
}

/// Charges each tier `cost`, or what it has left.
pub fn charge_within(tiers: &[Policy], words: &mut [u64], now: u64, cost: u64) {
    each_mut(tiers, words, |tier, part| {
        let cost = cost.min(tier.remaining(part, now));
        tier.charge_beyond(part, now, now, cost);
    });
}

/// Charges all tiers, even beyond the limit.
pub fn force(tiers: &[Policy], words: &mut [u64], now: u64, cost: u64) {
    each_mut(tiers, words, |tier, part| tier.force(part, now, cost));
}

/// Aligns expired fixed windows to the common start of all hosts.
pub fn align(tiers: &[Policy], words: &mut [u64], now: u64) {
    each_mut(tiers, words, |tier, part| tier.align(part, now));
}

/// Replaces each tier's words by `others` if those leave less, or as much for longer.
pub fn take_fuller(tiers: &[Policy], words: &mut [u64], others: &[u64], now: u64) {
    let mut others = parts(tiers, others);
    each_mut(tiers, words, |tier, part| {
        let left = |words: &[u64]| (tier.remaining(words, now), Reverse(tier.reset(words, now)));
        if let Some((_, other)) = others.next()
            && left(other) < left(part)
        {
            part.copy_from_slice(other);
        }
    });
}

/// Returns units that buckets were charged too much.
pub fn give_back(tiers: &[Policy], words: &mut [u64], now: u64, cost: u64) {
    each_mut(tiers, words, |tier, part| tier.give_back(part, now, cost));
}

/// A key's words after its clock was set from one reading to another.
pub fn rebased(tiers: &[Policy], words: &[u64], from: u64, to: u64) -> Vec<u64> {
    let mut rebased = vec![0; words.len()];
    let mut before = parts(tiers, words);
    each_mut(tiers, &mut rebased, |tier, part| {
        tier.open(part, to);
        if let Some((_, words)) = before.next() {
            tier.carry_between(tier, words, part, from, to);
        }
    });
    rebased
}

/// A key's words under other tiers. Tiers with the same index and algorithm keep their used units; others are reset.
/// A share above a limit that is new begins with the limit's used units.
pub fn carried(old: &Tiers, words: &[u64], new: &Tiers, now: u64) -> Vec<u64> {
    let mut carried = vec![0; new.iter().map(Policy::words).sum()];
    let before: Vec<_> = parts(old, words).collect();
    let (own, above) = before.split_at(old.own().len());
    let above = if above.is_empty() { own } else { above };
    let mut nth = 0;
    each_mut(new, &mut carried, |tier, part| {
        let known = match nth < new.own().len() {
            true => own.get(nth),
            false => above.get(nth - new.own().len()),
        };
        tier.open(part, now);
        if let Some((old, words)) = known {
            tier.carry(old, words, part, now);
        }
        nth += 1;
    });
    carried
}

fn all_conform(tiers: &[Policy], words: &[u64], now: u64, cost: u64) -> bool {
    parts(tiers, words).all(|(tier, part)| tier.conforms(part, now, cost))
}

/// Whether no tier refuses `cost`.
pub fn conform(tiers: &Tiers, words: &[u64], now: u64, cost: u64) -> bool {
    all_conform(tiers.refusing(), tiers.refusing_words(words), now, cost)
}

/// Whether `cost` exceeds the limit itself.
fn exceeds(tiers: &Tiers, words: &[u64], now: u64, cost: u64) -> bool {
    !all_conform(tiers.own(), words, now, cost)
}

/// Charges `cost` unless a tier refuses it.
#[inline]
pub fn charge(tiers: &Tiers, words: &mut [u64], now: u64, cost: u64) -> bool {
    if let [tier] = &**tiers {
        return tier.charge(words, now, cost);
    }
    if !conform(tiers, words, now, cost) {
        return false;
    }
    let mut shares = shares(tiers, words, now, cost);
    each_mut(tiers, words, |tier, part| {
        tier.charge(part, now, shares.next().unwrap_or(cost));
    });
    true
}

/// Like `charge`, with the remaining allowance.
pub fn decide(tiers: &Tiers, words: &mut [u64], now: u64, cost: u64) -> Outcome {
    let exceeds = !tiers.is_hard() && exceeds(tiers, words, now, cost);
    let allowed = charge(tiers, words, now, cost);
    let retry_after = if allowed {
        Some(Duration::ZERO)
    } else {
        wait(tiers, words, now, cost)
    };
    Outcome {
        over: allowed && exceeds,
        ..outcome(tiers, words, now, cost, allowed, retry_after)
    }
}

/// The verdict of `decide`, without charging.
pub fn peek(tiers: &Tiers, words: &[u64], now: u64, cost: u64) -> Outcome {
    let retry_after = wait(tiers, words, now, cost);
    let allowed = conform(tiers, words, now, cost);
    Outcome {
        over: allowed && !tiers.is_hard() && exceeds(tiers, words, now, cost),
        ..outcome(tiers, words, now, cost, allowed, retry_after)
    }
}

/// The used units of each tier, and its maximum.
pub fn each_used<'a>(
    tiers: &'a [Policy],
    words: &'a [u64],
    now: u64,
) -> impl Iterator<Item = (u64, u64)> + use<'a> {
    parts(tiers, words)
        .map(move |(tier, part)| (tier.most() - tier.remaining(part, now), tier.most()))
}

/// The largest cost that conforms to the limit itself. What passes above it has at least as much left, but for rounding.
pub fn remaining(tiers: &Tiers, words: &[u64], now: u64) -> u64 {
    parts(tiers, words)
        .map(|(tier, part)| tier.remaining(part, now))
        .min()
        .unwrap_or(u64::MAX)
}

/// The units by which forced charges exceed a tier of the limit itself, at most.
fn debt(tiers: &Tiers, words: &[u64], now: u64) -> u64 {
    parts(tiers.own(), words)
        .map(|(tier, part)| tier.debt(part, now))
        .max()
        .unwrap_or(0)
}

/// The outcome of a charge that is not refused.
pub fn charged(tiers: &Tiers, words: &[u64], now: u64) -> Outcome {
    outcome(tiers, words, now, 0, true, Some(Duration::ZERO))
}

/// The outcome of a decision on these words.
pub fn outcome(
    tiers: &Tiers,
    words: &[u64],
    now: u64,
    cost: u64,
    allowed: bool,
    retry_after: Option<Duration>,
) -> Outcome {
    let remaining = remaining(tiers, words, now);
    let reset_after = Duration::from_nanos(reset(tiers.own(), words, now));
    Outcome {
        allowed,
        over: false,
        remaining,
        debt: if remaining == 0 {
            debt(tiers, words, now)
        } else {
            0
        },
        retry_after,
        reset_after,
        tier: if tiers.own().len() == 1 {
            DecidingTier {
                nth: 0,
                remaining,
                reset_after,
            }
        } else {
            deciding(tiers.own(), words, now, (!allowed).then_some(cost))
        },
    }
}

/// The tier that decides; `refused`: the cost of a refusal.
fn deciding(tiers: &[Policy], words: &[u64], now: u64, refused: Option<u64>) -> DecidingTier {
    let of = |(nth, (tier, part)): (usize, (&Policy, &[u64]))| DecidingTier {
        nth,
        remaining: tier.remaining(part, now),
        reset_after: Duration::from_nanos(tier.reset(part, now)),
    };
    let all = parts(tiers, words).enumerate();
    let first = all.min_by_key(|(_, (tier, part))| {
        // One that never passes the cost has no wait.
        let wait = refused.map(|cost| tier.wait(part, now, cost).unwrap_or(u64::MAX));
        let debt = Reverse(tier.debt(part, now));
        (Reverse(wait), tier.remaining(part, now), debt)
    });
    first.map(of).unwrap_or_default()
}

/// Nanoseconds until all tiers are full.
pub fn reset(tiers: &[Policy], words: &[u64], now: u64) -> u64 {
    parts(tiers, words)
        .map(|(tier, part)| tier.reset(part, now))
        .max()
        .unwrap_or(0)
}

/// The time until `cost` passes: the longest wait of a tier that refuses it.
pub fn wait(tiers: &Tiers, words: &[u64], now: u64, cost: u64) -> Option<Duration> {
    let refusing = parts(tiers.refusing(), tiers.refusing_words(words));
    let mut waits = refusing.map(|(tier, part)| tier.wait(part, now, cost));
    waits
        .try_fold(0, |longest, wait| Some(wait?.max(longest)))
        .map(Duration::from_nanos)
}

/// Whether removing the key would change a verdict.
pub fn is_alive(tiers: &[Policy], words: &[u64], now: u64) -> bool {
    parts(tiers, words).any(|(tier, part)| tier.is_alive(part, now))
}

/// The whole allowance: the largest cost that ever conforms to the limit itself.
pub fn most(tiers: &Tiers) -> u64 {
    tiers
        .own()
        .iter()
        .map(Policy::most)
        .min()
        .unwrap_or(u64::MAX)
}
