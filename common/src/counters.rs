//! What is counted, per CPU and never reset while a program is loaded.

use crate::throttle::{Outcome, TableEvent};

/// Packets and their bytes (whole frames).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Traffic {
    /// Both summed.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self { packets: self.packets.wrapping_add(other.packets), bytes: self.bytes.wrapping_add(other.bytes) }
    }
}

/// One row of counters, one cache line: those of a rule, or one of [`Bypass`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Counters {
    /// Passed all rules of the span that begins with this rule.
    pub passed: Traffic,
    /// Refused by this rule.
    pub throttled: Traffic,
    /// Would have been refused by this rule.
    pub would_throttle: Traffic,
    /// Passed above a soft or elastic limit.
    pub over: Traffic,
}

impl Counters {
    /// The counter of an outcome.
    #[inline(always)]
    pub fn of(&mut self, outcome: Outcome) -> &mut Traffic {
        match outcome {
            Outcome::Passed => &mut self.passed,
            Outcome::Throttled => &mut self.throttled,
            Outcome::WouldThrottle => &mut self.would_throttle,
            Outcome::Over => &mut self.over,
        }
    }

    /// All summed.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            passed: self.passed.plus(other.passed),
            throttled: self.throttled.plus(other.throttled),
            would_throttle: self.would_throttle.plus(other.would_throttle),
            over: self.over.plus(other.over),
        }
    }
}

/// Why a packet came to no rule; each has a row of counters, before those of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Bypass {
    /// No limit applies to it.
    Unlimited = 0,
    /// Not an IP packet: ARP, LLDP and the like, within the limit of its kind.
    NotIp = 1,
    /// Neighbour discovery or DHCP, without which the host has no network, within the limit of its kind.
    Essential = 2,
    /// Its address is never throttled.
    NeverLimit = 3,
    /// Claims to be IP and cannot be: refused.
    Malformed = 4,
    /// Its address is banned: refused.
    Banned = 5,
    /// ARP, neighbour discovery or DHCP above its limit, and no other limit applies: refused.
    EssentialThrottled = 6,
    /// Any other frame that is not IP, above its limit: refused.
    NotIpThrottled = 7,
}

impl Bypass {
    /// Whether such packets are refused.
    #[inline(always)]
    #[must_use]
    pub const fn is_refusal(bypass: u32) -> bool {
        bypass >= Self::Malformed as u32
    }
}

/// Rows of counters before those of the rules.
pub const BYPASS_ROWS: u32 = 8;

/// What befell the table of sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct TableCounters {
    /// [`TableEvent::Evicted`].
    pub evicted: u64,
    /// [`TableEvent::FullPassed`].
    pub full_passed: u64,
    /// [`TableEvent::FullThrottled`].
    pub full_throttled: u64,
    /// [`TableEvent::FullShared`].
    pub full_shared: u64,
    /// [`TableEvent::Contended`].
    pub contended: u64,
}

impl TableCounters {
    /// The counter of an event.
    #[inline(always)]
    pub fn of(&mut self, event: TableEvent) -> &mut u64 {
        match event {
            TableEvent::Evicted => &mut self.evicted,
            TableEvent::FullPassed => &mut self.full_passed,
            TableEvent::FullThrottled => &mut self.full_throttled,
            TableEvent::FullShared => &mut self.full_shared,
            TableEvent::Contended => &mut self.contended,
        }
    }

    /// All summed.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            evicted: self.evicted.wrapping_add(other.evicted),
            full_passed: self.full_passed.wrapping_add(other.full_passed),
            full_throttled: self.full_throttled.wrapping_add(other.full_throttled),
            full_shared: self.full_shared.wrapping_add(other.full_shared),
            contended: self.contended.wrapping_add(other.contended),
        }
    }
}

/// What is remembered of a key that was counted often or refused: the busiest keys, not all of them.
///
/// The counters in the head of the key's slot carry the rest: those modulo 64 have to be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Sighted {
    /// Packets that passed, in steps of 64.
    pub passed: u64,
    /// Packets that were refused, in steps of 64.
    pub refused: u64,
    /// Packets that would have been refused, were the rule not only observed: of every 64 that the rule would have refused
    /// on one CPU, one is looked at and stands for all.
    pub would_refuse: u64,
    /// When one was last seen to be refused, in nanoseconds of the monotonic clock; 0 if never.
    pub refused_at: u64,
    /// When it was last seen at all.
    pub seen_at: u64,
    /// When it was last told of by an [`crate::event::Event`]; 0 if never.
    pub told_at: u64,
    /// Index of the counters of the rule that refused it last.
    pub refused_by: u32,
    /// Always 0.
    pub _pad: u32,
}
