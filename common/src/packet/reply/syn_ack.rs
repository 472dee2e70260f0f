//! Replies to SYNs: a SYN-ACK whose sequence number is a cookie, so that the host remembers nothing (RFC 4987, 3.6), or
//! one that acknowledges a number which its receiver never sent ([`crate::proof::resets`]).
//!
//! The only option is the maximum segment size, and only if the SYN has an option, too: the reply is never longer than
//! the SYN, so that a forged source receives no more bytes than the forger sends.

use super::{IPV4, IPV6, Reply, TCP, fold, is_between_two_hosts, sum};
use crate::counters::Bypass;
use crate::packet::{Bytes, Packet};

/// The window of the reply, as the host's own with default buffers. Without an option for its scale, it is never larger.
const WINDOW: u32 = 64_240;
const SYN: u32 = 1 << 17;
const ACK: u32 = 1 << 20;
/// The option's kind and length.
const SEGMENT_SIZE: u32 = 0x0204_0000;
/// The segment size of a host without the option (RFC 9293, 3.7.1).
const DEFAULT_IPV4: u32 = 536;
const DEFAULT_IPV6: u32 = 1_220;

/// The number in the reply to a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct SynReply(u64);

impl SynReply {
    const CHALLENGE: u64 = 1 << 32;

    /// The sequence number of a SYN-ACK that opens the connection.
    #[inline(always)]
    #[must_use]
    pub const fn cookie(number: u32) -> Self {
        Self(number as u64)
    }

    /// The number that a SYN-ACK acknowledges, which the sender of the SYN never sent: it resets the connection.
    #[inline(always)]
    #[must_use]
    pub const fn challenge(number: u32) -> Self {
        Self(Self::CHALLENGE | number as u64)
    }

    /// Whether it is a challenge.
    #[inline(always)]
    #[must_use]
    pub const fn is_challenge(self) -> bool {
        self.0 & Self::CHALLENGE != 0
    }

    /// The number.
    #[inline(always)]
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0 as u32
    }

    /// The row of counters of SYNs that are answered like this.
    #[inline(always)]
    #[must_use]
    pub const fn bypass(self) -> u32 {
        Bypass::Answered as u32 + (self.0 >> 32) as u32
    }

    /// Whether this is a row of [`SynReply::bypass`].
    #[inline(always)]
    #[must_use]
    pub const fn is_of(bypass: u32) -> bool {
        bypass.wrapping_sub(Bypass::Answered as u32) <= 1
    }

    /// As bits, fewer than 40.
    #[inline(always)]
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// From the bits.
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// A SYN's header, as far as a cookie and its reply depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syn {
    /// The words of its header.
    words: u32,
    /// The largest segment that its sender receives.
    segment_size: u32,
}

impl Syn {
    /// Reads the SYN at `at`; `None` if its header is not complete. A segment size that is not the first option is not
    /// looked for: the default is then used, which every host receives.
    #[inline(always)]
    pub fn read(bytes: &(impl Bytes + ?Sized), at: usize, is_ipv4: bool) -> Option<Self> {
        let words = u32::from(bytes.u16(at + 12)?) >> 12;
        let least = if is_ipv4 { DEFAULT_IPV4 } else { DEFAULT_IPV6 };
        if words <= 5 {
            return (words == 5).then_some(Self {
                words,
                segment_size: least,
            });
        }
        let option = u32::from_be(bytes.u32(at + 20)?);
        let is_size = option & 0xffff_0000 == SEGMENT_SIZE && option & 0xffff != 0;
        Some(Self {
            words,
            segment_size: if is_size { option & 0xffff } else { least },
        })
    }

    /// The option of a segment size, in memory order.
    #[inline(always)]
    #[must_use]
    pub const fn option(&self) -> u32 {
        (SEGMENT_SIZE | self.segment_size & 0xffff).to_be()
    }
}

