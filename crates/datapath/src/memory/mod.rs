//! The memory that a policy takes, predicted before it is loaded: at rest, and at the peak of a change.
//!
//! During a change, the kernel has the old policy and the new one. If the new one cannot reuse the table, as after any
//! change of a limit, there are also two tables, and the agent's copy of the states in use.

mod allocator;
mod check;
mod demand;
mod footprint;
mod kernel;
mod room;

pub use allocator::{keep_little, prefer_huge_pages, tick, trim, trim_soon};
pub use api::memory::{Footprint, Limit, MemoryStatus};
pub use check::MemoryCheck;
pub use demand::{Demand, Lasting, TooLarge};
pub use footprint::footprint;
pub use kernel::{PAGE, copy};
pub use room::Room;
