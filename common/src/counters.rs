//! Counters, per CPU and never reset while a program is loaded.

use crate::rule::Size;
use crate::source_sketch::SourceSketch;
use crate::table::Tally;
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
    /// Counts a frame.
    #[inline(always)]
    pub const fn add(&mut self, size: Size) {
        self.packets = self.packets.wrapping_add(size.packets as u64);
        self.bytes = self.bytes.wrapping_add(size.bytes as u64);
    }

    /// The sum.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            packets: self.packets.wrapping_add(other.packets),
            bytes: self.bytes.wrapping_add(other.bytes),
        }
    }
}

/// One row of counters: of a rule, or of a [`Bypass`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Counters {
    /// Passed by all rules of the span that begins with this rule.
    pub passed: Traffic,
    /// Refused by this rule.
    pub throttled: Traffic,
    /// Would have been refused by this rule.
    pub would_throttle: Traffic,
    /// Passed above a soft or elastic limit.
    pub over: Traffic,
    /// Of those refused: because other CPUs had locked the key's set or kept changing its state.
    pub contended: Traffic,
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
            Outcome::Contended => &mut self.contended,
        }
    }

    /// The sum.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            passed: self.passed.plus(other.passed),
            throttled: self.throttled.plus(other.throttled),
            would_throttle: self.would_throttle.plus(other.would_throttle),
            over: self.over.plus(other.over),
            contended: self.contended.plus(other.contended),
        }
    }
}

/// Reasons why no rule applies to a packet. Each has a row of counters, before those of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Bypass {
    /// No limit applies to the source or the packet.
    Unlimited = 0,
    /// Not an IP packet: ARP, LLDP and the like, within the limit of its kind.
    NotIp = 1,
    /// Neighbour discovery or DHCP, without which the host has no network, within the limit of its kind.
    Essential = 2,
    /// The address is exempt.
    NeverLimit = 3,
    /// Looks like IP but is invalid: refused.
    Malformed = 4,
    /// Its address is banned: refused.
    Banned = 5,
    /// ARP, neighbour discovery or DHCP above its limit, and no other limit applies: refused.
    EssentialThrottled = 6,
    /// Any other frame that is not IP, above its limit: refused.
    NotIpThrottled = 7,
    /// An ACK that proves no address where sources have to ([`crate::proof`]): refused.
    Unproven = 8,
    /// A SYN that was answered by a cookie in the host's place: refused.
    Answered = 9,
    /// A SYN that was answered by a challenge ([`crate::proof::resets`]): refused. After [`Bypass::Answered`], see
    /// [`crate::packet::reply::SynReply::bypass`].
    Challenged = 10,
    /// A SYN that has neither ([`crate::proof::Step::Refuse`]): refused.
    Unanswered = 11,
    /// An ACK that proves an address, and whose connection passes: counted as `over`, since a rule counts the packet.
    Proven = 12,
    /// A SYN that was to be answered, but the kernel has no cookies in use: counted as `over`, likewise.
    WithoutCookie = 13,
    /// A reset that proves an address: counted as `over`, likewise.
    ProvenByReset = 14,
    /// An ACK that proves an address, and whose connection a rule refuses: counted as `over`, likewise.
    ProvenRefused = 15,
    /// A SYN to a port of this host without a listener ([`crate::proof::Step::Closed`]): counted as `over`, since
    /// rules on packets count it.
    Closed = 16,
}

impl Bypass {
    /// Whether such packets are refused.
    #[inline(always)]
    #[must_use]
    pub const fn is_refusal(bypass: u32) -> bool {
        bypass >= Self::Malformed as u32
    }
}

/// The number of rows of counters before those of the rules.
pub const BYPASS_ROWS: u32 = 17;

/// Events in the table of sources.
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

    /// The sum.
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

/// Sampled statistics of a key that was counted often or refused: of the busiest keys only. A key has an entry for each
/// state that refused packets, and one for each set of states that passed its packets: see [`SampleKey`].
///
/// Packets since the last step of 64 are in the key's slot, and must be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct KeyStatistics {
    /// Packets that passed, in steps of 64.
    pub passed: u64,
    /// Packets that were refused, in steps of 64.
    pub refused: u64,
    /// Packets that would have been refused if the rule were not on `observe`, in steps of 64.
    pub would_refuse: u64,
    /// The last sampled refusal, in nanoseconds of the monotonic clock; 0 if none.
    pub refused_at: u64,
    /// The last sampled packet that would have been refused; 0 if none.
    pub would_refuse_at: u64,
    /// The last sample.
    pub seen_at: u64,
    /// The last [`crate::event::Event`] about it; 0 if none.
    pub reported_at: u64,
    /// Refused packets that do not count towards a ban ([`crate::escalation`]), each of them. Only under limits that ban.
    pub unconnected: u64,
    /// Under a level: the sources of sampled refusals since the last minute without one.
    pub sources: SourceSketch,
}

