//! Bans of sources that a limit keeps refusing.
//!
//! Refusals are counted in two places: by decisions on requests, exactly, and by readings of the kernel programs'
//! counters of packets ([`Refusals`]). Both create an [`Offence`]. One thread ([`super::orders`]) receives them, and the
//! packet engine turns them into bans, each further one longer ([`History`]).

mod history;
mod offence;
mod prune;
mod refusals;
mod window;

pub use decide::{Offence, Scope};
pub use history::{History, SavedEscalation};
pub use offence::{Escalated, event};
pub use refusals::{Look, Offender, Refusals};
pub use window::SlidingCount;
