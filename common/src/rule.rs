//! A limit for the packet path: one precomputed row, one cache line.
//!
//! A limit with tiers is several rules, a soft or elastic one is two. All rules for one packet are adjacent (a
//! [`RuleSpan`]), those of one key next to each other.

use crate::fair::{Level, Word, Words};
use crate::key::Key;
use crate::limiter::{Algorithm, AnyLimiter, Listed, Moves, Parameters, Parametric, TokenBucket};
use crate::share::Share;
use crate::time::{HORIZON, TickScale};

/// The most rules for one packet.
pub const MAX_RULES: u32 = 16;

/// The key of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum KeyKind {
    /// The remote address: the source on ingress, the destination on egress.
    Address = 0,
    /// The address and the local port.
    AddressPort = 1,
    /// The class of the address.
    Class = 2,
    /// The interface.
    Interface = 3,
    /// The network (autonomous system) of the address; the address if it is in none.
    Network = 4,
    /// Everything that the rule applies to.
    All = 5,
}

/// The cost of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cost {
    /// 1: it is a connection or a request.
    One = 0,
    /// Its bytes on the wire.
    Bytes = 1,
    /// The packets on the wire that it represents: merged packets count separately.
    Packets = 2,
    /// 1, as long as its connection is open: see [`crate::connections`].
    Open = 3,
}

/// The action on a packet that does not conform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Enforcement {
    /// It is refused.
    Enforce = 0,
    /// It is counted as one that would be refused, and passes.
    Observe = 1,
    /// It is counted as over the limit; the next rule decides.
    Soft = 2,
    /// Like `Soft` while the host has spare CPU time, else like `Enforce`.
    Elastic = 3,
    /// It is counted as over the limit, and passes, marked.
    Mark = 4,
    /// It is refused. The agent changes the rate while packets are evaluated, or switches the rule off: see
    /// [`crate::fair`].
    Fair = 5,
}

/// The action on a new key without room in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum OnFull {
    /// Its packets pass uncounted.
    Pass = 0,
    /// Its packets are refused.
    Throttle = 1,
    /// It shares one bucket with all other keys without room.
    Share = 2,
}

/// A rule's action on packets besides passing and dropping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Action {
    /// Refused packets are dropped.
    Drop = 0,
    /// Refused packets are answered: TCP reset, or ICMP administratively prohibited.
    Reject = 1,
    /// Conforming packets wait for their departure time (egress).
    Shape = 2,
}

/// One row of the map of rules. Enums are stored as bytes, since every bit pattern is valid in a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Rule {
    /// [`Parameters::interval`].
    pub interval: u64,
    /// [`Parameters::tolerance`].
    pub tolerance: u64,
    /// [`Parameters::most`].
    pub most: u64,
    /// The limit's IPv6 prefix, as a mask in network byte order.
    pub mask_hi: u64,
    /// Its second half.
    pub mask_lo: u64,
    /// The limit's IPv4 prefix, as a mask in network byte order.
    pub mask_ipv4: u32,
    /// Index of the counters of this rule.
    pub counter: u32,
    /// The group of limits that shares a slot: [`Key::group`].
    pub group: u16,
    /// The offset of this rule's log in the slot's part of the rings, in words. Of a fair rule, which has no log, the number of
    /// fair rules before it in the span.
    pub ring: u16,
    /// [`Algorithm`].
    pub algorithm: u8,
    /// [`KeyKind`].
    pub key: u8,
    /// [`Cost`].
    pub cost: u8,
    /// First word of the state in the slot, 1 to 7.
    pub position: u8,
    /// [`Parameters::shift`].
    pub shift: u8,
    /// [`Parameters::share_shift`].
    pub share_shift: u8,
    /// [`Enforcement`].
    pub enforcement: u8,
    /// The group's behaviour while the table is full: [`OnFull`], [`Moves`] and slowness, see [`Rule::when_full`].
    pub on_full: u8,
    /// [`Action`].
    pub action: u8,
    /// 1: the first rule of its key in the span.
    pub opens_key: u8,
    /// Not 0: the last rule of its key in the span. Bit n is set if a rule of this key in the span has its state at word n.
    pub closes_key: u8,
    /// Not 0: the fast path can evaluate the rule with one read of the state and one compare-and-swap; see
    /// [`Rule::made_fast`]. Bit 1: it may be charged by holds, see [`Rule::has_holds`]. Bit 2: see [`Rule::counts_by_cpu`].
    pub is_fast: u8,
}

