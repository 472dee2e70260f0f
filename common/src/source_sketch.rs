//! An estimate of how many sources a level refuses: HyperLogLog (Flajolet, Fusy, Gandouet and Meunier, 2007).

use crate::rule::Subject;

/// The number of registers.
pub const REGISTERS: usize = 64;

/// The registers; the standard error of the estimate is 13 %. An IPv6 source is a /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct SourceSketch {
    registers: [u8; REGISTERS],
}

impl SourceSketch {
    /// Without sources.
    pub const EMPTY: Self = Self {
        registers: [0; REGISTERS],
    };

    /// Forgets all sources.
    #[inline(always)]
    pub fn clear(&mut self) {
        // Word by word: a call of `memset` would need another part of a kernel program's stack.
        let words = (&raw mut self.registers).cast::<u64>();
        for nth in 0..REGISTERS / size_of::<u64>() {
            // SAFETY: one of the words of the registers, which are aligned as words.
            unsafe { words.add(nth).write_volatile(0) };
        }
    }

    /// Adds a source by its hash.
    #[inline(always)]
    pub fn add(&mut self, hash: u64) {
        // The lowest bits choose the register, the others are the value.
        let rank = ((hash / REGISTERS as u64).trailing_zeros() + 1) as u8;
        if let Some(register) = self.registers.get_mut(hash as usize % REGISTERS)
            && *register < rank
        {
            *register = rank;
        }
    }

    /// Each register: the highest rank of its sources, from 1; 0 without sources.
    #[must_use]
    pub const fn registers(&self) -> &[u8; REGISTERS] {
        &self.registers
    }
}

impl Default for SourceSketch {
    fn default() -> Self {
        Self::EMPTY
    }
}

/// The hash of a packet's source. The seed is secret, so that senders cannot choose registers.
#[inline(always)]
#[must_use]
pub const fn hash([first, second]: [u64; 2], source: u64) -> u64 {
    // The finalizer of SplitMix64 (Steele, Lea and Flood, 2014): neighbouring addresses differ in few bits.
    let mixed = (source ^ first).wrapping_add(second);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// The number of a packet's source: an IPv4 address, or the first 64 bits of an IPv6 address.
#[inline(always)]
#[must_use]
pub const fn number(subject: &Subject) -> u64 {
    if subject.is_ipv4 != 0 {
        subject.lo
    } else {
        subject.hi
    }
}
