//! A limit's rules: one for its rate and one for each tier; two for each if the limit is soft or elastic. A fair limit has
//! one for its level, one for that of each wider key, and one for `at_most`.

use common::connections::MOST_CONCURRENT;
use common::fair::SHIFT_OF_BYTES;
use common::limiter::{AnyLimiter, Costs, Rate};
use common::rule::{self, Cost, Enforcement, KeyKind, Rule};
use common::time::TickScale;
use config::policy::{Action, Algorithm, Key, Limit, Mode, Multiplier, OnFull, Throttle, Unit};

/// A rule before a class's multiplier is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleSource {
    pub algorithm: Algorithm,
    pub unit: Unit,
    pub rate: Rate,
    pub burst: u64,
    /// The largest multiplier that applies. The others share its states: a key may have sources of several classes.
    pub largest: Multiplier,
    /// The fields that do not depend on the rate.
    pub frame: Rule,
}

/// The rate and burst of a fair rule while it is not in effect: they set nothing but the order in which a full table gives up
/// states.
const FAIR_RATE: (Rate, u64) = (Rate::per_second(1_000), 1_000);

/// The (rate, burst, enforcement) of each rule of a limit, in the order they are laid out. The fair rule of a limit is laid
/// out behind those of all limits.
pub fn parts(limit: &Limit, mode: Mode) -> Vec<(Rate, u64, Enforcement)> {
    let ordinary = match limit.action {
        _ if mode == Mode::Observe => Enforcement::Observe,
        Action::Observe => Enforcement::Observe,
        Action::Mark(_) => Enforcement::Mark,
        Action::Drop | Action::Reject | Action::Shape => Enforcement::Enforce,
    };
    if let Some(shares) = &limit.shares {
        let most = shares
            .at_most
            .map(|rate| (rate, limit.rates.burst, ordinary));
        let fair = (FAIR_RATE.0, FAIR_RATE.1, Enforcement::Fair);
        return most.into_iter().chain([fair]).collect();
    }
    limit
        .rates
        .all()
        .flat_map(|(rate, burst, _)| {
            let above = |enforcement, share: Multiplier| {
                vec![
                    (rate, burst, enforcement),
                    (share.rate(rate), share.units(burst), ordinary),
                ]
            };
            match (ordinary, limit.throttle) {
                (Enforcement::Enforce, Throttle::Soft(share)) => above(Enforcement::Soft, share),
                (Enforcement::Enforce, Throttle::Elastic(share)) => {
                    above(Enforcement::Elastic, share)
                }
                _ => vec![(rate, burst, ordinary)],
            }
        })
        .collect()
}

/// Words of state that one rule of the limit needs.
pub const fn words(limit: &Limit) -> u32 {
    limit.rates.algorithm.state_words()
}

/// The longest time until a state of the limit has decayed, in nanoseconds.
pub fn longest_life(limit: &Limit) -> u128 {
    parts(limit, Mode::Enforce)
        .into_iter()
        .map(|(rate, burst, _)| limit.rates.algorithm.longest_life(rate, burst))
        .max()
        .unwrap_or(0)
}

/// The longest time until a state of any class has decayed: one unit is the least burst, so that a slower class may
/// need longer for it.
pub fn longest_life_of_classes(limit: &Limit, multipliers: &[Multiplier]) -> u128 {
    let algorithm = limit.rates.algorithm;
    let of = |multiplier: &Multiplier, rate, burst| {
        algorithm.longest_life(
            multiplier.rate_of(algorithm, rate),
            multiplier.units(burst).max(1),
        )
    };
    parts(limit, Mode::Enforce)
        .into_iter()
        .flat_map(|(rate, burst, _)| multipliers.iter().map(move |m| of(m, rate, burst)))
        .max()
        .unwrap_or(0)
}

