//! The allocator of static programs. That of musl has one lock, and takes twice as long for a decision over gRPC.

use std::ffi::c_char;

use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// A string that jemalloc reads at its start.
#[repr(transparent)]
pub struct Options(*const c_char);

// SAFETY: the string is constant.
unsafe impl Sync for Options {}

/// Pages are returned a tenth of a second after they are freed, by `datapath::memory::tick` at the latest. More arenas hold
/// more free memory, and by default there are four a CPU.
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static OPTIONS: Options = Options(c"narenas:4,dirty_decay_ms:100,muzzy_decay_ms:0".as_ptr());
