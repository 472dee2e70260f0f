//! Refunds to the tiers of a key.

use common::limiter::Refund;
use common::rate_limiter::Policy;

use super::{Tiers, each_mut, open, parts};

/// A charge to one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierCharge {
    pub units: u64,
    /// When the tier's bucket has refilled all charges until this one.
    pub ends: u64,
}

/// A charge to all tiers.
#[derive(Clone, Debug, Default)]
pub struct Charges {
    pub of_each: Vec<TierCharge>,
    /// The number of tiers of the limit itself.
    pub own: usize,
}

/// Returns the unused units of a charge to all tiers, as far as they still count there. `charges`: what it took of each tier;
/// if the tiers have changed since, the least is that of each tier. Without them, they are the newest units.
///
/// Units above the limit are returned first, since the limit itself was not charged for them.
pub fn refund(tiers: &Tiers, words: &mut [u64], now: u64, refund: Refund, charges: &Charges) {
    let are_same = (charges.of_each.len(), charges.own) == (tiers.len(), tiers.own().len());
    let charges = &charges.of_each;
    let least = charges.iter().map(|charge| charge.units).min();
    let last = charges.iter().map(|charge| charge.ends).max();
    let above = if charges.is_empty() {
        used_above(tiers, words, now)
    } else {
        Vec::new()
    };
    let (mut charges, mut above) = (charges.iter(), above.into_iter());
    each_mut(tiers, words, |tier, part| {
        let charge = charges.next().filter(|_| are_same);
        let charged = charge.map(|charge| charge.units).or(least);
        let kept = refund.used.saturating_add(above.next().unwrap_or(0));
        let charged = charged.unwrap_or(refund.charged).min(refund.charged);
        let refund = Refund {
            charged,
            used: kept.min(charged),
            ends: charge.map(|charge| charge.ends).or(last),
            ..refund
        };
        tier.refund(part, now, refund);
    });
}

/// The units above each tier of a soft or elastic limit that still count: by which what passes above has less left than the
/// tier, compared with a new key. The two of a bucket refill at different rates: there it is too few after a while.
fn used_above(tiers: &Tiers, words: &[u64], now: u64) -> Vec<u64> {
    if tiers.own().len() == tiers.len() {
        return Vec::new();
    }
    let mut new = vec![0; words.len()];
    open(tiers, &mut new, now);
    let between = |words: &[u64]| -> Vec<i128> {
        let balances = parts(tiers, words).map(|(tier, part)| balance(tier, part, now));
        let balances: Vec<i128> = balances.collect();
        let (own, above) = balances.split_at(tiers.own().len());
        above
            .iter()
            .zip(own)
            .map(|(above, own)| above - own)
            .collect()
    };
    let used = between(&new).into_iter().zip(between(words));
    used.map(|(new, now)| u64::try_from(new - now).unwrap_or(0))
        .collect()
}

/// The units that a passing charge of `cost` takes of each tier: above the limit, the rest of the limit itself.
pub fn shares(
    tiers: &Tiers,
    words: &[u64],
    now: u64,
    cost: u64,
) -> impl Iterator<Item = u64> + use<> {
    let left = if tiers.is_hard() {
        cost
    } else {
        let own = parts(tiers.own(), words);
        own.fold(cost, |least, (tier, part)| {
            least.min(tier.remaining(part, now))
        })
    };
    let own = tiers.own().len();
    (0..tiers.len()).map(move |nth| if nth < own { left } else { cost })
}

/// The units by which every tier has more than before.
pub fn returned(tiers: &[Policy], before: &[u64], words: &[u64], now: u64) -> u64 {
    let gained = parts(tiers, before)
        .zip(parts(tiers, words))
        .map(|((tier, before), (_, part))| balance(tier, part, now) - balance(tier, before, now));
    u64::try_from(gained.min().unwrap_or(0)).unwrap_or(0)
}

/// The remaining units of a tier, below zero by its debt.
fn balance(tier: &Policy, part: &[u64], now: u64) -> i128 {
    i128::from(tier.remaining(part, now)) - i128::from(tier.debt(part, now))
}
