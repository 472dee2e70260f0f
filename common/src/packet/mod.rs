//! From bytes to what a limit asks of a packet: whose it is, and what kind.
//!
//! Invariant: nothing passes a limit by being hard to parse. The address is taken from the IP header before anything
//! above it is looked at, and what lies above and cannot be read only makes the packet one without ports. Each way to
//! fail has a name ([`Unparsed`]) and one verdict ([`Unparsed::disposition`]).
//!
//! The parser runs in the kernel's verifier: offsets are bounded by a compare, loops by a constant.

mod address;
#[cfg(any(test, feature = "user"))]
pub mod build;
mod network;
pub mod reply;
mod transport;

pub use address::Address;

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
    /// The length of the whole frame in bytes.
    fn length(&self) -> u32;
    /// The offset itself, which is at most [`FURTHEST`]. In the kernel, the verifier forgets here what it knows of it, so
    /// that it need not look at every combination of headers that may lie before it, but at each header once.
    fn forget(&self, offset: usize) -> usize {
        offset
    }
}

/// The largest offset that [`Bytes::forget`] is asked for: one less than a power of two.
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
    /// Everything else, and what cannot be told.
    Other,
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
    /// Source and destination port in host byte order, if they can be told.
    pub ports: Option<Ports>,
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

impl Packet {
    /// The port on this host, if it can be told.
    #[inline(always)]
    #[must_use]
    pub fn local_port(&self, direction: Direction) -> Option<u16> {
        match (self.ports, direction) {
            (Some(ports), Direction::Ingress) => Some(ports.destination),
            (Some(ports), Direction::Egress) => Some(ports.source),
            (None, _) => None,
        }
    }

    /// Bytes before the payload: link, network and transport header.
    #[inline(always)]
    #[must_use]
    pub fn headers(&self, bytes: &(impl Bytes + ?Sized)) -> u32 {
        let transport = usize::from(self.transport_offset);
        let length = match self.protocol {
            Protocol::Tcp => u32::from(bytes.u16(transport + 12).unwrap_or(0) >> 12) * 4,
            Protocol::Udp => 8,
            Protocol::Icmp | Protocol::Other => 0,
        };
        u32::from(self.transport_offset) + length
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

/// Why nothing is known of a frame, not even whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unparsed {
    /// Not IP: ARP, LLDP, spanning tree. Limits are on addresses it does not have.
    NotIp,
    /// The frame ends within its link header.
    TruncatedLink,
    /// It says it is IP and ends before its addresses: the host's own stack would drop it.
    TruncatedAddress,
    /// More VLAN tags than [`MAX_TAGS`]: the address may be further in than anybody looks.
    TooManyTags,
    /// It says it is IP of one version, and its header says otherwise: the host's own stack would drop it.
    BadVersion,
}

/// What is done with a frame that is not parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// It passes.
    Pass,
    /// It is refused.
    Refuse,
}

impl Unparsed {
    /// The one verdict for each: what claims to be IP and hides its address is refused, for no limit could hold it.
    #[inline(always)]
    #[must_use]
    pub const fn disposition(self) -> Disposition {
        match self {
            Self::NotIp => Disposition::Pass,
            Self::TruncatedLink | Self::TruncatedAddress | Self::TooManyTags | Self::BadVersion => Disposition::Refuse,
        }
    }
}

/// VLAN tags that are looked through.
pub const MAX_TAGS: usize = 4;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;

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

/// (whether IPv4, where the IP header begins).
#[inline(always)]
fn ethernet(bytes: &(impl Bytes + ?Sized)) -> Result<(bool, usize), Unparsed> {
    let mut ethertype = bytes.u16(12).ok_or(Unparsed::TruncatedLink)?;
    let mut offset = 14;
    for _ in 0..=MAX_TAGS {
        match ethertype {
            ETHERTYPE_IPV4 => return Ok((true, offset)),
            ETHERTYPE_IPV6 => return Ok((false, offset)),
            // 802.1Q, 802.1ad, and what came before 802.1ad.
            0x8100 | 0x88a8 | 0x9100 => {
                ethertype = bytes.u16(offset + 2).ok_or(Unparsed::TruncatedLink)?;
                offset += 4;
            }
            _ => return Err(Unparsed::NotIp),
        }
    }
    Err(Unparsed::TooManyTags)
}

#[cfg(test)]
mod tests;