impl Reply {
    /// Builds the SYN-ACK to a SYN, of a host whose link sends packets of `mtu` bytes; 0 if that is unknown. Returns its
    /// number of words; 0 if there is none.
    #[inline(always)]
    pub fn syn_ack(
        &mut self,
        bytes: &(impl Bytes + ?Sized),
        packet: &Packet,
        reply: SynReply,
        mtu: u32,
    ) -> usize {
        if !is_between_two_hosts(packet.source, packet.destination, packet.is_ipv4) {
            return 0;
        }
        let at = usize::from(packet.transport_offset);
        let Some(syn) = Syn::read(bytes, at, packet.is_ipv4) else {
            return 0;
        };
        let (Some(ports), Some(sequence)) = (bytes.u32(at), bytes.u32(at + 4)) else {
            return 0;
        };
        let has_option = syn.words > 5;
        let words = if has_option { 6 } else { 5 };
        let first = if packet.is_ipv4 {
            self.ipv4(packet, TCP, 4 * (IPV4 as u32 + words));
            IPV4
        } else {
            self.ipv6(packet, TCP, 4 * words);
            IPV6
        };
        let (addresses, headers) = if packet.is_ipv4 {
            (sum(&self.words, 3, IPV4), 40)
        } else {
            (sum(&self.words, 2, IPV6), 60)
        };
        // Receiving no more than the other side receives is what paths are tested for.
        let room = if mtu > headers {
            mtu - headers
        } else {
            syn.segment_size
        };
        let size = if room < syn.segment_size {
            room
        } else {
            syn.segment_size
        };
        self.words[first] = ports.rotate_left(16);
        // The sequence number of a challenge means nothing.
        self.words[first + 1] = reply.number().to_be();
        let next = u32::from_be(sequence).wrapping_add(1);
        self.words[first + 2] = if reply.is_challenge() {
            reply.number()
        } else {
            next
        }
        .to_be();
        self.words[first + 3] = (words << 28 | ACK | SYN | WINDOW).to_be();
        self.words[first + 4] = 0;
        if has_option {
            self.words[first + 5] = (SEGMENT_SIZE | size).to_be();
        }
        let pseudo = addresses + u64::from(TCP.to_be());
        self.sum_up(first, words, pseudo, is_partial(bytes, packet, addresses));
        first + words as usize
    }

    /// Fills in the checksum of a segment of `words`. If hardware is to complete it, see [`super`]: the urgent pointer,
    /// which receivers ignore without its flag, makes the sum of the pseudo-header the whole checksum as well.
    #[inline(always)]
    fn sum_up(&mut self, first: usize, words: u32, pseudo: u64, is_partial: bool) {
        let pseudo = pseudo + u64::from((4 * words).to_be());
        let segment = sum(&self.words, first, first + words as usize);
        self.words[first + 4] = if is_partial {
            let partial = fold(pseudo);
            let urgent = !fold(segment + 2 * u64::from(partial));
            u32::from(partial) | u32::from(urgent) << 16
        } else {
            u32::from(!fold(pseudo + segment))
        };
    }
}

/// Whether a SYN's checksum is left to hardware: it is then the sum of its pseudo-header. One whole checksum in 65,536
/// is the same number, and the reply is then valid, too.
#[inline(always)]
fn is_partial(bytes: &(impl Bytes + ?Sized), packet: &Packet, addresses: u64) -> bool {
    let network = usize::from(packet.network_offset);
    let length = if packet.is_ipv4 {
        let header = u32::from(packet.transport_offset - packet.network_offset);
        bytes
            .u16(network + 2)
            .map_or(0, |total| u32::from(total).wrapping_sub(header))
    } else {
        let extensions =
            u32::from(packet.transport_offset).wrapping_sub(u32::from(packet.network_offset) + 40);
        bytes
            .u16(network + 4)
            .map_or(0, |length| u32::from(length).wrapping_sub(extensions))
    };
    let pseudo = fold(addresses + u64::from(TCP.to_be()) + u64::from(length.to_be()));
    bytes
        .u16(usize::from(packet.transport_offset) + 16)
        .map(u16::to_be)
        == Some(pseudo)
}

#[cfg(test)]
mod tests;
