//! Words of maps that CPUs share.

use common::table::{Counted, Tally};
use common::throttle::Cell;

use crate::atomics;

/// Adds to a tally. The byte is written separately, so that the rest of its word is unchanged.
///
/// # Safety
///
/// The byte is in a map's value.
#[inline(always)]
pub unsafe fn count_byte(byte: *mut u8, packets: u32, instant: u8) -> Counted {
    // SAFETY: as the caller promises; volatile since other CPUs write it.
    let (tally, counted) = Tally(unsafe { byte.read_volatile() }).plus(packets, instant);
    // SAFETY: as before.
    unsafe { byte.write_volatile(tally.0) };
    counted
}

/// A word of a map.
#[derive(Clone, Copy)]
pub struct MapCell(pub *mut u64);

impl Cell for MapCell {
    #[inline(always)]
    fn load(self) -> u64 {
        // SAFETY: a map's value; volatile since other CPUs write it.
        unsafe { self.0.read_volatile() }
    }

    #[inline(always)]
    fn compare_exchange(self, current: u64, new: u64) -> u64 {
        // SAFETY: a map's value.
        unsafe { atomics::compare_exchange(self.0, current, new) }
    }

    #[inline(always)]
    fn store(self, value: u64) {
        // SAFETY: a map's value.
        unsafe { self.0.write_volatile(value) };
    }

    #[inline(always)]
    fn count(self, byte: u32, packets: u32, instant: u8) -> Counted {
        // SAFETY: one of the eight bytes of a map's value.
        unsafe { count_byte(self.0.cast::<u8>().add(byte as usize & 7), packets, instant) }
    }
}
