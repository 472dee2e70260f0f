//! The memory of Weir's lock-free code on loom's atomics: `common` is generic over its memory, so that the models in
//! `tests/models` run the code of the kernel programs itself.
//!
//! Memory is as weak as the kernel programs' on arm64: reads and writes are relaxed, exchanges are fully ordered.

mod cpus;
mod explore;
mod memory;

pub use cpus::{Work, cpus};
pub use explore::explore;
pub use memory::{Cpu, Memory, SetRef, Word};
