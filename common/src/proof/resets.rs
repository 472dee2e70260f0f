//! Proofs by resets, which require no socket: for forwarded connections, and for listeners that the kernel does not find.
//!
//! A SYN is answered by a SYN-ACK that acknowledges a number before the SYN's own. Its source replies with a reset that
//! repeats the number (RFC 9293, 3.10.7.3), and sends the SYN again. Bits of the number are a keyed hash of the connection
//! and the time, so that nothing is stored for an address that proves nothing, and no proof can be repeated later. The number
//! is at most 32,768 before the SYN's: networks that track connections accept what is within their window.
//!
//! The bound: a forged reset has the right bits once in 16,384 times. A host that is alive, and whose address is forged,
//! resets the answer, too; that proves its address, not its intention.

use super::{Proof, Step};
use crate::packet::Address;
use crate::packet::reply::SynReply;
use crate::siphash::siphash;

/// The bits of a cookie: the highest one is that of its period, the others are the hash's.
const BITS: u32 = 0x7fff;
const PERIOD_BIT: u32 = 1 << 14;
/// A period is 2^36 ns, 69 s; a cookie is valid until the end of the next one.
const PERIOD: u32 = 36;

/// The part of a TCP packet in a proof by resets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A SYN with its number: to be answered, unless its source is known.
    Syn(u32),
    /// A reset with its number: a proof, if it has the cookie's bits.
    Reset(u32),
    /// Any other packet, of a connection.
    Other,
}

impl Part {
    /// From the second and the fourth word of a TCP header.
    #[inline(always)]
    #[must_use]
    pub const fn of(sequence: u32, flags: u32) -> Self {
        const SYN: u32 = 1 << 17;
        const RST: u32 = 1 << 18;
        const ACK: u32 = 1 << 20;
        // As limits on connections see it: whatever its other flags.
        if flags & (SYN | ACK) == SYN {
            Self::Syn(sequence)
        } else if flags & RST != 0 {
            Self::Reset(sequence)
        } else {
            Self::Other
        }
    }
}

/// The state of proofs by resets: clock, secret, limit on answers, and known sources.
pub trait Memory {
    /// Whether the source has proven its address, and its memory has not expired.
    fn is_known(&self, source: Address) -> bool;
    /// Remembers that it has.
    fn learn(&self, source: Address);
    /// Whether one more SYN may be answered.
    fn may_answer(&self) -> bool;
    /// The secret key of cookies.
    fn key(&self) -> [u64; 2];
    /// The time since the host's start, in nanoseconds.
    fn now(&self) -> u64;
}

/// The treatment of a packet from `source` to `destination`, with its ports as a number. Resets are evaluated as without
/// proofs: to the other side of no connection they mean nothing.
#[inline(always)]
pub fn step(
    memory: &impl Memory,
    part: Part,
    source: Address,
    destination: Address,
    ports: u32,
) -> Proof {
    if part == Part::Other || memory.is_known(source) {
        return Proof::NONE;
    }
    if matches!(part, Part::Syn(_)) && !memory.may_answer() {
        return Proof::of(Step::Refuse);
    }
    let mut period = (memory.now() >> PERIOD) as u32;
    if let Part::Reset(sequence) = part {
        period = period.wrapping_sub(u32::from(sequence & PERIOD_BIT != bit_of(period)));
    }
    let words = [
        source.hi,
        source.lo,
        destination.hi,
        destination.lo,
        u64::from(period) << 32 | u64::from(ports),
    ];
    let cookie = siphash(memory.key(), words) as u32 & !PERIOD_BIT | bit_of(period);
    match part {
        Part::Reset(sequence) if (sequence ^ cookie) & BITS == 0 => {
            memory.learn(source);
            Proof::NONE
        }
        Part::Syn(sequence) => Proof::answer(SynReply::challenge(acknowledgment(sequence, cookie))),
        _ => Proof::NONE,
    }
}

#[inline(always)]
const fn bit_of(period: u32) -> u32 {
    (period & 1) * PERIOD_BIT
}

/// The last number before `sequence` with the cookie's bits.
#[inline(always)]
const fn acknowledgment(sequence: u32, cookie: u32) -> u32 {
    let before = sequence.wrapping_sub(1);
    before.wrapping_sub(before.wrapping_sub(cookie) & BITS)
}

