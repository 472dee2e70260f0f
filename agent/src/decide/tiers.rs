//! The tiers of one limit on the words of one key, side by side: charged all or none.

use std::time::Duration;

use common::rate_limiter::{Outcome, Policy};

/// Each tier with its part of the words.
fn parts<'a>(tiers: &'a [Policy], mut words: &'a [u64]) -> impl Iterator<Item = (&'a Policy, &'a [u64])> {
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

/// Writes the state of a key that is new at `now`.
pub fn open(tiers: &[Policy], words: &mut [u64], now: u64) {
    each_mut(tiers, words, |tier, part| tier.open(part, now));
}

/// A key's words under other tiers: those of the same place and algorithm keep their share, the others begin whole.
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

/// As `charge`, and what is left.
pub fn decide(tiers: &[Policy], words: &mut [u64], now: u64, cost: u64) -> Outcome {
    let allowed = charge(tiers, words, now, cost);
    let retry_after = if allowed { Some(Duration::ZERO) } else { wait(tiers, words, now, cost) };
    outcome(tiers, words, now, allowed, retry_after)
}

/// What `decide` would say.
pub fn peek(tiers: &[Policy], words: &[u64], now: u64, cost: u64) -> Outcome {
    let retry_after = wait(tiers, words, now, cost);
    outcome(tiers, words, now, conform(tiers, words, now, cost), retry_after)
}

fn outcome(tiers: &[Policy], words: &[u64], now: u64, allowed: bool, retry_after: Option<Duration>) -> Outcome {
    let remaining = parts(tiers, words).map(|(tier, part)| tier.remaining(part, now)).min().unwrap_or(u64::MAX);
    let reset = parts(tiers, words).map(|(tier, part)| tier.reset(part, now)).max().unwrap_or(0);
    Outcome { allowed, remaining, retry_after, reset_after: Duration::from_nanos(reset) }
}

/// Each tier passes from its own wait on, so all do from the longest.
pub fn wait(tiers: &[Policy], words: &[u64], now: u64, cost: u64) -> Option<Duration> {
    let mut waits = parts(tiers, words).map(|(tier, part)| tier.wait(part, now, cost));
    waits.try_fold(0, |longest, wait| Some(wait?.max(longest))).map(Duration::from_nanos)
}

/// Whether forgetting the key would change a verdict.
pub fn is_alive(tiers: &[Policy], words: &[u64], now: u64) -> bool {
    parts(tiers, words).any(|(tier, part)| tier.is_alive(part, now))
}

/// The largest cost that can ever pass all of them.
pub fn most(tiers: &[Policy]) -> u64 {
    tiers.iter().map(Policy::most).min().unwrap_or(u64::MAX)
}