impl Rule {
    /// The bits of `is_fast` for holds, and for counts by CPU.
    const HOLDS: u8 = 2;
    const COUNTS_BY_CPU: u8 = 4;
    /// The bit of `on_full` for rules of levels.
    const LEVEL: u8 = 1 << 5;
    /// The bits of `on_full` for rules of limits that ban, and for those whose refused SYNs count towards a ban.
    const BANS: u8 = 1 << 6;
    const BANS_BY_SYNS: u8 = 1 << 7;

    /// A rule without effect, the base of other rows.
    pub const EMPTY: Self = Self {
        interval: 1,
        tolerance: 0,
        most: 0,
        mask_hi: 0,
        mask_lo: 0,
        mask_ipv4: 0,
        counter: 0,
        group: 0,
        ring: 0,
        algorithm: 0,
        key: 0,
        cost: 0,
        position: 1,
        shift: 0,
        share_shift: 0,
        enforcement: 0,
        on_full: 0,
        action: 0,
        opens_key: 1,
        closes_key: 1,
        is_fast: 0,
    };

    /// Sets `is_fast` by the other fields: a ring is searched, and a delayed or marked packet needs more than whether it
    /// passes.
    #[must_use]
    pub const fn made_fast(self) -> Self {
        let is_fast = !Algorithm::from_number(self.algorithm).has_ring()
            && self.action != Action::Shape as u8
            && self.enforcement != Enforcement::Mark as u8
            && self.enforcement != Enforcement::Fair as u8;
        Self {
            is_fast: if is_fast {
                self.is_fast & Self::COUNTS_BY_CPU | 1
            } else {
                0
            },
            ..self
        }
    }

    /// Sets whether CPUs may count a key by themselves for a while, before [`Rule::made_fast`]. Not under limits whose exact counts
    /// have consequences: those with bans, and those that publish use to other hosts.
    #[must_use]
    pub const fn counting_by_cpu(self, may: bool) -> Self {
        Self {
            is_fast: if may { Self::COUNTS_BY_CPU } else { 0 },
            ..self
        }
    }

    /// Whether CPUs may count a key by themselves for a while: [`crate::hot`].
    #[inline(always)]
    #[must_use]
    pub const fn counts_by_cpu(&self) -> bool {
        self.is_fast & Self::COUNTS_BY_CPU != 0
    }

    /// Fills in whether it may be charged by holds: a fast bucket that has a verdict for each packet and no more.
    #[must_use]
    pub fn with_holds(self, scale: TickScale) -> Self {
        let may = self.counts_by_cpu()
            && self.is_bucket()
            && self.enforcement == Enforcement::Enforce as u8
            && has_holds(&self.token_bucket(), scale);
        Self {
            is_fast: self.is_fast | if may { Self::HOLDS } else { 0 },
            ..self
        }
    }

    /// The row of a fair rule, switched off: the words of its parameters are those of [`crate::fair::Words`].
    #[must_use]
    pub const fn fair(self, shift: u8) -> Self {
        Self {
            interval: Level::OFF.to_bits(),
            tolerance: 0,
            most: 0,
            shift,
            share_shift: 0,
            enforcement: Enforcement::Fair as u8,
            is_fast: 0,
            ..self
        }
    }

    /// The words of a fair rule that nobody changes meanwhile.
    #[inline(always)]
    #[must_use]
    pub fn fair_words(&self) -> Words {
        Words::read(|word| match word {
            Word::Until => self.tolerance,
            Word::Level => self.interval,
            Word::Rest => self.most,
        })
    }

    /// The row with these words.
    #[must_use]
    pub const fn with_fair_words(self, words: Words) -> Self {
        Self {
            tolerance: words.until,
            interval: words.level.to_bits(),
            most: words.rest(),
            ..self
        }
    }

    /// A fair rule at a level, as a bucket whose allowance can be read: of more than four billion units if the level is off.
    #[must_use]
    pub fn at_level(&self, level: Level) -> Self {
        if level.is_off() {
            return Self {
                interval: 1,
                tolerance: HORIZON / 2,
                most: u64::from(u32::MAX),
                shift: 0,
                ..*self
            };
        }
        self.with_parameters(
            Algorithm::TokenBucket,
            level.bucket(self.shift).parameters(),
        )
    }

    /// Whether the agent changes its rate while packets are evaluated.
    #[inline(always)]
    #[must_use]
    pub const fn is_fair(&self) -> bool {
        self.enforcement == Enforcement::Fair as u8
    }

