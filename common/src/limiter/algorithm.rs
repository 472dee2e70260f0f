//! The list of algorithms, and a limiter of any of them.

use core::fmt;

use super::leaky_bucket::LeakyBucket;
use super::migration::Instants;
use super::moves::Moves;
use super::parameters::{Parameters, Parametric};
use super::rate::{Costs, Rate};
use super::rate_algorithm::RateAlgorithm;
use super::refund::Refund;
use super::token_bucket::TokenBucket;
use crate::share::Share;
use crate::time::{TickScale, Ticks};

/// Every algorithm beside the two buckets, with its number in a rule's row. A new one is a line here.
///
/// The kernel compares a rule's number with these in turn, and takes it for a bucket if none is equal.
macro_rules! algorithms {
    ($generate:ident! $($arguments:tt)*) => {
        $generate! { [$($arguments)*] FixedWindow = 2, SlidingWindow = 3, SlidingLog = 4 }
    };
}
pub(crate) use algorithms;

/// Defines what has an arm for each algorithm.
macro_rules! define {
    ([] $($name:ident = $number:literal),+) => {
        /// How a limit counts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Algorithm {
            /// [`TokenBucket`].
            TokenBucket = 0,
            /// [`LeakyBucket`].
            LeakyBucket = 1,
            $(#[doc = concat!("[`", stringify!($name), "`](crate::limiter::", stringify!($name), ").")] $name = $number,)+
        }

        impl Algorithm {
            /// Every algorithm, in the order of their numbers.
            pub const ALL: &'static [Self] = &[Self::TokenBucket, Self::LeakyBucket, $(Self::$name),+];
            /// Every name with its algorithm, in that order.
            pub const WORDS: &'static [(&'static str, Self)] = &[
                (TokenBucket::NAME, Self::TokenBucket),
                (LeakyBucket::NAME, Self::LeakyBucket),
                $(($crate::limiter::$name::NAME, Self::$name)),+
            ];

            /// The algorithm with this number in a row. All others are token buckets.
            #[must_use]
            pub const fn from_number(number: u8) -> Self {
                match number {
                    1 => Self::LeakyBucket,
                    $($number => Self::$name,)+
                    _ => Self::TokenBucket,
                }
            }

            /// In the config, in JSON and in metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    Self::TokenBucket => TokenBucket::NAME,
                    Self::LeakyBucket => LeakyBucket::NAME,
                    $(Self::$name => $crate::limiter::$name::NAME,)+
                }
            }

            /// Whether a limit can delay packets instead of refusing them.
            #[must_use]
            pub const fn can_shape(self) -> bool {
                match self {
                    Self::TokenBucket => TokenBucket::CAN_SHAPE,
                    Self::LeakyBucket => LeakyBucket::CAN_SHAPE,
                    $(Self::$name => $crate::limiter::$name::CAN_SHAPE,)+
                }
            }
        }

        /// A limiter of any algorithm.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum AnyLimiter {
            /// A token bucket, or a leaky one, which is the same arithmetic.
            Bucket(TokenBucket),
            $(#[doc = concat!("[`", stringify!($name), "`](crate::limiter::", stringify!($name), ").")] $name($crate::limiter::$name),)+
        }

        impl AnyLimiter {
            /// The limiter for a rate. Algorithms without a burst ignore it.
            #[must_use]
            pub fn new(algorithm: Algorithm, rate: Rate, burst: u64, costs: Costs, scale: TickScale) -> Self {
                match algorithm {
                    Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                        Self::Bucket(TokenBucket::build(rate, burst, costs, scale))
                    }
                    $(Algorithm::$name => Self::$name($crate::limiter::$name::build(rate, burst, costs, scale)),)+
                }
            }

            /// The limiter in a row.
            #[must_use]
            pub fn from_parameters(algorithm: Algorithm, parameters: Parameters) -> Self {
                match algorithm {
                    Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                        Self::Bucket(TokenBucket::from_parameters(parameters))
                    }
                    $(Algorithm::$name => Self::$name($crate::limiter::$name::from_parameters(parameters)),)+
                }
            }

            /// [`RateAlgorithm::with_room_for_debt`].
            #[must_use]
            pub fn with_room_for_debt(&self) -> Self {
                match self {
                    Self::Bucket(limiter) => Self::Bucket(limiter.with_room_for_debt()),
                    $(Self::$name(limiter) => Self::$name(limiter.with_room_for_debt()),)+
                }
            }

            /// [`RateAlgorithm::without_room_for_debt`].
            #[must_use]
            pub fn without_room_for_debt(&self) -> Self {
                match self {
                    Self::Bucket(limiter) => Self::Bucket(limiter.without_room_for_debt()),
                    $(Self::$name(limiter) => Self::$name(limiter.without_room_for_debt()),)+
                }
            }

            /// [`RateAlgorithm::on_states_of`], of the same algorithm.
            #[must_use]
            pub fn on_states_of(&self, larger: &Self) -> Self {
                match (self, larger) {
                    $((Self::$name(limiter), Self::$name(larger)) => Self::$name(limiter.on_states_of(larger)),)+
                    _ => *self,
                }
            }

            /// The limiter of a host that has this share of it; states go on under any share.
            #[must_use]
            pub fn at_share(&self, share: Share) -> Self {
                match self {
                    Self::Bucket(limiter) => Self::Bucket(RateAlgorithm::at_share(limiter, share)),
                    $(Self::$name(limiter) => Self::$name(RateAlgorithm::at_share(limiter, share)),)+
                }
            }

            /// Writes into `words`, the state of a new key, what a state under the limiter `old` has used, in units.
            /// Nothing if that is of another algorithm.
            pub fn migrate(&self, old: &Self, old_words: &[u64], words: &mut [u64], now: Instants) {
                match (old, self) {
                    (Self::Bucket(old), Self::Bucket(new)) => new.migrate(old, old_words, words, now),
                    $((Self::$name(old), Self::$name(new)) => new.migrate(old, old_words, words, now),)+
                    _ => {}
                }
            }
        }

        /// A limiter whose algorithm a rule can name.
        pub trait Listed: Parametric {
            /// The algorithm.
            const ALGORITHM: Algorithm;
        }

        impl Listed for TokenBucket {
            const ALGORITHM: Algorithm = Algorithm::TokenBucket;
        }

        impl Listed for LeakyBucket {
            const ALGORITHM: Algorithm = Algorithm::LeakyBucket;
        }

        $(impl Listed for $crate::limiter::$name {
            const ALGORITHM: Algorithm = Algorithm::$name;
        })+
    };
}
algorithms!(define!);

