//! Addresses as in map keys: 16 bytes in network byte order, IPv4 as IPv4-mapped IPv6.

/// An IPv4 or IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Address {
    /// First eight bytes, in memory order.
    pub hi: u64,
    /// Last eight bytes, in memory order.
    pub lo: u64,
}

/// The prefix of an IPv4-mapped address, as the lower half of `lo` on a little-endian machine.
const MAPPED: u64 = 0xffff_0000;

impl Address {
    /// From the four bytes of an IPv4 address in memory order.
    #[inline(always)]
    #[must_use]
    pub const fn from_ipv4_memory(raw: u32) -> Self {
        Self {
            hi: 0,
            lo: (raw as u64) << 32 | MAPPED,
        }
    }

    /// From an IPv4 address.
    #[must_use]
    pub const fn from_ipv4(octets: [u8; 4]) -> Self {
        Self::from_ipv4_memory(u32::from_ne_bytes(octets))
    }

    /// From an IPv6 address.
    #[must_use]
    pub fn from_ipv6(octets: [u8; 16]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = octets;
        Self {
            hi: u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            lo: u64::from_ne_bytes([i, j, k, l, m, n, o, p]),
        }
    }

    /// The four bytes of an IPv4 address in memory order; of an IPv6 address, its last four.
    #[inline(always)]
    #[must_use]
    pub const fn ipv4_memory(&self) -> u32 {
        (self.lo >> 32) as u32
    }

    /// Whether it is an IPv4 address, or IPv4-mapped, which is the same.
    #[inline(always)]
    #[must_use]
    pub const fn is_ipv4(&self) -> bool {
        self.hi == 0 && self.lo & 0xffff_ffff == MAPPED
    }

    /// The 16 bytes.
    #[inline(always)]
    #[must_use]
    pub const fn octets(&self) -> [u8; 16] {
        let [a, b, c, d, e, f, g, h] = self.hi.to_ne_bytes();
        let [i, j, k, l, m, n, o, p] = self.lo.to_ne_bytes();
        [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
    }
}

#[cfg(target_endian = "big")]
compile_error!("keys are laid out for little-endian machines");
