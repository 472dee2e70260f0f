//! What belongs to this host: the addresses in whose name refused packets are answered.

use crate::packet::Address;

/// The most addresses that are known; packets to any other are refused without a reply.
pub const MOST_OWN: u32 = 16_384;

/// An address of this host's, or the hardware address of one of its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct OwnKey([u64; 2]);

impl OwnKey {
    /// No host has an address that begins with as many ones.
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

    /// A hardware address.
    #[must_use]
    pub const fn of_device([a, b, c, d, e, f]: [u8; 6]) -> Self {
        Self::of_hardware(u64::from_ne_bytes([a, b, c, d, e, f, 0, 0]))
    }
}

/// What the map says of an address of this host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Own {
    /// It is on a device whose frames are as they are on the wire.
    Plain = 1,
    /// It is on a VLAN device. A frame to it that comes without a tag has lost it to the driver, which XDP cannot restore.
    Tagged = 2,
}
