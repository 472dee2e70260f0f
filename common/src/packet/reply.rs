//! Replies to refused packets: a TCP reset, or ICMP "administratively prohibited".
//!
//! Sources: RFC 9293, 3.10.7 (resets), RFC 792 and RFC 1812, 5.2.7.1 (type 3, code 13), RFC 4443, 3.1 (type 1, code 1),
//! RFC 1122, 3.2.2 (when no error may be sent).
//!
//! Checksums are correct regardless of offloads. A buffer whose sender left the checksum to hardware
//! (`CHECKSUM_PARTIAL`) keeps that state when it becomes the reply: a later device sums the bytes from the offset of
//! the refused packet's TCP or UDP header, and writes the complement at the offset of its checksum. Programs can
//! neither read nor clear that state. So each reply is a fixed point of that calculation: a field that receivers ignore
//! is chosen such that the device writes the value that is already there.

mod syn_ack;

pub use syn_ack::{Syn, SynReply};

use super::{Address, Bytes, Packet, Protocol};

/// The most words of four bytes in a reply: an IPv6 header, an ICMPv6 header, and the first 48 bytes of the packet.
pub const LONGEST_REPLY: usize = 24;

/// The IP packet of the reply, as words in network byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Reply {
    words: [u32; LONGEST_REPLY],
}

const TCP: u32 = 6;
const ICMP: u32 = 1;
const ICMPV6: u32 = 58;
/// SCTP, whose checksum hardware completes differently from TCP's and UDP's.
const SCTP: u16 = 132;
const ECHO_REQUEST: u8 = 8;
const ECHO_REQUEST_V6: u8 = 128;
/// The time to live of packets that this host creates.
const HOPS: u32 = 64;

/// Words of an IPv4 header without options, and of an IPv6 header.
const IPV4: usize = 5;
const IPV6: usize = 10;
/// The words of the refused packet that an ICMP error quotes: its header and the next eight bytes.
const QUOTE_IPV4: usize = IPV4 + 2;
const QUOTE_IPV6: usize = IPV6 + 2;

impl Reply {
    /// No reply yet.
    pub const EMPTY: Self = Self {
        words: [0; LONGEST_REPLY],
    };

    /// The nth word in memory order.
    #[inline(always)]
    #[must_use]
    pub fn word(&self, nth: usize) -> u32 {
        self.words.get(nth).copied().unwrap_or(0)
    }

    /// The address of the words.
    #[inline(always)]
    #[must_use]
    pub const fn as_ptr(&self) -> *const u32 {
        self.words.as_ptr()
    }

    /// Builds the reply to a refused packet. Returns its number of words; 0 if there is none.
    ///
    /// No reply is sent where no error may be: to resets, ICMP other than echo requests, fragments other than the
    /// first, and packets that are not from one host to one host. Nor to packets with IPv4 options or IPv6 extension
    /// headers, except TCP: their ports are beyond the quoted bytes.
    #[inline(always)]
    pub fn answer(&mut self, bytes: &(impl Bytes + ?Sized), packet: &Packet) -> usize {
        if !is_between_two_hosts(packet.source, packet.destination, packet.is_ipv4) {
            return 0;
        }
        match (packet.protocol, packet.is_ipv4) {
            (Protocol::Tcp, true) => self.reset_ipv4(bytes, packet),
            (Protocol::Tcp, false) => self.reset_ipv6(bytes, packet),
            (_, true) => self.prohibited_ipv4(bytes, packet),
            (_, false) => self.prohibited_ipv6(bytes, packet),
        }
    }

    #[inline(always)]
    fn reset_ipv4(&mut self, bytes: &(impl Bytes + ?Sized), packet: &Packet) -> usize {
        let network = usize::from(packet.network_offset);
        let total = u32::from(bytes.u16(network + 2).unwrap_or(0));
        let payload =
            total.wrapping_sub(u32::from(packet.transport_offset - packet.network_offset));
        let Some(reset) = Reset::of(bytes, packet, payload) else {
            return 0;
        };
        self.ipv4(packet, TCP, 4 * (IPV4 as u32 + 5));
        let pseudo = sum(&self.words, 3, 5) + u64::from(TCP.to_be()) + u64::from(20u32.to_be());
        reset.write(&mut self.words, IPV4, pseudo);
        IPV4 + 5
    }

    #[inline(always)]
    fn reset_ipv6(&mut self, bytes: &(impl Bytes + ?Sized), packet: &Packet) -> usize {
        let network = usize::from(packet.network_offset);
        let length = u32::from(bytes.u16(network + 4).unwrap_or(0));
        let extensions =
            u32::from(packet.transport_offset).wrapping_sub(u32::from(packet.network_offset) + 40);
        let Some(reset) = Reset::of(bytes, packet, length.wrapping_sub(extensions)) else {
            return 0;
        };
        self.ipv6(packet, TCP, 20);
        let pseudo = sum(&self.words, 2, IPV6) + u64::from(TCP.to_be()) + u64::from(20u32.to_be());
        reset.write(&mut self.words, IPV6, pseudo);
        IPV6 + 5
    }