/// The address that a proof is for: of IPv6, the network of 64 bits, whose hosts take many addresses.
#[inline(always)]
#[must_use]
pub const fn prover(source: Address, is_ipv4: bool) -> Address {
    Address {
        hi: source.hi,
        lo: if is_ipv4 { source.lo } else { 0 },
    }
}

/// A source that has proven its address, by its hash, with the time of its last SYN or reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Known(pub u64);

impl Known {
    /// The sets of places, a power of two; each is a cache line.
    pub const SETS: u32 = 1 << 15;
    /// The places in a set. A further source takes the place of the one that was silent for longest.
    pub const PLACES: usize = 8;
    const TIME: u64 = 0xff_ffff;
    /// The life of an entry since it was written, in units of 2^30 ns: 10.7 minutes.
    const LIFE: u64 = 600;
    /// The age from which an entry's time is written again: not for every packet, since all CPUs share it.
    const STALE: u64 = 30;

    /// The entry of a source.
    #[inline(always)]
    #[must_use]
    pub const fn new(hash: u64, nanoseconds: u64) -> Self {
        Self(hash & !Self::TIME | (nanoseconds >> 30) & Self::TIME)
    }

    /// The set of a source.
    #[inline(always)]
    #[must_use]
    pub const fn set(hash: u64) -> u32 {
        hash as u32 & (Self::SETS - 1)
    }

    /// Whether it is the source, and when its time is to be written again.
    #[inline(always)]
    #[must_use]
    pub const fn is(self, hash: u64, nanoseconds: u64) -> Option<bool> {
        let age = self.age(nanoseconds);
        if (self.0 ^ hash) & !Self::TIME != 0 || age > Self::LIFE {
            return None;
        }
        Some(age >= Self::STALE)
    }