/// Evaluates an expression with the type of an algorithm's limiters.
macro_rules! of_type {
    ([$algorithm:expr, $type:ident => $body:expr] $($name:ident = $number:literal),+) => {
        match $algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                type $type = TokenBucket;
                $body
            }
            $(Algorithm::$name => {
                type $type = $crate::limiter::$name;
                $body
            })+
        }
    };
}

/// Evaluates an expression with the limiter, whatever its algorithm.
macro_rules! of_limiter {
    ([$any:expr, $limiter:ident => $body:expr] $($name:ident = $number:literal),+) => {
        match $any {
            AnyLimiter::Bucket($limiter) => $body,
            $(AnyLimiter::$name($limiter) => $body,)+
        }
    };
}

impl Algorithm {
    /// [`RateAlgorithm::HAS_BURST`].
    #[must_use]
    pub const fn has_burst(self) -> bool {
        algorithms!(of_type! self, L => L::HAS_BURST)
    }

    /// [`RateAlgorithm::WORDS`].
    #[must_use]
    pub const fn state_words(self) -> u32 {
        algorithms!(of_type! self, L => L::WORDS)
    }

    /// [`RateAlgorithm::HAS_RING`].
    #[must_use]
    pub const fn has_ring(self) -> bool {
        algorithms!(of_type! self, L => L::HAS_RING)
    }

    /// Words of the ring of a limit with this N.
    #[must_use]
    pub fn ring_words(self, count: u64) -> usize {
        if self.has_ring() {
            count.min(self.largest_count()) as usize
        } else {
            0
        }
    }

    /// [`RateAlgorithm::LARGEST_COUNT`].
    #[must_use]
    pub const fn largest_count(self) -> u64 {
        algorithms!(of_type! self, L => L::LARGEST_COUNT)
    }