/// The rule's row without rate, position, group and counter.
pub fn frame(limit: &Limit, enforcement: Enforcement) -> Rule {
    Rule {
        mask_ipv4: mask_ipv4(limit.ipv4_prefix),
        mask_hi: mask_ipv6(limit.ipv6_prefix).0,
        mask_lo: mask_ipv6(limit.ipv6_prefix).1,
        algorithm: limit.rates.algorithm as u8,
        key: key_kind(limit.key) as u8,
        cost: match limit.unit {
            Unit::Packets => Cost::Packets,
            Unit::Bytes => Cost::Bytes,
            Unit::Connections if limit.concurrent.is_some() => Cost::Open,
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

/// The verdict on a new key while the table is full.
pub const fn on_full(limit: &Limit) -> rule::OnFull {
    match limit.on_full {
        OnFull::Pass => rule::OnFull::Pass,
        OnFull::Throttle => rule::OnFull::Throttle,
        OnFull::Share => rule::OnFull::Share,
    }
}

impl RuleSource {
    /// The row for classes with this multiplier.
    pub fn rule(&self, multiplier: Multiplier, scale: TickScale) -> Rule {
        if self.frame.is_fair() {
            let shift = if self.unit == Unit::Bytes {
                SHIFT_OF_BYTES
            } else {
                0
            };
            return self.frame.fair(shift);
        }
        let multiplier = if multiplier.factor() > self.largest.factor() {
            self.largest
        } else {
            multiplier
        };
        let burst = multiplier.units(self.burst).max(1);
        let limiter = self
            .limiter(multiplier, scale)
            .on_states_of(&self.limiter(self.largest, scale));
        let rule = self
            .frame
            .with_parameters(self.algorithm, limiter.parameters());
        if rule.counts_open() {
            return Rule {
                most: burst.min(MOST_CONCURRENT),
                ..rule
            };
        }
        rule.made_fast().with_holds(scale)
    }

    /// Whether all classes read and write states in one format.
    pub fn shares_format(&self, scale: TickScale) -> bool {
        let shift = |multiplier| self.rule(multiplier, scale).shift;
        self.algorithm.has_burst() || shift(Multiplier::ONE) == shift(self.largest)
    }

    fn limiter(&self, multiplier: Multiplier, scale: TickScale) -> AnyLimiter {
        let rate = multiplier.rate_of(self.algorithm, self.rate);
        let burst = multiplier.units(self.burst).max(1);
        let costs = if self.unit == Unit::Bytes {
            Costs::Many
        } else {
            Costs::Single
        };
        AnyLimiter::new(self.algorithm, rate, burst, costs, scale)
    }
}

const fn key_kind(key: Key) -> KeyKind {
    match key {
        Key::Source => KeyKind::Address,
        Key::SourcePort => KeyKind::AddressPort,
        Key::Class => KeyKind::Class,
        Key::Interface => KeyKind::Interface,
        Key::Asn => KeyKind::Network,
        Key::All => KeyKind::All,
    }
}

/// A prefix's mask in memory, network byte order.
pub fn mask_ipv4(length: u8) -> u32 {
    u32::MAX
        .checked_shl(32 - u32::from(length.min(32)))
        .unwrap_or(0)
        .to_be()
}

/// A prefix's mask in memory, as two words.
pub fn mask_ipv6(length: u8) -> (u64, u64) {
    let mask = u128::MAX
        .checked_shl(128 - u32::from(length.min(128)))
        .unwrap_or(0);
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
        assert_eq!(
            (hi.to_ne_bytes(), lo.to_ne_bytes()),
            ([255; 8], [0xf0, 0, 0, 0, 0, 0, 0, 0])
        );
        assert_eq!(
            (mask_ipv6(0), mask_ipv6(128)),
            ((0, 0), (u64::MAX, u64::MAX))
        );
        let address = Address::from_ipv6([0xff; 16]);
        assert_eq!(
            Address {
                hi: address.hi & hi,
                lo: address.lo & lo
            }
            .octets()[7..10],
            [0xff, 0xf0, 0]
        );
    }
}
