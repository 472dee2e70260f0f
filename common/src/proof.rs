//! Sources that prove their address: a SYN is answered by a cookie, and its ACK shows that the source received it; or by
//! a challenge ([`resets`]).

pub mod resets;

use crate::essential::PacketBucket;
use crate::packet::reply::SynReply;
use crate::packet::{Kind, Protocol};
use crate::settings::span_index;
use crate::time::TickScale;

/// The result for one TCP packet, as a number for functions of numbers: the step, and above it the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Proof(u64);

/// A packet's treatment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// It is evaluated as without proofs: a packet of a known connection, or not for a listener of this host.
    Evaluate = 0,
    /// A SYN that is answered, by a [`SynReply`].
    Answer = 1,
    /// A SYN above the limit on answers, or one that no host sends to another: in a fragment, with a header that is not
    /// whole, or not from one host to one.
    Refuse = 2,
    /// An ACK with a valid cookie: the start of a connection.
    Proven = 3,
    /// An ACK without a valid cookie and without a connection, while cookies are in use; or one that ends within its header.
    Unproven = 4,
    /// A SYN to an address of this host without a listener, within the limit on answers: it is evaluated as a packet that opens
    /// no connection, so that no rule on connections charges it to a source that has proven nothing.
    Closed = 5,
}

impl Proof {
    /// Nothing is to be proven.
    pub const NONE: Self = Self::of(Step::Evaluate);

    /// A step without a cookie.
    #[inline(always)]
    #[must_use]
    pub const fn of(step: Step) -> Self {
        Self(step as u64)
    }

    /// A SYN that is answered like this.
    #[inline(always)]
    #[must_use]
    pub const fn answer(reply: SynReply) -> Self {
        Self(Step::Answer as u64 | reply.to_bits() << 8)
    }

    /// Whether this is the step.
    #[inline(always)]
    #[must_use]
    pub const fn is(self, step: Step) -> bool {
        self.0 as u8 == step as u8
    }

    /// The reply of an answer.
    #[inline(always)]
    #[must_use]
    pub const fn reply(self) -> SynReply {
        SynReply::from_bits(self.0 >> 8)
    }

    /// The number.
    #[inline(always)]
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// From the number.
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// The row of spans for the ACK that proves a source's address: in addition to those of its kind, the rules of
/// connections.
#[inline(always)]
#[must_use]
pub const fn proven_span(kind: Kind) -> usize {
    match kind {
        Kind::Request => PROVEN_REQUEST,
        _ => span_index(Protocol::Tcp, Kind::Connection),
    }
}

/// The row for an ACK that also starts a request. No packet of UDP is a connection, so that its row is free.
pub const PROVEN_REQUEST: usize = span_index(Protocol::Udp, Kind::Connection);

/// How long cookies are valid, in seconds: the kernel's `MAX_SYNCOOKIE_AGE`, and its clock's granularity.
const COOKIE_LIFE: u32 = 121;

/// The second after which a port's cookies are used, for [`may_have_cookies`]. Never 0, which is a port without any.
#[inline(always)]
#[must_use]
pub const fn second(nanoseconds: u64) -> u32 {
    (nanoseconds / 1_000_000_000) as u32 + 1
}

/// In place of a port's second: netfilter sends its connections elsewhere, and a cookie of the listener here would be of no use.
pub const TRANSLATED: u32 = u32::MAX;

/// Whether cookies of a port may be valid, whose last one was made in the second `last`.
#[inline(always)]
#[must_use]
pub const fn may_have_cookies(last: u32, now: u32) -> bool {
    last != 0 && last != TRANSLATED && now.wrapping_sub(last) <= COOKIE_LIFE
}

/// A TCP header in a proof by cookies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its fourth word, in host byte order: its length, the flags, and the window.
    word: u32,
    /// The bytes from its start to the end of the IP packet.
    length: u32,
}

impl Header {
    const FIN: u32 = 1 << 16;
    const SYN: u32 = 1 << 17;
    const RST: u32 = 1 << 18;
    const ACK: u32 = 1 << 20;
    const FEWEST_WORDS: u32 = 5;

    /// From the fourth word, and the length from the header on by the IP header. The IP header may announce no length, for
    /// merged segments.
    #[inline(always)]
    #[must_use]
    pub const fn new(word: u32, length: u32) -> Self {
        Self { word, length }
    }

