//! From bytes to what a limit asks of a packet: whose it is, and what kind.
//!
//! Invariant: nothing passes a limit by being hard to parse. The address is taken from the IP header before anything
//! above it is looked at. A packet whose ports or flags are cut off or come in a later fragment is refused; one whose
//! protocol is hidden is held to the limits of every protocol. Each way to fail has a name ([`Unparsed`]) and one verdict
//! ([`Unparsed::disposition`]).
//!
//! The parser runs in the kernel's verifier: offsets are bounded by a compare, loops by a constant.

mod address;
#[cfg(any(test, feature = "user"))]
pub mod build;
mod network;
pub mod reply;
mod transport;
mod tunnel;

use crate::essential::Essential;

pub use address::Address;
pub use network::{Transport, behind_extensions};
pub use tunnel::{Layers, headers};

/// A frame, read at bounded offsets. A whole frame may be longer than what can be read of it.
pub trait Bytes {
    /// The byte at `offset`, `None` past the end.
    ///
    /// Where `offset` is 0 or not a constant, prefer [`Bytes::u16`]: compilers turn the check for one byte into one that the
    /// kernel's verifier does not follow.
    fn u8(&self, offset: usize) -> Option<u8>;
    /// The big-endian number at `offset`.
    fn u16(&self, offset: usize) -> Option<u16>;
    /// The four bytes at `offset` as they lie in memory.
    fn u32(&self, offset: usize) -> Option<u32>;
    /// The eight bytes at `offset` as they lie in memory.
    fn u64(&self, offset: usize) -> Option<u64>;
    /// As many times four bytes from `offset` on as they lie in memory: one check instead of one for each.
    fn u32s<const N: usize>(&self, offset: usize) -> Option<[u32; N]> {
        let mut words = [0; N];
        for (nth, word) in words.iter_mut().enumerate() {
            *word = self.u32(offset + 4 * nth)?;
        }
        Some(words)
    }
    /// The same, eight bytes at a time.
    fn u64s<const N: usize>(&self, offset: usize) -> Option<[u64; N]> {
        let mut words = [0; N];
        for (nth, word) in words.iter_mut().enumerate() {
            *word = self.u64(offset + 8 * nth)?;
        }
        Some(words)
    }
    /// The length of the whole frame in bytes.
    fn length(&self) -> u32;
    /// The offset itself, which is at most [`FURTHEST`]. In the kernel, the verifier forgets here what it knows of it, so
    /// that it need not look at every combination of headers that may lie before it, but at each header once.
    fn forget(&self, offset: usize) -> usize {
        offset
    }
    /// The offset itself, which is at most [`FURTHEST`]. In the kernel, the verifier is told so.
    fn within(&self, offset: usize) -> usize {
        offset
    }
    /// [`behind_tags`]. In the kernel a function of its own, as the next one: few packets have such headers, and what is in
    /// line takes from the stack.
    fn behind_tags(&self, ethertype: u16) -> Network {
        behind_tags(self, ethertype)
    }
    /// [`behind_extensions`].
    fn behind_extensions(&self, next: u8, offset: usize) -> Transport {
        behind_extensions(self, next, offset)
    }
    /// [`headers`].
    fn headers(&self, layers: Layers) -> u32 {
        headers(self, layers)
    }
}

/// The largest offset that [`Bytes::forget`] and [`Bytes::within`] are asked for: one less than a power of two.
pub const FURTHEST: usize = 2_047;

impl Bytes for [u8] {
    fn u8(&self, offset: usize) -> Option<u8> {
        self.get(offset).copied()
    }
    fn u16(&self, offset: usize) -> Option<u16> {
        Some(u16::from_be_bytes(self.get(offset..)?.first_chunk().copied()?))
    }
    fn u32(&self, offset: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(self.get(offset..)?.first_chunk().copied()?))
    }
    fn u64(&self, offset: usize) -> Option<u64> {
        Some(u64::from_ne_bytes(self.get(offset..)?.first_chunk().copied()?))
    }
    fn length(&self) -> u32 {
        self.len() as u32
    }
}

/// Which way a packet goes, seen from this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// To this host.
    Ingress,
    /// From it.
    Egress,
}

/// What a frame begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// An Ethernet header, with or without VLAN tags.
    Ethernet,
    /// The IP header itself, as on tun and WireGuard devices.
    RawIp,
}

/// How much of a packet the policy in force asks for. Deeper costs more loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// Address and protocol; ports only to know what is essential.
    Addresses = 0,
    /// Ports, and TCP's flags.
    Ports = 1,
    /// Whether the payload begins with a request.
    Requests = 2,
}