    /// The same without holds.
    #[must_use]
    pub const fn without_holds(self) -> Self {
        Self {
            is_fast: self.is_fast & !Self::HOLDS,
            ..self
        }
    }

    /// Whether CPUs may charge it by holds: [`crate::hot`].
    #[inline(always)]
    #[must_use]
    pub const fn has_holds(&self) -> bool {
        self.is_fast & Self::HOLDS != 0
    }

    /// Sets the handling of new keys while the table is full. `is_slow`: its group leaves some slots to others, whose
    /// states live much shorter.
    #[must_use]
    pub const fn when_full(self, on_full: OnFull, moves: Moves, is_slow: bool) -> Self {
        Self {
            on_full: on_full as u8 | (moves as u8) << 2 | (is_slow as u8) << 4,
            ..self
        }
    }

    /// Whether this is the handling of new keys while the table is full.
    #[inline(always)]
    #[must_use]
    pub const fn does_on_full(&self, on_full: OnFull) -> bool {
        self.on_full & 3 == on_full as u8
    }

    /// The rule of a level, a wider key of its limit: its samples record how many sources it refuses.
    #[must_use]
    pub const fn of_level(self, is_level: bool) -> Self {
        Self {
            on_full: self.on_full & !Self::LEVEL | if is_level { Self::LEVEL } else { 0 },
            ..self
        }
    }

    /// The rule of a limit whose refusals may ban a source, and whether SYNs count.
    #[must_use]
    pub const fn escalating(self, bans: bool, by_syns: bool) -> Self {
        let bits = if bans { Self::BANS } else { 0 }
            | if bans && by_syns {
                Self::BANS_BY_SYNS
            } else {
                0
            };
        Self {
            on_full: self.on_full & !(Self::BANS | Self::BANS_BY_SYNS) | bits,
            ..self
        }
    }

    /// Whether refusals by the rule may ban a source.
    #[inline(always)]
    #[must_use]
    pub const fn escalates(&self) -> bool {
        self.on_full & Self::BANS != 0
    }

    /// Whether refused SYNs count towards a ban; see [`crate::escalation`].
    #[inline(always)]
    #[must_use]
    pub const fn bans_by_syns(&self) -> bool {
        self.on_full & Self::BANS_BY_SYNS != 0
    }

    /// Whether it is the rule of a level.
    #[inline(always)]
    #[must_use]
    pub const fn is_of_level(&self) -> bool {
        self.on_full & Self::LEVEL != 0
    }

    /// How states of its group may be moved.
    #[inline(always)]
    #[must_use]
    pub const fn moves(&self) -> Moves {
        Moves::from_bits(self.on_full >> 2)
    }

    /// Whether its group leaves some slots to others.
    #[inline(always)]
    #[must_use]
    pub const fn is_slow(&self) -> bool {
        self.on_full & 1 << 4 != 0
    }

    /// The cost of a frame of this size, in the rule's unit.
    #[inline(always)]
    #[must_use]
    pub fn cost_of(&self, size: Size) -> u64 {
        if self.cost == Cost::Bytes as u8 {
            u64::from(size.bytes)
        } else if self.cost == Cost::Packets as u8 {
            u64::from(size.packets)
        } else {
            1
        }
    }

    /// Whether the rule counts open connections, and has no state in the table.
    #[inline(always)]
    #[must_use]
    pub const fn counts_open(&self) -> bool {
        self.cost == Cost::Open as u8
    }

    /// Whether the rule may refuse a packet, now or while the host has no spare CPU time.
    #[inline(always)]
    #[must_use]
    pub const fn may_refuse(&self) -> bool {
        self.enforcement != Enforcement::Observe as u8
            && self.enforcement != Enforcement::Mark as u8
    }

    /// Words of state in the slot.
    #[must_use]
    pub const fn words(&self) -> usize {
        Algorithm::from_number(self.algorithm).state_words() as usize
    }

    /// Words of the ring, beside the slot.
    #[must_use]
    pub fn ring_words(&self) -> usize {
        Algorithm::from_number(self.algorithm).ring_words(self.tolerance)
    }

    /// Whether the rule runs this algorithm.
    #[inline(always)]
    #[must_use]
    pub const fn is(&self, algorithm: Algorithm) -> bool {
        self.algorithm == algorithm as u8
    }