    /// [`RateAlgorithm::COUNTS_BYTES`].
    #[must_use]
    pub const fn counts_bytes(self) -> bool {
        algorithms!(of_type! self, L => L::COUNTS_BYTES)
    }

    /// [`RateAlgorithm::MOVES`].
    #[must_use]
    pub const fn moves(self) -> Moves {
        algorithms!(of_type! self, L => L::MOVES)
    }

    /// [`RateAlgorithm::PARTIAL_WINDOWS`].
    #[must_use]
    pub const fn partial_windows(self) -> u32 {
        algorithms!(of_type! self, L => L::PARTIAL_WINDOWS)
    }

    /// [`RateAlgorithm::longest_life`].
    #[must_use]
    pub fn longest_life(self, rate: Rate, burst: u64) -> u128 {
        algorithms!(of_type! self, L => L::longest_life(rate, burst))
    }
}

impl Algorithm {
    /// The name in a sentence.
    #[must_use]
    pub fn noun(self) -> impl fmt::Display {
        struct Noun(Algorithm);
        impl fmt::Display for Noun {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                let (first, second) = self.0.name().split_once('-').unwrap_or((self.0.name(), ""));
                write!(formatter, "{first} {second}")
            }
        }
        Noun(self)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl AnyLimiter {
    /// The limiter's part of a rule's row.
    #[must_use]
    pub fn parameters(&self) -> Parameters {
        algorithms!(of_limiter! self, limiter => limiter.parameters())
    }

    /// Words of state in a slot.
    #[must_use]
    pub const fn state_words(&self) -> usize {
        algorithms!(of_limiter! self, limiter => words_of(limiter))
    }

    /// Words of a whole state, with its ring.
    #[must_use]
    pub fn words(&self) -> usize {
        self.state_words() + algorithms!(of_limiter! self, limiter => ring_words_of(limiter))
    }

    /// The largest cost that can ever pass, in units.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.parameters().most
    }

    /// Whether the allowance flows back continuously, up to a burst.
    #[must_use]
    pub const fn is_bucket(&self) -> bool {
        matches!(self, Self::Bucket(_))
    }

    /// [`RateAlgorithm::is_representable`].
    #[must_use]
    pub fn is_representable(&self) -> bool {
        algorithms!(of_limiter! self, limiter => RateAlgorithm::is_representable(limiter))
    }

    /// [`RateAlgorithm::is_precise`].
    #[must_use]
    pub fn is_precise(&self) -> bool {
        algorithms!(of_limiter! self, limiter => limiter.is_precise())
    }

    /// [`RateAlgorithm::opening`].
    #[must_use]
    pub fn opening(&self, initial: u64) -> Ticks {
        algorithms!(of_limiter! self, limiter => limiter.opening(initial))
    }

    /// [`RateAlgorithm::open`].
    pub fn open(&self, words: &mut [u64], now: Ticks) {
        algorithms!(of_limiter! self, limiter => limiter.open(words, now));
    }

    /// [`RateAlgorithm::conforms`].
    #[must_use]
    pub fn conforms(&self, words: &[u64], now: Ticks, cost: u64) -> bool {
        algorithms!(of_limiter! self, limiter => limiter.conforms(words, now, cost))
    }

    /// [`RateAlgorithm::charge`].
    #[inline]
    pub fn charge(&self, words: &mut [u64], now: Ticks, cost: u64) -> bool {
        algorithms!(of_limiter! self, limiter => RateAlgorithm::charge(limiter, words, now, cost))
    }

    /// [`RateAlgorithm::charge_beyond`].
    pub fn charge_beyond(&self, words: &mut [u64], until: Ticks, cost: u64) {
        algorithms!(of_limiter! self, limiter => RateAlgorithm::charge_beyond(limiter, words, until, cost));
    }

    /// [`RateAlgorithm::force`].
    pub fn force(&self, words: &mut [u64], now: Ticks, cost: u64) {
        algorithms!(of_limiter! self, limiter => RateAlgorithm::force(limiter, words, now, cost));
    }

