//! The tiers of a limit on the adjacent words of one key: charged all or none.

use std::cmp::Reverse;
use std::time::Duration;

use common::limiter::Refund;
use common::rate_limiter::{DecidingTier, Outcome, Policy};

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

/// Charges all tiers, even beyond the limit.
pub fn force(tiers: &[Policy], words: &mut [u64], now: u64, cost: u64) {
    each_mut(tiers, words, |tier, part| tier.force(part, now, cost));
}

/// Returns the unused units of a charge to all tiers, as far as they still count there. `ends`: when the bucket of each tier has
/// refilled the charge. If the tiers have changed since, the latest of them is that of each tier.
pub fn refund(tiers: &[Policy], words: &mut [u64], now: u64, refund: Refund, ends: &[u64]) {
    let last = ends.iter().copied().max();
    let are_same = ends.len() == tiers.len();
    let mut ends = ends.iter().copied();
    each_mut(tiers, words, |tier, part| {
        let ends = if are_same { ends.next() } else { last };
        tier.refund(part, now, Refund { ends, ..refund });
    });
}

/// The units by which every tier has more than before.
pub fn returned(tiers: &[Policy], before: &[u64], words: &[u64], now: u64) -> u64 {
    let balance = |tier: &Policy, part: &[u64]| {
        i128::from(tier.remaining(part, now)) - i128::from(tier.debt(part, now))
    };
    let gained = parts(tiers, before)
        .zip(parts(tiers, words))
        .map(|((tier, before), (_, part))| balance(tier, part) - balance(tier, before));
    u64::try_from(gained.min().unwrap_or(0)).unwrap_or(0)
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
pub fn carried(old: &[Policy], words: &[u64], new: &[Policy], now: u64) -> Vec<u64> {
    let mut carried = vec![0; new.iter().map(Policy::words).sum()];
    let mut before = parts(old, words);
    each_mut(new, &mut carried, |tier, part| {
        tier.open(part, now);
        if let Some((old, words)) = before.next() {
            tier.carry(old, words, part, now);
        }
    });
    carried
}

/// Whether all tiers pass `cost`.
pub fn conform(tiers: &[Policy], words: &[u64], now: u64, cost: u64) -> bool {
    parts(tiers, words).all(|(tier, part)| tier.conforms(part, now, cost))
}

/// Charges `cost` to all tiers if all of them pass it.
#[inline]
pub fn charge(tiers: &[Policy], words: &mut [u64], now: u64, cost: u64) -> bool {
    if let [tier] = tiers {
        return tier.charge(words, now, cost);
    }
    if !conform(tiers, words, now, cost) {
        return false;
    }
    each_mut(tiers, words, |tier, part| {
        tier.charge(part, now, cost);
    });
    true
}

/// Like `charge`, with the remaining allowance.
pub fn decide(tiers: &[Policy], words: &mut [u64], now: u64, cost: u64) -> Outcome {
    let allowed = charge(tiers, words, now, cost);
    let retry_after = if allowed {
        Some(Duration::ZERO)
    } else {
        wait(tiers, words, now, cost)
    };
    outcome(tiers, words, now, cost, allowed, retry_after)
}

/// The verdict of `decide`, without charging.
pub fn peek(tiers: &[Policy], words: &[u64], now: u64, cost: u64) -> Outcome {
    let retry_after = wait(tiers, words, now, cost);
    outcome(
        tiers,
        words,
        now,
        cost,
        conform(tiers, words, now, cost),
        retry_after,
    )
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

/// The largest cost that passes all tiers.
pub fn remaining(tiers: &[Policy], words: &[u64], now: u64) -> u64 {
    parts(tiers, words)
        .map(|(tier, part)| tier.remaining(part, now))
        .min()
        .unwrap_or(u64::MAX)
}

/// The units by which forced charges exceed a tier, at most.
fn debt(tiers: &[Policy], words: &[u64], now: u64) -> u64 {
    parts(tiers, words)
        .map(|(tier, part)| tier.debt(part, now))
        .max()
        .unwrap_or(0)
}

/// The outcome of a charge that is not refused.
pub fn charged(tiers: &[Policy], words: &[u64], now: u64) -> Outcome {
    outcome(tiers, words, now, 0, true, Some(Duration::ZERO))
}

/// The outcome of a decision on these words.
pub fn outcome(
    tiers: &[Policy],
    words: &[u64],
    now: u64,
    cost: u64,
    allowed: bool,
    retry_after: Option<Duration>,
) -> Outcome {
    let remaining = remaining(tiers, words, now);
    let reset_after = Duration::from_nanos(reset(tiers, words, now));
    Outcome {
        allowed,
        remaining,
        debt: if remaining == 0 {
            debt(tiers, words, now)
        } else {
            0
        },
        retry_after,
        reset_after,
        tier: if tiers.len() == 1 {
            DecidingTier {
                nth: 0,
                remaining,
                reset_after,
            }
        } else {
            deciding(tiers, words, now, (!allowed).then_some(cost))
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

/// The time until `cost` passes: the longest wait of a tier.
pub fn wait(tiers: &[Policy], words: &[u64], now: u64, cost: u64) -> Option<Duration> {
    let mut waits = parts(tiers, words).map(|(tier, part)| tier.wait(part, now, cost));
    waits
        .try_fold(0, |longest, wait| Some(wait?.max(longest)))
        .map(Duration::from_nanos)
}

/// Whether removing the key would change a verdict.
pub fn is_alive(tiers: &[Policy], words: &[u64], now: u64) -> bool {
    parts(tiers, words).any(|(tier, part)| tier.is_alive(part, now))
}

/// The largest cost that can ever pass all tiers.
pub fn most(tiers: &[Policy]) -> u64 {
    tiers.iter().map(Policy::most).min().unwrap_or(u64::MAX)
}