    /// Whether it opens a connection, as limits on connections see it: whatever its other flags.
    #[inline(always)]
    #[must_use]
    pub const fn is_syn(self) -> bool {
        self.word & (Self::SYN | Self::ACK) == Self::SYN
    }

    /// Whether it may return a cookie. An ACK with FIN opens a connection, too.
    #[inline(always)]
    #[must_use]
    pub const fn is_ack(self) -> bool {
        self.word & (Self::SYN | Self::ACK | Self::RST) == Self::ACK
    }

    /// Whether it may end a connection.
    #[inline(always)]
    #[must_use]
    pub const fn is_reset(self) -> bool {
        self.word & Self::RST != 0
    }

    /// Whether the header has a valid length, which the packet contains; the kernel drops others.
    #[inline(always)]
    #[must_use]
    pub const fn is_whole(self) -> bool {
        let words = self.word >> 28;
        words >= Self::FEWEST_WORDS && 4 * words <= self.length
    }

    /// Whether it has data, or ends the stream.
    #[inline(always)]
    #[must_use]
    pub const fn brings_data(self) -> bool {
        self.word & Self::FIN != 0 || 4 * (self.word >> 28) < self.length
    }
}

/// A connection that was proven a moment ago, by its hash. Packets behind the ACK may be evaluated before the kernel has created
/// the socket: drivers deliver packets in batches. They are the connection's, although they find its listener.
///
/// A cookie can be used again as soon as the connection has ended. So a packet with the cookie is charged again, except the
/// first data behind an ACK without any, which have the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Recent(pub u64);

impl Recent {
    /// The number of connections that are remembered, a power of two.
    pub const COUNT: u32 = 4_096;
    /// The ACK had no data, and none have come since.
    const BARE: u64 = 1 << 23;
    const TIME: u64 = Self::BARE - 1;
    const HASH: u64 = !(Self::BARE | Self::TIME);
    /// The life of an entry in units of 2^20 ns, about a millisecond: longer than a batch takes.
    const LIFE: u64 = 100;

    /// The entry of a connection, by the ACK that proves it.
    #[inline(always)]
    #[must_use]
    pub const fn new(hash: u64, nanoseconds: u64, ack: Header) -> Self {
        let bare = if ack.brings_data() { 0 } else { Self::BARE };
        Self(hash & Self::HASH | bare | (nanoseconds >> 20) & Self::TIME)
    }

    /// The index of a connection's entry.
    #[inline(always)]
    #[must_use]
    pub const fn index(hash: u64) -> u32 {
        hash as u32 & (Self::COUNT - 1)
    }

    /// Whether it is the connection, and was proven a moment ago.
    #[inline(always)]
    #[must_use]
    pub const fn is(self, hash: u64, nanoseconds: u64) -> bool {
        let age = ((nanoseconds >> 20) & Self::TIME).wrapping_sub(self.0 & Self::TIME) & Self::TIME;
        (self.0 ^ hash) & Self::HASH == 0 && age <= Self::LIFE
    }

    /// The entry after a packet that belongs to the connection and opens no other one. `None` if it is to be evaluated.
    #[inline(always)]
    #[must_use]
    pub const fn covers(
        self,
        hash: u64,
        nanoseconds: u64,
        packet: Header,
        has_cookie: bool,
    ) -> Option<Self> {
        if !self.is(hash, nanoseconds) {
            None
        } else if !has_cookie {
            Some(self)
        } else if self.0 & Self::BARE != 0 && packet.brings_data() {
            Some(self.ended())
        } else {
            None
        }
    }

    /// The entry after a reset: no packet with the cookie is covered any more.
    #[inline(always)]
    #[must_use]
    pub const fn ended(self) -> Self {
        Self(self.0 & !Self::BARE)
    }
}