    /// [`RateAlgorithm::refund`].
    pub fn refund(&self, words: &mut [u64], now: Ticks, refund: Refund) {
        algorithms!(of_limiter! self, limiter => RateAlgorithm::refund(limiter, words, now, refund));
    }

    /// [`RateAlgorithm::debt`].
    #[must_use]
    pub fn debt(&self, words: &[u64], now: Ticks) -> u64 {
        algorithms!(of_limiter! self, limiter => RateAlgorithm::debt(limiter, words, now))
    }

    /// Empties a bucket that owes units, for packets: they are charged only if they conform, so that only another rate makes
    /// debts of theirs, and a lower one shall not refuse a source for longer than an empty bucket does.
    pub fn forget_debt(&self, words: &mut [u64], now: Ticks) {
        if let (Self::Bucket(bucket), Some(state)) = (self, words.first_mut()) {
            *state = bucket.without_debt(*state, now);
        }
    }

    /// [`RateAlgorithm::give_back`].
    pub fn give_back(&self, words: &mut [u64], now: Ticks, cost: u64) {
        algorithms!(of_limiter! self, limiter => RateAlgorithm::give_back(limiter, words, now, cost));
    }

    /// [`RateAlgorithm::remaining`].
    #[must_use]
    pub fn remaining(&self, words: &[u64], now: Ticks) -> u64 {
        algorithms!(of_limiter! self, limiter => RateAlgorithm::remaining(limiter, words, now))
    }

    /// [`RateAlgorithm::wait`].
    #[must_use]
    pub fn wait(&self, words: &[u64], now: Ticks, cost: u64) -> Option<Ticks> {
        algorithms!(of_limiter! self, limiter => RateAlgorithm::wait(limiter, words, now, cost))
    }

    /// [`RateAlgorithm::wait_for_one`].
    #[must_use]
    pub fn wait_for_one(&self, words: &[u64], now: Ticks) -> Ticks {
        algorithms!(of_limiter! self, limiter => limiter.wait_for_one(words, now))
    }

    /// [`RateAlgorithm::refilled_in`].
    #[must_use]
    pub fn refilled_in(&self, ticks: Ticks) -> f64 {
        algorithms!(of_limiter! self, limiter => limiter.refilled_in(ticks))
    }

    /// [`RateAlgorithm::alignable_window`].
    #[must_use]
    pub fn alignable_window(&self) -> Option<Ticks> {
        algorithms!(of_limiter! self, limiter => limiter.alignable_window())
    }

    /// [`RateAlgorithm::align`].
    pub fn align(&self, words: &mut [u64], now: Ticks, begun: Ticks) {
        algorithms!(of_limiter! self, limiter => limiter.align(words, now, begun));
    }

    /// [`RateAlgorithm::merge`].
    #[must_use]
    pub fn merge(&self, current: u64, then: u64, last: u64, now: Ticks) -> u64 {
        if current == then {
            return last;
        }
        algorithms!(of_limiter! self, limiter => limiter.merge(current, then, last, now))
    }
}

const fn words_of<L: RateAlgorithm>(_: &L) -> usize {
    L::WORDS as usize
}

fn ring_words_of<L: RateAlgorithm>(limiter: &L) -> usize {
    if L::HAS_RING {
        limiter.parameters().tolerance as usize
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_is_found_by_its_number_and_name() {
        for (nth, algorithm) in Algorithm::ALL.iter().copied().enumerate() {
            assert_eq!(algorithm as usize, nth);
            assert_eq!(Algorithm::from_number(nth as u8), algorithm);
            assert_eq!(Algorithm::WORDS[nth], (algorithm.name(), algorithm));
        }
    }

    #[test]
    fn a_row_holds_a_limiter_of_any_algorithm() {
        for algorithm in Algorithm::ALL {
            let scale =
                TickScale::for_longest_life(algorithm.longest_life(Rate::per_second(100), 70));
            for costs in [Costs::Single, Costs::Many] {
                let limiter = AnyLimiter::new(*algorithm, Rate::per_second(100), 70, costs, scale);
                assert_eq!(
                    AnyLimiter::from_parameters(*algorithm, limiter.parameters()),
                    limiter
                );
                assert_eq!(limiter.most(), if algorithm.has_burst() { 70 } else { 100 });
            }
        }
    }
}