impl Depth {
    /// From the constant a program is loaded with; anything unknown is the deepest.
    #[inline(always)]
    #[must_use]
    pub const fn from_setting(setting: u32) -> Self {
        match setting {
            0 => Self::Addresses,
            1 => Self::Ports,
            _ => Self::Requests,
        }
    }
}

/// The protocols that limits tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP and ICMPv6.
    Icmp,
    /// Everything else.
    Other,
    /// Any of them: extension headers hide which. Such a packet is held to the limits of all.
    Hidden,
}

/// What a packet is the beginning of.
///
/// Decided on purpose: a SYN that carries data (TCP Fast Open) is a connection and not also a request. A second request
/// in one segment (pipelining) is not counted, nor is one that does not begin a segment. A retransmission is counted
/// again, since no state is kept per flow. A DNS response is not a request, and DNS over TCP is a connection and then
/// plain packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Nothing in particular.
    Plain,
    /// A TCP connection: SYN without ACK.
    Connection,
    /// An HTTP/1.x request head at the start of a TCP payload, or a DNS query over UDP.
    Request,
}

/// What limits ask of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Who sent it.
    pub source: Address,
    /// To whom.
    pub destination: Address,
    /// Whether the addresses are IPv4.
    pub is_ipv4: bool,
    /// The transport protocol.
    pub protocol: Protocol,
    /// Source and destination port; 0 if they cannot be told. See [`Packet::ports`].
    pub(crate) ports: Ports,
    /// Whether they can be told. Not an option, whose content, where there is none, the kernel's verifier takes for read.
    pub(crate) has_ports: bool,
    /// What it begins.
    pub kind: Kind,
    /// Whether the host has no network without it: neighbour discovery and DHCP.
    pub is_essential: bool,
    /// Where the IP header begins.
    pub network_offset: u16,
    /// Where the transport header begins, if there is one; 0 if not.
    pub transport_offset: u16,
}

/// Ports in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// The sender's.
    pub source: u16,
    /// The receiver's.
    pub destination: u16,
}

impl Ports {
    const NONE: Self = Self { source: 0, destination: 0 };
}

impl Packet {
    /// The port on this host, if it can be told.
    #[inline(always)]
    #[must_use]
    pub fn local_port(&self, direction: Direction) -> Option<u16> {
        self.has_ports.then(|| self.local_port_or_0(direction))
    }

    /// The port on this host; 0 if it cannot be told.
    #[inline(always)]
    #[must_use]
    pub const fn local_port_or_0(&self, direction: Direction) -> u16 {
        match direction {
            Direction::Ingress => self.ports.destination,
            Direction::Egress => self.ports.source,
        }
    }

    /// Whether ports can be told.
    #[inline(always)]
    #[must_use]
    pub const fn has_ports(&self) -> bool {
        self.has_ports
    }

    /// Source and destination port, if they can be told.
    #[must_use]
    pub fn ports(&self) -> Option<Ports> {
        self.has_ports.then_some(self.ports)
    }

    /// What it is to the network, where it is essential.
    #[inline(always)]
    #[must_use]
    pub const fn essential(&self) -> Option<Essential> {
        match self.protocol {
            _ if !self.is_essential => None,
            Protocol::Udp => Some(Essential::Dhcp),
            _ => Some(Essential::NeighbourDiscovery),
        }
    }

    /// The address on this side: this host's, unless the packet is forwarded or meant for somebody else.
    #[inline(always)]
    #[must_use]
    pub const fn own(&self, direction: Direction) -> Address {
        match direction {
            Direction::Ingress => self.destination,
            Direction::Egress => self.source,
        }
    }

    /// The address on the other side.
    #[inline(always)]
    #[must_use]
    pub const fn other(&self, direction: Direction) -> Address {
        match direction {
            Direction::Ingress => self.source,
            Direction::Egress => self.destination,
        }
    }
}

/// Why no limit can be applied to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unparsed {
    /// ARP, which is limited as a kind of its own.
    Arp,
    /// Not IP otherwise: LLDP, spanning tree. Limits are on addresses it does not have.
    NotIp,
    /// The frame ends within its link header.
    TruncatedLink,
    /// It says it is IP and ends before its addresses: the host's own stack would drop it.
    TruncatedAddress,
    /// More VLAN tags than [`MAX_TAGS`]: the address may be further in than anybody looks.
    TooManyTags,
    /// It says it is IP of one version, and its header says otherwise: the host's own stack would drop it.
    BadVersion,
    /// The TCP or UDP header cannot be read where ports or flags decide: the host's own stack would drop it.
    TruncatedTransport,
    /// A first fragment that ends before its transport header does (RFC 1858, RFC 7112).
    TinyFragment,
    /// A later fragment that begins within the TCP header (RFC 3128).
    OverlappingFragment,
}

