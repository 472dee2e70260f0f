//! Limits with `rate = "fair"`: a thread of its own reads their counters and signals, steps their laws, and writes their
//! levels into the kernel's rules. It ticks every 50 ms while a limit is off, and every 100 ms while it refuses. It waits for
//! nobody: its handles have maps of their own, and the lock of the policy in effect is only tried after a change.

mod changes;
mod controller;
mod document;
mod limited;
mod notes;
mod recent;
mod settings;

pub use controller::FairController;
pub(crate) use notes::{Note, all_notes};