    /// Whether the rule is a token bucket, or a leaky one, which is the same arithmetic.
    #[inline(always)]
    #[must_use]
    pub const fn is_bucket(&self) -> bool {
        self.algorithm <= Algorithm::LeakyBucket as u8
    }

    /// The limiter's part of the row.
    #[inline(always)]
    #[must_use]
    pub const fn parameters(&self) -> Parameters {
        Parameters {
            interval: self.interval,
            tolerance: self.tolerance,
            most: self.most,
            shift: self.shift,
            share_shift: self.share_shift,
        }
    }

    /// The rule as a limiter of this type: it has to be the rule's.
    #[inline(always)]
    #[must_use]
    pub fn limiter<L: Parametric>(&self) -> L {
        L::from_parameters(self.parameters())
    }

    /// The rule as a token bucket: it has to be a bucket.
    #[inline(always)]
    #[must_use]
    pub fn token_bucket(&self) -> TokenBucket {
        self.limiter()
    }

    /// The rule's limiter, whatever its algorithm.
    #[must_use]
    pub fn any_limiter(&self) -> AnyLimiter {
        AnyLimiter::from_parameters(Algorithm::from_number(self.algorithm), self.parameters())
    }

    /// Fills in a limiter.
    #[must_use]
    pub fn with<L: Listed>(self, limiter: L) -> Self {
        self.with_parameters(L::ALGORITHM, limiter.parameters())
    }

    /// Fills in a limiter's parameters.
    #[must_use]
    pub const fn with_parameters(self, algorithm: Algorithm, parameters: Parameters) -> Self {
        let Parameters {
            interval,
            tolerance,
            most,
            shift,
            share_shift,
        } = parameters;
        Self {
            algorithm: algorithm as u8,
            interval,
            tolerance,
            most,
            shift,
            share_shift,
            ..self
        }
    }

    /// The row of a host that has this share of the rule. Nothing but `interval` and `most` differ.
    #[must_use]
    pub fn at_share(&self, share: Share) -> Self {
        let Parameters { interval, most, .. } = self.any_limiter().at_share(share).parameters();
        Self {
            interval,
            most,
            ..*self
        }
    }

    /// The key of `subject`.
    #[inline(always)]
    #[must_use]
    pub fn key_of(&self, subject: &Subject) -> Key {
        let group = u32::from(self.group);
        if self.key >= KeyKind::Class as u8 {
            let extra = if self.key == KeyKind::Class as u8 {
                subject.class
            } else if self.key == KeyKind::Interface as u8 {
                subject.interface
            } else if self.key == KeyKind::Network as u8 {
                subject.network
            } else {
                0
            };
            if extra != 0 || self.key != KeyKind::Network as u8 {
                return Key {
                    hi: 0,
                    lo: 0,
                    extra,
                    group,
                };
            }
        }
        let (hi, lo) = if subject.is_ipv4 != 0 {
            // The first half of the second word is the prefix of IPv4-mapped addresses.
            (
                subject.hi,
                subject.lo & (u64::from(self.mask_ipv4) << 32 | 0xffff_ffff),
            )
        } else {
            (subject.hi & self.mask_hi, subject.lo & self.mask_lo)
        };
        let extra = if self.key == KeyKind::AddressPort as u8 {
            subject.local_port
        } else {
            0
        };
        Key {
            hi,
            lo,
            extra,
            group,
        }
    }
}

/// The fields of a packet that rules evaluate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Subject {
    /// First half of the remote address, in network byte order, IPv4-mapped for IPv4.
    pub hi: u64,
    /// Second half.
    pub lo: u64,
    /// 1: IPv4, and its mask applies; 0: IPv6.
    pub is_ipv4: u32,
    /// The port on this host, in host byte order; 0 if it has none.
    pub local_port: u32,
    /// The class of the address.
    pub class: u32,
    /// The interface's index.
    pub interface: u32,
    /// The network of the address ([`crate::network`]), if a limit requires it; 0 if it is in none.
    pub network: u32,
    /// Its size.
    pub size: Size,
}

/// The size of a frame on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Size {
    /// Packets: 1, unless the network stack has merged several or will segment one.
    pub packets: u32,
    /// Bytes of all of them, headers included.
    pub bytes: u32,
}

impl Size {
    /// One packet of `bytes`.
    #[inline(always)]
    #[must_use]
    pub const fn of_one(bytes: u32) -> Self {
        Self { packets: 1, bytes }
    }

