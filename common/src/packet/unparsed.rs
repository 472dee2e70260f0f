//! Frames that cannot be limited by address.

use crate::essential::Essential;

/// The reason why a frame cannot be limited by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unparsed {
    /// ARP, which has a separate limit.
    Arp,
    /// Another protocol than IP, such as LLDP or spanning tree, which has no address to limit.
    NotIp,
    /// The frame ends within its link header.
    TruncatedLink,
    /// The frame ends before its IP addresses: the host's stack would drop it.
    TruncatedAddress,
    /// More VLAN tags than [`super::MAX_TAGS`]: the address may be beyond the parser's reach.
    TooManyTags,
    /// The IP header has another version than the ethertype: the host's stack would drop it.
    BadVersion,
    /// The TCP or UDP header cannot be read although limits use ports or flags: the host's stack would drop it.
    TruncatedTransport,
    /// A first fragment that ends before its transport header does (RFC 1858, RFC 7112).
    TinyFragment,
    /// A later fragment that begins within the TCP header (RFC 3128).
    OverlappingFragment,
}

/// The verdict on an unparsed frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// It passes within the limit of its kind.
    Limit(Essential),
    /// It is refused.
    Refuse,
}

impl Unparsed {
    /// The verdict: a frame that claims to be IP and hides its address is refused, since no limit could apply to it.
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
