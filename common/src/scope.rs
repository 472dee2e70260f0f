//! Limits for certain sources or interfaces: finding the rules of a packet.
//!
//! Sources with the same limits share a number, and so do interfaces. The number of a source is in its prefix's entry,
//! with the multiplier index; the number of an interface is in a map. Each pair of numbers has rows of spans: the first
//! for packets without a port that a limit names, the others for ports that the same limits name.

use crate::rule::RuleSpan;
use crate::spans::PortSpans;

pub use crate::spans::ScopeSpans;

/// The way to find the spans of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SpansBy {
    /// In [`crate::settings::Settings::spans`].
    Protocol = 0,
    /// In the map of ports, if the packet has one.
    Port = 1,
    /// In the rows of [`ScopeSpans`].
    Scope = 2,
}

impl SpansBy {
    /// From [`crate::settings::Settings::spans_by`].
    #[inline(always)]
    #[must_use]
    pub const fn from_setting(setting: u32) -> Self {
        match setting {
            0 => Self::Protocol,
            1 => Self::Port,
            _ => Self::Scope,
        }
    }
}

/// The constants for a packet's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Scoping {
    /// The low bits of [`crate::prefix::PrefixEntry::source_index`] that are the source's number. The bits above are the
    /// multiplier index.
    pub source_bits: u32,
    /// The count of interface numbers.
    pub interfaces: u32,
    /// The number of rows for each pair of numbers.
    pub rows: u32,
}

impl Scoping {
    /// Every limit applies to all sources and interfaces.
    pub const NONE: Self = Self {
        source_bits: 0,
        interfaces: 1,
        rows: 1,
    };

    /// The source number in a source index.
    #[inline(always)]
    #[must_use]
    pub const fn source(self, source_index: u32) -> u32 {
        source_index & ((1 << (self.source_bits & 31)) - 1)
    }

    /// The multiplier index in a source index.
    #[inline(always)]
    #[must_use]
    pub const fn multiplier(self, source_index: u32) -> u32 {
        source_index >> (self.source_bits & 31)
    }
}

/// A packet as a number: its row of [`crate::spans::span_index`], and its local port if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScopedPacket(pub u32);

impl ScopedPacket {
    const HAS_PORT: u32 = 1 << 4;

    /// A packet without ports.
    #[inline(always)]
    #[must_use]
    pub const fn new(index: usize) -> Self {
        Self(index as u32 & 15)
    }

    /// The same with a local port.
    #[inline(always)]
    #[must_use]
    pub const fn with_port(self, port: u16) -> Self {
        Self(self.0 | Self::HAS_PORT | (port as u32) << 16)
    }
}

/// The rows, and the maps that lead to them.
pub trait Scopes {
    /// The constants for a packet's row.
    fn scoping(&self) -> Scoping;
    /// The number of an interface by its index; 0 for those that no limit names.
    fn interface_number(&self, index: u32) -> u32;
    /// The row of a local port.
    fn port_row(&self, port: u16) -> u32;
    /// A row.
    fn scope_spans(&self, row: u32) -> Option<&ScopeSpans>;
    /// The number of rows of rules for one multiplier.
    fn rules_of_multiplier(&self) -> u32;
}

/// The rules of a packet from a source with this source index, on the interface with this index.
#[inline(always)]
#[must_use]
pub fn find(
    scopes: &impl Scopes,
    source_index: u32,
    interface: u32,
    packet: ScopedPacket,
) -> RuleSpan {
    const NONE: RuleSpan = RuleSpan { first: 0, count: 0 };
    let scoping = scopes.scoping();
    let number = if scoping.interfaces > 1 {
        scopes.interface_number(interface)
    } else {
        0
    };
    let has_port = packet.0 & ScopedPacket::HAS_PORT != 0;
    let row = if scoping.rows > 1 && has_port {
        scopes.port_row((packet.0 >> 16) as u16)
    } else {
        0
    };
    let pair = scoping.source(source_index) * scoping.interfaces + number;
    let Some(spans) = scopes.scope_spans(pair * scoping.rows + row) else {
        return NONE;
    };
    let span = PortSpans::unpack(spans.packed[(packet.0 & 15) as usize]);
    if span.count == 0 {
        return NONE;
    }
    RuleSpan {
        first: span.first + scoping.multiplier(source_index) * scopes.rules_of_multiplier(),
        count: span.count,
    }
}
