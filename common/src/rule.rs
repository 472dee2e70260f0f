//! A limit as the packet path wants it: one row, one cache line, everything precomputed.
//!
//! A limit with tiers is several rules, a soft or elastic one is two; all that one packet is held to lie side by side
//! (a [`RuleSpan`]), rules of one key next to each other.

use crate::key::Key;
use crate::limiter::{FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket};

/// The most rules one packet is held to.
pub const MAX_RULES: u32 = 16;

/// Which algorithm a rule runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Algorithm {
    /// [`TokenBucket`].
    TokenBucket = 0,
    /// [`LeakyBucket`].
    LeakyBucket = 1,
    /// [`FixedWindow`].
    FixedWindow = 2,
    /// [`SlidingWindow`], two words of state.
    SlidingWindow = 3,
    /// [`SlidingLog`], one word and a ring.
    SlidingLog = 4,
}

impl Algorithm {
    /// Words of state in the slot.
    #[must_use]
    pub const fn words(self) -> u32 {
        match self {
            Self::SlidingWindow => 2,
            _ => 1,
        }
    }
}

/// What a rule counts by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum KeyKind {
    /// The other side's address: the source on ingress, the destination on egress.
    Address = 0,
    /// The address and the local port.
    AddressPort = 1,
    /// The class of the address.
    Class = 2,
    /// The interface.
    Interface = 3,
}

/// What a packet costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cost {
    /// 1: it is a connection or a request.
    One = 0,
    /// Its bytes on the wire.
    Bytes = 1,
    /// The packets on the wire that it stands for: what the network stack has put together counts as what it was.
    Packets = 2,
}

/// What becomes of a packet that does not conform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Enforcement {
    /// It is refused.
    Enforce = 0,
    /// It is counted as one that would be refused, and passes.
    Observe = 1,
    /// It is counted as over the limit; the rule that follows has the last word.
    Soft = 2,
    /// As `Soft` while the host has room, as `Enforce` while it has not.
    Elastic = 3,
    /// It is counted as over the limit, and passes, marked.
    Mark = 4,
}

/// What becomes of a new key that finds no room in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum OnFull {
    /// Its packets pass uncounted.
    Pass = 0,
    /// Its packets are refused.
    Throttle = 1,
    /// It shares one bucket with all others that found none.
    Share = 2,
}

/// How the states of a group of limits may be moved from one slot to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Moves {
    /// All are buckets: the later of two states has more of the allowance used.
    Anywhere = 0,
    /// Some are sliding windows: the later of two states still bounds both, but a window's end does not tell how much is
    /// used, so no key gives way before it has decayed.
    Inherit = 1,
    /// Some are fixed windows or logs, which cannot be merged.
    Nowhere = 2,
}

impl Moves {
    /// By the lowest two bits.
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Anywhere,
            1 => Self::Inherit,
            _ => Self::Nowhere,
        }
    }
}

/// What a rule does with packets beside letting them pass or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Action {
    /// What is refused is dropped.
    Drop = 0,
    /// What is refused is answered: TCP reset, or ICMP administratively prohibited.
    Reject = 1,
    /// What conforms waits for its turn (egress).
    Shape = 2,
}

