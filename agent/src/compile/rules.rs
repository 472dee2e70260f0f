//! A limit's rules: one for its rate, one for each tier, and a second one for what soft and elastic limits pass above.

use common::limiter::token_bucket::Costs;
use common::limiter::{FixedWindow, LeakyBucket, Rate, SlidingLog, SlidingWindow, TokenBucket};
use common::rule::{self, Cost, Enforcement, KeyKind, Rule};
use common::time::TickScale;

use crate::config::policy::{Action, Algorithm, Key, Limit, Mode, Multiplier, OnFull, Throttle, Unit};

/// One rule before it is multiplied for a class: the rate and burst it enforces, and what becomes of the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleSource {
    pub algorithm: Algorithm,
    pub unit: Unit,
    pub rate: Rate,
    pub burst: u64,
    /// Everything that does not depend on the rate.
    pub frame: Rule,
}

/// The (rate, burst, enforcement) of each rule of a limit, in the order they are laid out.
pub fn parts(limit: &Limit, mode: Mode) -> Vec<(Rate, u64, Enforcement)> {
    let ordinary = match limit.action {
        _ if mode == Mode::Observe => Enforcement::Observe,
        Action::Observe => Enforcement::Observe,
        Action::Mark(_) => Enforcement::Mark,
        Action::Drop | Action::Reject | Action::Shape => Enforcement::Enforce,
    };
    let rates =
        std::iter::once((limit.rate, limit.burst)).chain(limit.tiers.iter().map(|tier| (tier.rate, tier.burst)));
    rates
        .flat_map(|(rate, burst)| {
            let above = |enforcement, share: Multiplier| {
                vec![(rate, burst, enforcement), (share.rate(rate), share.units(burst), ordinary)]
            };
            match (ordinary, limit.throttle) {
                (Enforcement::Enforce, Throttle::Soft(share)) => above(Enforcement::Soft, share),
                (Enforcement::Enforce, Throttle::Elastic(share)) => above(Enforcement::Elastic, share),
                _ => vec![(rate, burst, ordinary)],
            }
        })
        .collect()
}

/// Words of state that one rule of the limit needs.
pub const fn words(limit: &Limit) -> u32 {
    kernel_algorithm(limit.algorithm).words()
}

/// The longest that any state of the limit lives, in nanoseconds.
pub fn longest_life(limit: &Limit) -> u128 {
    parts(limit, Mode::Enforce)
        .into_iter()
        .map(|(rate, burst, _)| match limit.algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => rate.nanoseconds_for(burst),
            // A sliding window's count matters for as long again.
            Algorithm::FixedWindow | Algorithm::SlidingWindow | Algorithm::SlidingLog => {
                2 * u128::from(rate.per_nanoseconds)
            }
        })
        .max()
        .unwrap_or(0)
}

/// The rule's row but for rate, position, group and counter.
pub fn frame(limit: &Limit, enforcement: Enforcement) -> Rule {
    Rule {
        mask_ipv4: mask_ipv4(limit.ipv4_prefix),
        mask_hi: mask_ipv6(limit.ipv6_prefix).0,
        mask_lo: mask_ipv6(limit.ipv6_prefix).1,
        algorithm: kernel_algorithm(limit.algorithm) as u8,
        key: key_kind(limit.key) as u8,
        cost: match limit.unit {
            Unit::Packets => Cost::Packets,
            Unit::Bytes => Cost::Bytes,
            Unit::Connections | Unit::Requests => Cost::One,
        } as u8,
        enforcement: enforcement as u8,
        action: match limit.action {
            _ if enforcement == Enforcement::Observe => rule::Action::Drop,
            Action::Drop | Action::Observe | Action::Mark(_) => rule::Action::Drop,
            Action::Reject => rule::Action::Reject,
            Action::Shape => rule::Action::Shape,
        } as u8,
        ..Rule::EMPTY
    }
}

/// What becomes of a new key when the table is full.
pub const fn on_full(limit: &Limit) -> rule::OnFull {
    match limit.on_full {
        OnFull::Pass => rule::OnFull::Pass,
        OnFull::Throttle => rule::OnFull::Throttle,
        OnFull::Share => rule::OnFull::Share,
    }
}

impl RuleSource {
    /// The row for sources of a class with this multiplier.
    pub fn rule(&self, multiplier: Multiplier, scale: TickScale) -> Rule {
        let rate = multiplier.rate(self.rate);
        let burst = multiplier.units(self.burst).max(1);
        let costs = if self.unit == Unit::Bytes { Costs::Many } else { Costs::Single };
        let rule = match self.algorithm {
            Algorithm::TokenBucket => self.frame.with_token_bucket(TokenBucket::new(rate, burst, costs, scale)),
            Algorithm::LeakyBucket => self.frame.with_leaky_bucket(LeakyBucket::new(rate, burst, costs, scale)),
            Algorithm::FixedWindow => self.frame.with_fixed_window(FixedWindow::new(self.windowed(multiplier), scale)),
            Algorithm::SlidingWindow => {
                self.frame.with_sliding_window(SlidingWindow::new(self.windowed(multiplier), scale))
            }
            Algorithm::SlidingLog => self.frame.with_sliding_log(SlidingLog::new(self.windowed(multiplier), scale)),
        };
        rule.made_swift()
    }

    /// A window keeps its length and multiplies its count, rounded down, but never to nothing.
    fn windowed(&self, multiplier: Multiplier) -> Rate {
        Rate { count: multiplier.units(self.rate.count).max(1), per_nanoseconds: self.rate.per_nanoseconds }
    }
}

pub const fn kernel_algorithm(algorithm: Algorithm) -> rule::Algorithm {
    match algorithm {
        Algorithm::TokenBucket => rule::Algorithm::TokenBucket,
        Algorithm::LeakyBucket => rule::Algorithm::LeakyBucket,
        Algorithm::FixedWindow => rule::Algorithm::FixedWindow,
        Algorithm::SlidingWindow => rule::Algorithm::SlidingWindow,
        Algorithm::SlidingLog => rule::Algorithm::SlidingLog,
    }
}

const fn key_kind(key: Key) -> KeyKind {
    match key {
        Key::Source => KeyKind::Address,
        Key::SourcePort => KeyKind::AddressPort,
        Key::Class => KeyKind::Class,
        Key::Interface => KeyKind::Interface,
    }
}

/// A prefix's mask as it lies in memory, network byte order.
pub fn mask_ipv4(length: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(length.min(32))).unwrap_or(0).to_be()
}

/// A prefix's mask as two words as they lie in memory.
pub fn mask_ipv6(length: u8) -> (u64, u64) {
    let mask = u128::MAX.checked_shl(128 - u32::from(length.min(128))).unwrap_or(0);
    (((mask >> 64) as u64).to_be(), (mask as u64).to_be())
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::packet::Address;

    #[test]
    fn masks_keep_the_prefix_and_nothing_else() {
        assert_eq!(mask_ipv4(24).to_ne_bytes(), [255, 255, 255, 0]);
        assert_eq!((mask_ipv4(0), mask_ipv4(32)), (0, u32::MAX));
        let (hi, lo) = mask_ipv6(68);
        assert_eq!((hi.to_ne_bytes(), lo.to_ne_bytes()), ([255; 8], [0xf0, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!((mask_ipv6(0), mask_ipv6(128)), ((0, 0), (u64::MAX, u64::MAX)));
        let address = Address::from_ipv6([0xff; 16]);
        assert_eq!(Address { hi: address.hi & hi, lo: address.lo & lo }.octets()[7..10], [0xff, 0xf0, 0]);
    }
}