    /// The size as one number, for functions of numbers.
    #[inline(always)]
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        (self.packets as u64) << 32 | self.bytes as u64
    }

    /// From the number of [`Size::to_bits`].
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self {
            packets: (bits >> 32) as u32,
            bytes: bits as u32,
        }
    }
}

impl Default for Size {
    fn default() -> Self {
        Self::of_one(0)
    }
}

/// The rules for a packet: `count` rows from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct RuleSpan {
    /// Index of the first row.
    pub first: u32,
    /// Number of rows, at most [`MAX_RULES`]. In rows of the policy, also [`RuleSpan::FAIR`],
    /// [`RuleSpan::PROVES`] and [`RuleSpan::RESETS`].
    pub count: u32,
}

impl RuleSpan {
    /// The bit of `count` where sources of TCP have to prove their address ([`crate::proof`]).
    pub const PROVES: u32 = 1 << 7;
    /// With [`RuleSpan::PROVES`], the bit of `count` where they do by resets ([`crate::proof::resets`]).
    pub const RESETS: u32 = 1 << 6;
    /// The bit of `count` where the last rules are fair ([`Enforcement::Fair`]).
    pub const FAIR: u32 = 1 << 5;
    const BITS: u32 = Self::PROVES | Self::RESETS;

    /// The span without these bits.
    #[inline(always)]
    #[must_use]
    pub const fn without_proofs(self) -> Self {
        Self {
            first: self.first,
            count: self.count & !Self::BITS,
        }
    }
}

/// Whether a bucket may be charged by holds: one that several CPUs keep busy, or whose burst is so large that the life of a
/// hold is less than a hundredth of it.
#[must_use]
pub(crate) fn has_holds(bucket: &TokenBucket, scale: TickScale) -> bool {
    let tolerance = scale.nanoseconds(bucket.tolerance);
    let unit = scale.nanoseconds(bucket.charge(1));
    tolerance >= 25_600_000 || (unit < 500 && tolerance >= 50_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network;
    use crate::packet::Address;

    fn subject(address: [u8; 4], asn: Option<u32>) -> Subject {
        let Address { hi, lo } = Address::from_ipv4(address);
        let network = asn.map_or(0, |asn| network::from_asn(asn).unwrap());
        Subject {
            hi,
            lo,
            is_ipv4: 1,
            class: 3,
            interface: 5,
            network,
            ..Subject::default()
        }
    }

    #[test]
    fn a_network_is_one_key_and_addresses_outside_of_all_share_keys_by_prefix() {
        let mask_ipv4 = 0xffff_ff00_u32.to_be();
        let rule = Rule {
            key: KeyKind::Network as u8,
            mask_ipv4,
            mask_hi: u64::MAX,
            group: 2,
            ..Rule::EMPTY
        };
        let key = |address, asn| rule.key_of(&subject(address, asn));
        let of_network = Key {
            hi: 0,
            lo: 0,
            extra: 64_500,
            group: 2,
        };
        assert_eq!(key([192, 0, 2, 1], Some(64_500)), of_network);
        assert_eq!(key([198, 51, 100, 1], Some(64_500)), of_network);
        assert_ne!(key([192, 0, 2, 1], Some(64_501)), of_network);
        assert_ne!(key([192, 0, 2, 1], Some(4_200_064_500)), of_network);
        let Address { hi, lo } = Address::from_ipv4([192, 0, 2, 0]);
        assert_eq!(
            key([192, 0, 2, 1], None),
            Key {
                hi,
                lo,
                extra: 0,
                group: 2
            }
        );
        assert_eq!(key([192, 0, 2, 1], None), key([192, 0, 2, 254], None));
        assert_ne!(key([192, 0, 2, 1], None), key([192, 0, 3, 1], None));
        // The network is no part of the other keys.
        for (kind, extra) in [(KeyKind::Class, 3), (KeyKind::Interface, 5)] {
            let rule = Rule {
                key: kind as u8,
                ..rule
            };
            assert_eq!(
                rule.key_of(&subject([192, 0, 2, 1], Some(64_500))),
                Key {
                    hi: 0,
                    lo: 0,
                    extra,
                    group: 2
                }
            );
        }
        let rule = Rule {
            key: KeyKind::Address as u8,
            ..rule
        };
        assert_eq!(
            rule.key_of(&subject([192, 0, 2, 1], Some(64_500))),
            Key {
                hi,
                lo,
                extra: 0,
                group: 2
            }
        );
    }
}