/// One row of the map of rules. Enums are stored as bytes, since every bit pattern is valid in a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Rule {
    /// Token and leaky bucket: ticks a unit, times 2^`shift`. Windows and log: T in ticks.
    pub interval: u64,
    /// Token and leaky bucket: the burst in ticks.
    pub tolerance: u64,
    /// The burst or N, in units.
    pub most: u64,
    /// The limit's IPv6 prefix, as a mask in network byte order.
    pub mask_hi: u64,
    /// Its second half.
    pub mask_lo: u64,
    /// The limit's IPv4 prefix, as a mask in network byte order.
    pub mask_ipv4: u32,
    /// Index of the counters of this rule.
    pub counter: u32,
    /// Which set of limits shares a slot: [`Key::group`].
    pub group: u16,
    /// Where in the slot's part of the rings the log of this rule begins, in words.
    pub ring: u16,
    /// [`Algorithm`].
    pub algorithm: u8,
    /// [`KeyKind`].
    pub key: u8,
    /// [`Cost`].
    pub cost: u8,
    /// First word of the state in the slot, 1 to 7.
    pub position: u8,
    /// Token and leaky bucket: fraction bits of `interval`; the others: low bits of a state that hold the count.
    pub shift: u8,
    /// Sliding window: [`SlidingWindow::share_shift`].
    pub share_shift: u8,
    /// [`Enforcement`].
    pub enforcement: u8,
    /// What is known of the group where the table is full: [`OnFull`], [`Moves`] and slowness, see [`Rule::when_full`].
    pub on_full: u8,
    /// [`Action`].
    pub action: u8,
    /// 1: the first rule of its key in the span.
    pub opens_key: u8,
    /// 1: the last rule of its key in the span.
    pub closes_key: u8,
    /// 1: a packet that conforms, or is refused, takes one look at the states and one compare-and-swap; see
    /// [`Rule::made_swift`].
    pub is_swift: u8,
}