impl KeyStatistics {
    /// After this time without a sampled refusal, in nanoseconds, sources are counted anew.
    const PAUSE: u64 = 60_000_000_000;

    /// Without samples.
    pub const UNSEEN: Self = Self {
        passed: 0,
        refused: 0,
        would_refuse: 0,
        refused_at: 0,
        would_refuse_at: 0,
        seen_at: 0,
        reported_at: 0,
        unconnected: 0,
        sources: SourceSketch::EMPTY,
    };

    /// Adds the source of a refusal, by its hash, before the instant of the refusal is recorded.
    #[inline(always)]
    pub fn add_source(&mut self, hash: u64, now: u64) {
        // Another CPU may have recorded a later instant.
        if now.saturating_sub(self.last_refused_at()) > Self::PAUSE {
            self.sources.clear();
        }
        self.sources.add(hash);
    }

    /// The last sampled packet that was refused, or would have been; 0 if none.
    #[inline(always)]
    #[must_use]
    pub const fn last_refused_at(&self) -> u64 {
        if self.refused_at > self.would_refuse_at {
            self.refused_at
        } else {
            self.would_refuse_at
        }
    }
}

/// The packets that a key's count gained since the last reading, which was `before`; sets `before` to the new one.
///
/// A count is a sample and the packets in the key's slot beyond it. The two are not read at one instant: a step that is
/// completed in between is missing, and nothing is counted until the next reading. A count that fell further is that of
/// a key whose sample was removed. The packets in its slot, up to 63, may be from before, and are not counted again.
#[must_use]
pub const fn gained(before: &mut u64, count: u64) -> u64 {
    const BEYOND: u64 = Tally::STEP as u64 - 1;
    if count < *before && *before - count <= BEYOND {
        return 0;
    }
    let last = core::mem::replace(before, count);
    if count >= last {
        count - last
    } else {
        count.saturating_sub(BEYOND)
    }
}

/// The key of an entry: besides the group, in [`crate::key::Key::group`], the word of the state that refused, or the
/// states that passed as in [`crate::rule::Rule::closes_key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleKey(pub u32);

impl SampleKey {
    const POSITION: u32 = 15;
    const STATES: u32 = 18;

    /// The entry for refusals by the state at a word of the slot.
    #[inline(always)]
    #[must_use]
    pub const fn refused(group: u32, position: u8) -> Self {
        Self(group | (position as u32 & 7) << Self::POSITION)
    }

    /// The entry for packets that these states passed.
    #[inline(always)]
    #[must_use]
    pub const fn passed(group: u32, states: u8) -> Self {
        Self(group | (states as u32) << Self::STATES)
    }

    /// The group of the key.
    #[inline(always)]
    #[must_use]
    pub const fn group(self) -> u32 {
        self.0 & ((1 << Self::POSITION) - 1)
    }

    /// The word of the state that refused; 0 for an entry of passed packets.
    #[must_use]
    pub const fn position(self) -> u8 {
        (self.0 >> Self::POSITION & 7) as u8
    }

    /// Whether the packets passed the state at this word of the slot.
    #[must_use]
    pub const fn has_passed(self, position: u8) -> bool {
        self.0 >> Self::STATES >> (position & 7) & 1 != 0
    }
}

/// The rate limit of a CPU's samples of keys with a first refusal in a while. Without it, a flood of sources that are
/// each refused once would cost one sample per packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct SampleQuota {
    /// The current window: the time in units of 2²⁷ ns, some 134 ms.
    pub window: u64,
    /// The samples requested in it.
    pub taken: u64,
}

impl SampleQuota {
    /// Samples in a window: some 15,000 a second.
    pub const MOST: u64 = 2_048;

    /// Takes one sample at an instant if the window has one left.
    #[inline(always)]
    #[must_use]
    pub const fn take(&mut self, nanoseconds: u64) -> bool {
        let window = nanoseconds >> 27;
        if self.window != window {
            *self = Self { window, taken: 0 };
        }
        self.taken += 1;
        self.taken <= Self::MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_so_many_samples_and_the_next_as_many_again() {
        let mut quota = SampleQuota::default();
        let window = 1 << 27;
        for nth in 0..3 {
            let granted = (0..10_000)
                .filter(|packet| quota.take(nth * window + packet * 10_000))
                .count();
            assert_eq!(granted as u64, SampleQuota::MOST);
        }
        // A pause accumulates no samples.
        assert_eq!(
            (0..10_000).filter(|_| quota.take(1_000 * window)).count() as u64,
            SampleQuota::MOST
        );
    }
}
