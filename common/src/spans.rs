//! Packed rows of rules: for a protocol and kind, a port or a scope.

use crate::packet::{Kind, Protocol};
use crate::rule::RuleSpan;

/// Rows of [`crate::settings::Settings::spans`]: protocols times kinds of packet, and [`HIDDEN_SPAN`].
pub const SPANS: usize = 13;

/// The row for packets whose protocol is hidden: the limits of every protocol.
pub const HIDDEN_SPAN: usize = 12;

/// The row of [`crate::settings::Settings::spans`] and of [`PortSpans`] for a packet.
#[inline(always)]
#[must_use]
pub const fn span_index(protocol: Protocol, kind: Kind) -> usize {
    let protocol = match protocol {
        Protocol::Tcp => 0,
        Protocol::Udp => 3,
        Protocol::Icmp => 6,
        Protocol::Other => 9,
        Protocol::Hidden => return HIDDEN_SPAN,
    };
    protocol
        + match kind {
            Kind::Plain => 0,
            Kind::Connection => 1,
            Kind::Request => 2,
        }
}

/// The rules for TCP and UDP packets on one local port: rows 0 to 5 of [`span_index`]. Where limits are for certain
/// sources or interfaces, the first word is the port's row of [`crate::scope::ScopeSpans`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct PortSpans {
    /// `first << 8 | count` each.
    pub packed: [u32; 6],
}

impl PortSpans {
    /// Packs a span.
    #[must_use]
    pub const fn pack(span: RuleSpan) -> u32 {
        span.first << 8 | span.count & 0xff
    }

    /// Unpacks a span.
    #[inline(always)]
    #[must_use]
    pub const fn unpack(packed: u32) -> RuleSpan {
        RuleSpan {
            first: packed >> 8,
            count: packed & 0xff,
        }
    }
}

/// The spans of a pair of numbers: rows of [`span_index`], packed as in [`PortSpans`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C, align(64))]
pub struct ScopeSpans {
    /// The first [`SPANS`] are in use; in a row for ports the first six.
    pub packed: [u32; 16],
}

const _: () = assert!(SPANS <= 16);