/// What is done with a frame that is not parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// It passes within the limit of its kind.
    Limit(Essential),
    /// It is refused.
    Refuse,
}

impl Unparsed {
    /// The one verdict for each: what claims to be IP and hides its address is refused, for no limit could hold it.
    #[inline(always)]
    #[must_use]
    pub const fn disposition(self) -> Disposition {
        match self {
            Self::Arp => Disposition::Limit(Essential::Arp),
            Self::NotIp => Disposition::Limit(Essential::NotIp),
            Self::TruncatedLink
            | Self::TruncatedAddress
            | Self::TooManyTags
            | Self::BadVersion
            | Self::TruncatedTransport
            | Self::TinyFragment
            | Self::OverlappingFragment => Disposition::Refuse,
        }
    }
}

/// VLAN tags that are looked through.
pub const MAX_TAGS: usize = 4;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_ARP: u16 = 0x0806;

/// Parses a frame as far as `depth` asks.
///
/// # Errors
///
/// When the frame has no address that could be limited.
#[inline(always)]
pub fn parse(bytes: &(impl Bytes + ?Sized), link: Link, depth: Depth) -> Result<Packet, Unparsed> {
    let (is_ipv4, offset) = match link {
        Link::Ethernet => ethernet(bytes)?,
        Link::RawIp => match bytes.u16(0).ok_or(Unparsed::TruncatedAddress)? >> 12 {
            4 => (true, 0),
            6 => (false, 0),
            _ => return Err(Unparsed::BadVersion),
        },
    };
    if is_ipv4 { network::ipv4(bytes, offset, depth) } else { network::ipv6(bytes, offset, depth) }
}

#[inline(always)]
fn ethernet(bytes: &(impl Bytes + ?Sized)) -> Result<(bool, usize), Unparsed> {
    let ethertype = bytes.u16(12).ok_or(Unparsed::TruncatedLink)?;
    let (ethertype, offset) = if is_tag(ethertype) {
        let network = bytes.behind_tags(ethertype);
        (network.ethertype(), bytes.within(network.offset()))
    } else {
        (ethertype, 14)
    };
    match ethertype {
        ETHERTYPE_IPV4 => Ok((true, offset)),
        ETHERTYPE_IPV6 => Ok((false, offset)),
        ETHERTYPE_ARP => Err(Unparsed::Arp),
        Network::TRUNCATED => Err(Unparsed::TruncatedLink),
        ethertype if is_tag(ethertype) => Err(Unparsed::TooManyTags),
        _ => Err(Unparsed::NotIp),
    }
}

/// 802.1Q, 802.1ad, and what came before 802.1ad.
#[inline(always)]
const fn is_tag(ethertype: u16) -> bool {
    matches!(ethertype, 0x8100 | 0x88a8 | 0x9100)
}

/// What a frame carries, and where: one number, for functions that return numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Network(u32);

impl Network {
    /// In place of an ethertype, of which none is this small: the frame ends among its tags.
    const TRUNCATED: u16 = 0;

    #[inline(always)]
    const fn new(ethertype: u16, offset: usize) -> Self {
        Self((offset as u32) << 16 | ethertype as u32)
    }

    #[inline(always)]
    const fn ethertype(self) -> u16 {
        self.0 as u16
    }

    /// Where the header begins that the ethertype tells of.
    #[inline(always)]
    const fn offset(self) -> usize {
        (self.0 >> 16) as usize
    }

    /// As one number.
    #[inline(always)]
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// What [`Network::to_bits`] was given.
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
}

/// What comes behind the tag that the frame's first type tells of, and those after it.
#[inline(always)]
pub fn behind_tags(bytes: &(impl Bytes + ?Sized), mut ethertype: u16) -> Network {
    let mut offset = 14;
    for _ in 0..MAX_TAGS {
        if !is_tag(ethertype) {
            break;
        }
        let Some(next) = bytes.u16(offset + 2) else { return Network::new(Network::TRUNCATED, 0) };
        ethertype = next;
        offset += 4;
    }
    Network::new(ethertype, offset)
}

#[cfg(test)]
mod tests;