    #[inline(always)]
    fn prohibited_ipv4(&mut self, bytes: &(impl Bytes + ?Sized), packet: &Packet) -> usize {
        let network = usize::from(packet.network_offset);
        let has_options = packet.transport_offset != packet.network_offset + 20;
        let is_later_fragment = bytes
            .u16(network + 6)
            .is_none_or(|fragment| fragment & 0x1fff != 0);
        let is_sctp = bytes
            .u16(network + 8)
            .is_none_or(|word| word & 0xff == SCTP);
        if has_options
            || is_later_fragment
            || is_sctp
            || !may_be_answered(bytes, packet, ECHO_REQUEST)
        {
            return 0;
        }
        let words = IPV4 + 2 + QUOTE_IPV4;
        self.ipv4(packet, ICMP, 4 * words as u32);
        if !self.quote::<QUOTE_IPV4>(bytes, network, IPV4 + 2) {
            return 0;
        }
        const PROHIBITED: u32 = 3 << 24 | 13 << 16;
        // For a message without a pseudo-header, the sum with its checksum is zero, like the unused field.
        self.checksummed(IPV4, PROHIBITED, 0, sum(&self.words, IPV4 + 2, words));
        words
    }

    #[inline(always)]
    fn prohibited_ipv6(&mut self, bytes: &(impl Bytes + ?Sized), packet: &Packet) -> usize {
        let network = usize::from(packet.network_offset);
        // A packet without a transport header is a later fragment.
        let has_extensions = packet.transport_offset != packet.network_offset + 40;
        let is_sctp = bytes.u16(network + 6).is_none_or(|word| word >> 8 == SCTP);
        if has_extensions || is_sctp || !may_be_answered(bytes, packet, ECHO_REQUEST_V6) {
            return 0;
        }
        let words = IPV6 + 2 + QUOTE_IPV6;
        let length = 4 * (2 + QUOTE_IPV6) as u32;
        self.ipv6(packet, ICMPV6, length);
        if !self.quote::<QUOTE_IPV6>(bytes, network, IPV6 + 2) {
            return 0;
        }
        const PROHIBITED: u32 = 1 << 24 | 1 << 16;
        let pseudo =
            sum(&self.words, 2, IPV6) + u64::from(ICMPV6.to_be()) + u64::from(length.to_be());
        let unused = u32::from(fold(pseudo)) << 16;
        self.checksummed(
            IPV6,
            PROHIBITED,
            unused,
            pseudo + sum(&self.words, IPV6 + 2, words),
        );
        words
    }

    /// An IPv4 header to the sender, for a packet of `length` bytes in total.
    #[inline(always)]
    fn ipv4(&mut self, packet: &Packet, protocol: u32, length: u32) {
        const DO_NOT_FRAGMENT: u32 = 0x4000;
        self.words[0] = (0x4500_0000 | length).to_be();
        self.words[1] = DO_NOT_FRAGMENT.to_be();
        self.words[2] = (HOPS << 24 | protocol << 16).to_be();
        self.words[3] = packet.destination.ipv4_memory();
        self.words[4] = packet.source.ipv4_memory();
        let checksum = !fold(sum(&self.words, 0, IPV4));
        // The checksum is the second half of its word; both sums and fields are in memory order.
        self.words[2] |= u32::from(checksum) << 16;
    }

    /// An IPv6 header to the sender, before `length` bytes.
    #[inline(always)]
    fn ipv6(&mut self, packet: &Packet, next: u32, length: u32) {
        self.words[0] = 0x6000_0000u32.to_be();
        self.words[1] = (length << 16 | next << 8 | HOPS).to_be();
        for (first, address) in [(2, packet.destination), (6, packet.source)] {
            self.words[first] = address.hi as u32;
            self.words[first + 1] = (address.hi >> 32) as u32;
            self.words[first + 2] = address.lo as u32;
            self.words[first + 3] = (address.lo >> 32) as u32;
        }
    }

    /// Copies the first `N` words of the packet at `network`; `false` if it is shorter.
    #[inline(always)]
    fn quote<const N: usize>(
        &mut self,
        bytes: &(impl Bytes + ?Sized),
        network: usize,
        at: usize,
    ) -> bool {
        for nth in 0..N {
            let (Some(word), Some(place)) =
                (bytes.u32(network + 4 * nth), self.words.get_mut(at + nth))
            else {
                return false;
            };
            *place = word;
        }
        true
    }