    /// The time since it was written, in units of 2^30 ns.
    #[inline(always)]
    #[must_use]
    pub const fn age(self, nanoseconds: u64) -> u64 {
        ((nanoseconds >> 30) & Self::TIME).wrapping_sub(self.0 & Self::TIME) & Self::TIME
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::collections::HashSet;

    #[derive(Default)]
    struct Remembered {
        known: RefCell<HashSet<(u64, u64)>>,
        answers: Cell<u32>,
        now: Cell<u64>,
    }

    impl Memory for Remembered {
        fn is_known(&self, source: Address) -> bool {
            self.known.borrow().contains(&(source.hi, source.lo))
        }

        fn learn(&self, source: Address) {
            self.known.borrow_mut().insert((source.hi, source.lo));
        }

        fn may_answer(&self) -> bool {
            self.answers.set(self.answers.get() + 1);
            self.answers.get() <= 100_000
        }

        fn key(&self) -> [u64; 2] {
            [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210]
        }

        fn now(&self) -> u64 {
            self.now.get()
        }
    }

    const SERVER: Address = Address { hi: 0, lo: 7 };
    const PORTS: u32 = 4_000 << 16 | 80;

    fn source(lo: u64) -> Address {
        Address { hi: 0, lo }
    }

    /// The number that a SYN's answer acknowledges.
    fn challenge(memory: &Remembered, sequence: u32, source: Address) -> u32 {
        let proof = step(memory, Part::Syn(sequence), source, SERVER, PORTS);
        assert!(proof.is(Step::Answer) && proof.reply().is_challenge());
        proof.reply().number()
    }

    #[test]
    fn a_source_that_repeats_the_number_is_known_and_others_are_not() {
        let memory = Remembered::default();
        let number = challenge(&memory, 1_000, source(1));
        assert_eq!(
            step(&memory, Part::Reset(number), source(1), SERVER, PORTS),
            Proof::NONE
        );
        assert_eq!(
            step(&memory, Part::Syn(1_000), source(1), SERVER, PORTS),
            Proof::NONE
        );
        assert!(memory.is_known(source(1)) && !memory.is_known(source(2)));
        // Another's number, and that of another connection.
        let number = challenge(&memory, 1_000, source(2));
        let _ = step(&memory, Part::Reset(number ^ 1), source(2), SERVER, PORTS);
        let _ = step(&memory, Part::Reset(number), source(3), SERVER, PORTS);
        let _ = step(&memory, Part::Reset(number), source(2), SERVER, PORTS + 1);
        assert!(!memory.is_known(source(2)) && !memory.is_known(source(3)));
    }

    #[test]
    fn the_number_is_before_the_syns_and_within_every_window() {
        let memory = Remembered::default();
        for sequence in [0, 1, 32_767, 32_768, 1 << 31, u32::MAX]
            .into_iter()
            .chain((0..1_000).map(|nth| nth * 4_294_967))
        {
            let distance = sequence.wrapping_sub(challenge(&memory, sequence, source(9)));
            assert!((1..=32_768).contains(&distance), "{sequence}: {distance}");
        }
    }

    #[test]
    fn a_proof_is_valid_for_one_to_two_periods() {
        const SECOND: u64 = 1_000_000_000;
        // Of each instant within a period and of each parity: how long a number is accepted.
        for made in [500, 530, 568, 600, 637].map(|seconds| seconds * SECOND) {
            let life = (0..300u64).filter(|seconds| {
                let memory = Remembered {
                    now: Cell::new(made),
                    ..Remembered::default()
                };
                let number = challenge(&memory, 1_000, source(1));
                memory.now.set(made + seconds * SECOND);
                let _ = step(&memory, Part::Reset(number), source(1), SERVER, PORTS);
                memory.is_known(source(1))
            });
            let life: Vec<u64> = life.collect();
            let last = *life.last().unwrap();
            assert!(
                (68..=138).contains(&last) && life.len() as u64 == last + 1,
                "{made}: {life:?}"
            );
        }
    }

    #[test]
    fn guesses_prove_one_in_16384() {
        let memory = Remembered::default();
        let sources = 1 << 20;
        for nth in 0u32..sources {
            let _ = step(
                &memory,
                Part::Reset(nth.wrapping_mul(0x9e37_79b9)),
                source(nth.into()),
                SERVER,
                PORTS,
            );
        }
        // 64 are expected: of a million, half have the bit of the period before, whose hash counts as well. Of such a
        // binomial distribution, fewer than 28 or more than 112 have a probability below 1e-6.
        let guessed = memory.known.borrow().len();
        assert!((28..=112).contains(&guessed), "{guessed}");
    }

    #[test]
    fn answers_have_a_limit_and_packets_of_connections_pass() {
        let memory = Remembered {
            answers: Cell::new(100_000),
            ..Remembered::default()
        };
        assert!(step(&memory, Part::Syn(5), source(1), SERVER, PORTS).is(Step::Refuse));
        assert_eq!(
            step(&memory, Part::Other, source(1), SERVER, PORTS),
            Proof::NONE
        );
    }

    #[test]
    fn parts_are_known_by_their_flags() {
        for (flags, part) in [
            (0b00_0010, Part::Syn(7)),
            (0b00_0011, Part::Syn(7)),
            (0b01_0010, Part::Other),
            (0b01_0000, Part::Other),
            (0b00_0100, Part::Reset(7)),
            (0b01_0100, Part::Reset(7)),
            (0b00_0110, Part::Syn(7)),
        ] {
            assert_eq!(
                Part::of(7, 5 << 28 | flags << 16 | 0xffff),
                part,
                "{flags:06b}"
            );
        }
    }

    #[test]
    fn a_source_is_known_for_ten_minutes_after_its_last_connection() {
        const SECOND: u64 = 1_000_000_000;
        let (hash, then) = (0x1234_5678_9abc_def0, 77_000 * SECOND);
        let known = Known::new(hash, then);
        assert_eq!(known.is(hash, then + 10 * SECOND), Some(false));
        assert_eq!(known.is(hash, then + 60 * SECOND), Some(true));
        assert_eq!(known.is(hash, then + 600 * SECOND), Some(true));
        assert_eq!(known.is(hash, then + 650 * SECOND), None);
        assert_eq!(known.is(hash ^ 1 << 24, then), None);
        assert_eq!(Known(0).is(hash, then), None);
        assert_eq!(
            (
                known.age(then + 600 * SECOND),
                Known::set(hash) < Known::SETS
            ),
            (559, true)
        );
    }

    #[test]
    fn hosts_of_one_ipv6_network_are_one_prover() {
        let address = Address {
            hi: 0x20,
            lo: 0x1234,
        };
        assert_eq!(prover(address, false), Address { hi: 0x20, lo: 0 });
        assert_eq!(prover(address, true), address);
    }
}