impl Rule {
    /// The row for a rule that does nothing yet: rows are made by filling one in.
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
        is_swift: 0,
    };

    /// Fills in `is_swift`, once the rest is: a log has a ring to look through, and what is delayed or marked has more to
    /// be told than whether it passes.
    #[must_use]
    pub const fn made_swift(self) -> Self {
        let is_swift = !self.is(Algorithm::SlidingLog)
            && self.action != Action::Shape as u8
            && self.enforcement != Enforcement::Mark as u8;
        Self { is_swift: is_swift as u8, ..self }
    }

    /// Fills in what becomes of a new key when the table is full. `is_slow`: its group leaves some slots to others, whose
    /// states live much shorter.
    #[must_use]
    pub const fn when_full(self, on_full: OnFull, moves: Moves, is_slow: bool) -> Self {
        Self { on_full: on_full as u8 | (moves as u8) << 2 | (is_slow as u8) << 4, ..self }
    }

    /// Whether this is what becomes of a new key when the table is full.
    #[inline(always)]
    #[must_use]
    pub const fn does_on_full(&self, on_full: OnFull) -> bool {
        self.on_full & 3 == on_full as u8
    }

    /// How the states of its group may be moved.
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

    /// What a frame of this size costs under the rule, in its unit.
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

    /// Whether the rule may refuse a packet, now or when the host has no room.
    #[inline(always)]
    #[must_use]
    pub const fn may_refuse(&self) -> bool {
        self.enforcement != Enforcement::Observe as u8 && self.enforcement != Enforcement::Mark as u8
    }

    /// Words of state.
    #[must_use]
    pub const fn words(&self) -> usize {
        if self.is(Algorithm::SlidingWindow) { 2 } else { 1 }
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

    /// The rule as a token bucket.
    #[inline(always)]
    #[must_use]
    pub fn token_bucket(&self) -> TokenBucket {
        TokenBucket {
            emission: self.interval,
            emission_shift: u32::from(self.shift),
            tolerance: self.tolerance,
            burst: self.most,
        }
    }

    /// The rule as a leaky bucket.
    #[inline(always)]
    #[must_use]
    pub fn leaky_bucket(&self) -> LeakyBucket {
        LeakyBucket(self.token_bucket())
    }

    /// The rule as a fixed window.
    #[inline(always)]
    #[must_use]
    pub fn fixed_window(&self) -> FixedWindow {
        FixedWindow { window: self.interval, most: self.most, count_bits: u32::from(self.shift) }
    }

    /// The rule as a sliding window.
    #[inline(always)]
    #[must_use]
    pub fn sliding_window(&self) -> SlidingWindow {
        SlidingWindow {
            window: self.interval,
            most: self.most,
            low_bits: u32::from(self.shift),
            share_shift: u32::from(self.share_shift),
        }
    }

    /// The rule as a sliding log.
    #[inline(always)]
    #[must_use]
    pub fn sliding_log(&self) -> SlidingLog {
        SlidingLog { window: self.interval, most: self.most as u32, place_bits: u32::from(self.shift) }
    }

    /// Fills in what is particular to a token bucket.
    #[must_use]
    pub fn with_token_bucket(self, bucket: TokenBucket) -> Self {
        Self {
            algorithm: Algorithm::TokenBucket as u8,
            interval: bucket.emission,
            tolerance: bucket.tolerance,
            most: bucket.burst,
            shift: bucket.emission_shift as u8,
            ..self
        }
    }

    /// Fills in what is particular to a leaky bucket.
    #[must_use]
    pub fn with_leaky_bucket(self, bucket: LeakyBucket) -> Self {
        Self { algorithm: Algorithm::LeakyBucket as u8, ..self.with_token_bucket(bucket.0) }
    }

    /// Fills in what is particular to a fixed window.
    #[must_use]
    pub fn with_fixed_window(self, limiter: FixedWindow) -> Self {
        Self {
            algorithm: Algorithm::FixedWindow as u8,
            interval: limiter.window,
            most: limiter.most,
            shift: limiter.count_bits as u8,
            ..self
        }
    }

    /// Fills in what is particular to a sliding window.
    #[must_use]
    pub fn with_sliding_window(self, limiter: SlidingWindow) -> Self {
        Self {
            algorithm: Algorithm::SlidingWindow as u8,
            interval: limiter.window,
            most: limiter.most,
            shift: limiter.low_bits as u8,
            share_shift: limiter.share_shift as u8,
            ..self
        }
    }

    /// Fills in what is particular to a sliding log.
    #[must_use]
    pub fn with_sliding_log(self, limiter: SlidingLog) -> Self {
        Self {
            algorithm: Algorithm::SlidingLog as u8,
            interval: limiter.window,
            most: u64::from(limiter.most),
            shift: limiter.place_bits as u8,
            ..self
        }
    }

    /// The key under which `subject` is counted.
    #[inline(always)]
    #[must_use]
    pub fn key_of(&self, subject: &Subject) -> Key {
        let group = u32::from(self.group);
        if self.key >= KeyKind::Class as u8 {
            let extra = if self.key == KeyKind::Class as u8 { subject.class } else { subject.interface };
            return Key { hi: 0, lo: 0, extra, group };
        }
        let (hi, lo) = if subject.is_ipv4 != 0 {
            // The first half of the second word is the prefix of IPv4-mapped addresses.
            (subject.hi, subject.lo & (u64::from(self.mask_ipv4) << 32 | 0xffff_ffff))
        } else {
            (subject.hi & self.mask_hi, subject.lo & self.mask_lo)
        };
        let extra = if self.key == KeyKind::AddressPort as u8 { subject.local_port } else { 0 };
        Key { hi, lo, extra, group }
    }
}

/// What of a packet the rules look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Subject {
    /// First half of the other side's address, in network byte order, IPv4-mapped for IPv4.
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
    /// How much it is.
    pub size: Size,
}

/// How much a frame is on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Size {
    /// Packets: 1, unless the network stack has put several together or has yet to cut one up.
    pub packets: u32,
    /// Bytes of all of them, headers included.
    pub bytes: u32,
}

impl Size {
    /// One packet of so many bytes.
    #[inline(always)]
    #[must_use]
    pub const fn of_one(bytes: u32) -> Self {
        Self { packets: 1, bytes }
    }

    /// As one number, for functions that take numbers.
    #[inline(always)]
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        (self.packets as u64) << 32 | self.bytes as u64
    }

    /// What [`Size::to_bits`] was given.
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self { packets: (bits >> 32) as u32, bytes: bits as u32 }
    }
}

impl Default for Size {
    fn default() -> Self {
        Self::of_one(0)
    }
}

/// The rules that a packet is held to: `count` rows from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct RuleSpan {
    /// Index of the first row.
    pub first: u32,
    /// Number of rows, at most [`MAX_RULES`].
    pub count: u32,
}