    /// An ICMP header whose checksum also covers words that sum up to `rest`. The second half of `unused` is at the
    /// offset of UDP's checksum.
    #[inline(always)]
    fn checksummed(&mut self, at: usize, kind: u32, unused: u32, rest: u64) {
        let checksum = !fold(u64::from(kind.to_be()) + u64::from(unused) + rest);
        self.words[at] = kind.to_be() | u32::from(checksum) << 16;
        self.words[at + 1] = unused;
    }
}

/// The fields of a reset.
struct Reset {
    ports: u32,
    sequence: u32,
    acknowledgment: u32,
    flags: u32,
}

impl Reset {
    /// The reset for a segment with `length` bytes of header and payload, unless it is a reset itself.
    #[inline(always)]
    fn of(bytes: &(impl Bytes + ?Sized), packet: &Packet, length: u32) -> Option<Self> {
        const FIN: u32 = 1;
        const SYN: u32 = 2;
        const RST: u32 = 4;
        const ACK: u32 = 16;
        if !packet.has_ports {
            return None;
        }
        let ports = packet.ports;
        let at = usize::from(packet.transport_offset);
        let sequence = u32::from_be(bytes.u32(at + 4)?);
        let acknowledgment = u32::from_be(bytes.u32(at + 8)?);
        let word = u32::from(bytes.u16(at + 12)?);
        if word & RST != 0 {
            return None;
        }
        let ports = u32::from(ports.destination) << 16 | u32::from(ports.source);
        if word & ACK != 0 {
            return Some(Self {
                ports,
                sequence: acknowledgment,
                acknowledgment: 0,
                flags: RST,
            });
        }
        let payload = length.wrapping_sub((word >> 12) * 4);
        let flags = (word & SYN) / SYN + (word & FIN);
        let acknowledgment = sequence.wrapping_add(payload).wrapping_add(flags);
        Some(Self {
            ports,
            sequence: 0,
            acknowledgment,
            flags: RST | ACK,
        })
    }

    #[inline(always)]
    fn write(&self, words: &mut [u32; LONGEST_REPLY], at: usize, pseudo: u64) {
        const WORDS_OF_HEADER: u32 = 5;
        words[at] = self.ports.to_be();
        words[at + 1] = self.sequence.to_be();
        words[at + 2] = self.acknowledgment.to_be();
        words[at + 3] = (WORDS_OF_HEADER << 28 | self.flags << 16).to_be();
        // The sum of the pseudo-header, which a sender leaves in the field for hardware to complete.
        let partial = fold(pseudo);
        words[at + 4] = u32::from(partial);
        // The window, which receivers of a reset ignore, makes it the whole checksum as well.
        let window = !fold(u64::from(partial) + sum(words, at, at + 5));
        words[at + 3] |= u32::from(window) << 16;
    }
}

/// Whether both addresses are of single hosts, as far as addresses show.
#[inline(always)]
#[must_use]
pub fn is_between_two_hosts(source: Address, destination: Address, is_ipv4: bool) -> bool {
    if is_ipv4 {
        let source = u32::from_be(source.ipv4_memory());
        let destination = u32::from_be(destination.ipv4_memory());
        // Addresses below 1.0.0.0 and from 224.0.0.0 on are not hosts'.
        (1 << 24..224 << 24).contains(&source) && destination < 224 << 24
    } else {
        let first = |hi: u64| u64::from_be(hi) >> 56;
        let is_unspecified = source.hi == 0 && source.lo == 0;
        !is_unspecified && first(source.hi) != 0xff && first(destination.hi) != 0xff
    }
}

/// Whether an error may be sent: for ICMP, only to echo requests.
#[inline(always)]
fn may_be_answered(bytes: &(impl Bytes + ?Sized), packet: &Packet, echo_request: u8) -> bool {
    packet.protocol != Protocol::Icmp
        || bytes
            .u16(usize::from(packet.transport_offset))
            .is_some_and(|word| (word >> 8) as u8 == echo_request)
}

/// The sum of the words from `first` to before `end` for a checksum, in memory order (RFC 1071, 2(B)).
#[inline(always)]
fn sum(words: &[u32; LONGEST_REPLY], first: usize, end: usize) -> u64 {
    words
        .iter()
        .take(end)
        .skip(first)
        .fold(0, |sum, word| sum + u64::from(*word))
}

/// Folds a sum to 16 bits with end-around carry.
#[inline(always)]
const fn fold(mut sum: u64) -> u16 {
    sum = (sum >> 32) + (sum & 0xffff_ffff);
    sum = (sum >> 16) + (sum & 0xffff);
    sum = (sum >> 16) + (sum & 0xffff);
    sum = (sum >> 16) + (sum & 0xffff);
    sum as u16
}

#[cfg(test)]
mod tests;
