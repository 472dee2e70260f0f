//! Returns memory of the agent to the system.

use std::sync::atomic::{AtomicU32, Ordering};

/// Configures the allocator to return freed memory at once. By default it keeps, for each thread, as much as the
/// largest block that was ever freed: loading a policy temporarily takes some 16 MiB.
///
/// Huge pages are disabled for the agent. If the host enables them for every process, the kernel fills returned pages
/// up to 2 MiB each: a policy of 38 MiB was seen to take 50 MiB.
pub fn keep_little() {
    // SAFETY: this sets a flag of the process and takes no pointer.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
    #[cfg(target_env = "gnu")]
    for (parameter, bytes) in [
        (libc::M_MMAP_THRESHOLD, 128 << 10),
        (libc::M_TRIM_THRESHOLD, 256 << 10),
    ] {
        // SAFETY: the allocator's own function, called before there are other threads.
        unsafe { libc::mallopt(parameter, bytes) };
    }
}

/// Asks the kernel for huge pages for memory that is read in random order: with pages of 4 KiB, most reads of a large table
/// wait for the page tables, too. Without such pages nothing changes.
pub fn prefer_huge_pages(memory: &mut [u64]) {
    const PAGE: usize = 4_096;
    let start = memory.as_mut_ptr().cast::<u8>();
    let skipped = start.align_offset(PAGE);
    let length = size_of_val(memory).saturating_sub(skipped) / PAGE * PAGE;
    if length > 0 {
        // SAFETY: whole pages within the slice; the advice changes no content.
        unsafe { libc::madvise(start.add(skipped).cast(), length, libc::MADV_HUGEPAGE) };
    }
}

/// The number of calls of [`tick`] until memory is returned.
static TICKS_LEFT: AtomicU32 = AtomicU32::new(0);

/// Returns freed memory after some ticks, when the reply to a change has been sent and freed.
pub fn trim_soon() {
    TICKS_LEFT.store(4, Ordering::Relaxed);
}

/// A round of the agent's periodic work.
pub fn tick() {
    // Without it, an arena that is not used keeps what was freed.
    #[cfg(target_env = "musl")]
    jemalloc(c"arena.4096.decay");
    let left = TICKS_LEFT.load(Ordering::Relaxed);
    if left > 0 {
        TICKS_LEFT.store(left - 1, Ordering::Relaxed);
        if left == 1 {
            trim();
        }
    }
}

/// Returns freed memory to the system: reading a config and loading a policy temporarily take many times their result.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the allocator's own function, which takes its locks.
    unsafe {
        libc::malloc_trim(0);
    }
    #[cfg(target_env = "musl")]
    jemalloc(c"arena.4096.purge");
}

/// Has jemalloc do something with all its arenas.
#[cfg(target_env = "musl")]
fn jemalloc(name: &std::ffi::CStr) {
    let none = std::ptr::null_mut;
    // SAFETY: the call neither reads nor writes a value.
    unsafe { tikv_jemalloc_sys::mallctl(name.as_ptr(), none(), none().cast(), none(), 0) };
}
