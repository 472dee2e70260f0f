//! Read-modify-write on map memory.
//!
//! `core::sync::atomic` lacks these on the BPF target, which declares no compare-and-swap; the intrinsics compile to
//! the instructions of `-Ctarget-cpu=v3`. Only sequentially consistent: a relaxed exchange whose result is used
//! compiles to an instruction with another result.

use core::intrinsics::{
    AtomicOrdering::SeqCst, atomic_and, atomic_cxchg, atomic_or, atomic_xadd, atomic_xchg,
};

/// Replaces `current` by `new` and returns the previous value.
///
/// # Safety
///
/// `word` points to eight bytes of a map's value, aligned to eight.
#[inline(always)]
pub unsafe fn compare_exchange(word: *mut u64, current: u64, new: u64) -> u64 {
    // SAFETY: as above.
    unsafe { atomic_cxchg::<u64, { SeqCst }, { SeqCst }>(word, current, new).0 }
}

/// Writes `value` and returns the previous value.
///
/// # Safety
///
/// As [`compare_exchange`].
#[inline(always)]
pub unsafe fn exchange(word: *mut u64, value: u64) -> u64 {
    // SAFETY: as above.
    unsafe { atomic_xchg::<u64, { SeqCst }>(word, value) }
}

/// Sets `bits` and returns the previous value.
///
/// # Safety
///
/// As [`compare_exchange`].
#[inline(always)]
pub unsafe fn fetch_or(word: *mut u64, bits: u64) -> u64 {
    // SAFETY: as above.
    unsafe { atomic_or::<u64, u64, { SeqCst }>(word, bits) }
}

/// Clears all but `bits`.
///
/// # Safety
///
/// As [`compare_exchange`].
#[inline(always)]
pub unsafe fn and(word: *mut u64, bits: u64) {
    // SAFETY: as above.
    unsafe {
        atomic_and::<u64, u64, { SeqCst }>(word, bits);
    }
}

/// Adds `value`.
///
/// # Safety
///
/// As [`compare_exchange`].
#[inline(always)]
pub unsafe fn add(word: *mut u64, value: u64) {
    // SAFETY: as above.
    unsafe {
        atomic_xadd::<u64, u64, { SeqCst }>(word, value);
    }
}