impl PacketBucket {
    /// All answers to SYNs together: 500,000 a second, 50,000 at once. A forged source receives them without having
    /// requested them, and no more bytes than the forger sent.
    #[must_use]
    pub fn of_cookies(scale: TickScale) -> Self {
        Self::new(500_000, 50_000, scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::BYPASS_ROWS;
    use crate::counters::Bypass;

    #[test]
    fn a_proof_is_its_step_and_reply() {
        for reply in [
            SynReply::cookie(0xdead_beef),
            SynReply::challenge(0xdead_beef),
        ] {
            let answer = Proof::from_bits(Proof::answer(reply).to_bits());
            assert!(answer.is(Step::Answer) && !answer.is(Step::Proven));
            assert_eq!(
                (answer.reply(), answer.reply().number()),
                (reply, 0xdead_beef)
            );
        }
        let (cookie, challenge) = (SynReply::cookie(u32::MAX), SynReply::challenge(u32::MAX));
        assert!(challenge.is_challenge() && !cookie.is_challenge());
        assert_eq!(
            [cookie.bypass(), challenge.bypass()],
            [Bypass::Answered as u32, Bypass::Challenged as u32]
        );
        let rows: Vec<u32> = (0..BYPASS_ROWS)
            .filter(|row| SynReply::is_of(*row))
            .collect();
        assert_eq!(rows, [cookie.bypass(), challenge.bypass()]);
        assert!(Proof::NONE.is(Step::Evaluate) && Proof::of(Step::Unproven).is(Step::Unproven));
    }

    #[test]
    fn a_connection_is_recent_for_a_tenth_of_a_second() {
        const MILLISECOND: u64 = 1_000_000;
        let (hash, then) = (0x1234_5678_9abc_def0, 77_000 * MILLISECOND);
        let recent = Recent::new(hash, then, BARE);
        assert!(recent.is(hash, then) && recent.is(hash, then + 100 * MILLISECOND));
        assert!(
            !recent.is(hash, then + 110 * MILLISECOND)
                && !recent.is(hash, then + 10_000 * MILLISECOND)
        );
        assert!(!recent.is(hash ^ 1 << 24, then) && !Recent(0).is(hash, then));
        assert!(Recent::index(hash) < Recent::COUNT);
        // A cookie lives for two minutes. In the next hour, no instant is taken for that of the proof.
        assert!((110..3_600_000).all(|later| !recent.is(hash, then + later * MILLISECOND)));
    }

    const FLAGS_ACK: u32 = 5 << 28 | 1 << 20;
    const BARE: Header = Header::new(FLAGS_ACK, 20);
    const DATA: Header = Header::new(FLAGS_ACK, 21);
    const FIN: Header = Header::new(FLAGS_ACK | 1 << 16, 20);

    #[test]
    fn one_packet_with_the_cookie_is_covered_behind_an_ack_without_data() {
        let (hash, now) = (0x1234_5678_9abc_def0, 77_000_000_000);
        for first in [DATA, FIN] {
            let proven = Recent::new(hash, now, BARE);
            let after = proven.covers(hash, now, first, true).unwrap();
            assert_eq!(after.covers(hash, now, first, true), None);
            // Data behind them have no cookie, and are covered all the time.
            assert_eq!(after.covers(hash, now, DATA, false), Some(after));
            assert_eq!(proven.covers(hash, now, BARE, true), None);
            assert_eq!(proven.ended().covers(hash, now, first, true), None);
        }
        for with_data in [DATA, FIN] {
            let proven = Recent::new(hash, now, with_data);
            assert_eq!(proven.covers(hash, now, DATA, true), None);
            assert_eq!(proven.covers(hash, now, DATA, false), Some(proven));
            assert_eq!(proven.covers(hash ^ 1 << 40, now, DATA, false), None);
        }
    }

    #[test]
    fn a_header_is_whole_if_the_packet_has_all_of_it() {
        for (words, length, is_whole) in [
            (4, 60, false),
            (5, 20, true),
            (5, 19, false),
            (10, 40, true),
            (15, 60, true),
            (15, 59, false),
            (15, 26, false),
        ] {
            let header = Header::new(words << 28 | 1 << 17, length);
            assert_eq!(
                (header.is_whole(), header.is_syn()),
                (is_whole, true),
                "{words}"
            );
        }
        assert!(BARE.is_ack() && FIN.is_ack() && !BARE.is_reset() && !BARE.is_syn());
        let reset = Header::new(FLAGS_ACK | 1 << 18, 20);
        assert!(reset.is_reset() && !reset.is_ack());
    }

    #[test]
    fn a_ports_cookies_are_valid_for_two_minutes() {
        let at = |seconds: u64| second(seconds * 1_000_000_000);
        assert!(!may_have_cookies(0, at(0)) && may_have_cookies(at(0), at(0)));
        assert!(may_have_cookies(at(50), at(171)) && !may_have_cookies(at(50), at(172)));
    }
}
