//! The addresses of this host, from which the programs reply to refused packets.

use crate::packet::Address;

/// The most known addresses; packets to others are refused without a reply.
pub const MOST_OWN: u32 = 16_384;

/// An address of this host, or the hardware address of one of its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct OwnKey([u64; 2]);

impl OwnKey {
    /// No address of a host starts with this many ones.
    const HARDWARE: u64 = u64::MAX;

    /// An IP address.
    #[inline(always)]
    #[must_use]
    pub const fn of_address(address: Address) -> Self {
        Self([address.hi, address.lo])
    }

    /// A hardware address, as the lowest six bytes in memory order.
    #[inline(always)]
    #[must_use]
    pub const fn of_hardware(memory: u64) -> Self {
        Self([Self::HARDWARE, memory])
    }

    /// Whether it is a hardware address.
    #[must_use]
    pub const fn is_device(&self) -> bool {
        self.0[0] == Self::HARDWARE
    }

    /// A hardware address.
    #[must_use]
    pub const fn of_device([a, b, c, d, e, f]: [u8; 6]) -> Self {
        Self::of_hardware(u64::from_ne_bytes([a, b, c, d, e, f, 0, 0]))
    }
}

/// The value of an address in the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Own {
    /// It is on a device whose frames are the same as on the wire.
    Plain = 1,
    /// It is on a VLAN device, or a VLAN device has the hardware address. The driver may have removed the tag of a frame
    /// to it that arrives untagged, and XDP cannot restore it.
    Tagged = 2,
}
