//! Limits without numbers. While the host keeps up, nothing is refused. When it does not, the heaviest sources pay first,
//! down to one level for all: max-min fairness (Bertsekas and Gallager, Data Networks, 6.5.2).
//!
//! [`Law`] is a pure state machine. Each tick it gets a [`Reading`] and returns the [`Level`]: the rate that each source may
//! have, times its weight. It has no clock and reads nothing. [`Samples`] makes rates of sources from sampled packets, and
//! [`signals`] reads from the kernel what the sockets of a limit have queued and dropped, and [`Loads`] has what services report
//! of themselves. [`History`] has what the limit did in each of the last seconds. `simulation` has the law, against
//! simulated servers and sources, in its tests.
//!
//! docs/explanation/fair-limits.md has the equations, their stability and what the law cannot do.

mod history;
mod law;
mod level;
mod loads;
mod parameters;
mod reading;
mod samples;
pub mod signals;
#[cfg(test)]
mod simulation;
mod water;

pub use history::{History, Second, Step};
pub use law::{Cause, Failure, Law, Report, State};
pub use level::Level;
pub use loads::{LASTS as LOAD_LASTS, Load, Loads, MOST as MOST_LOAD, Refused};
pub use parameters::{Settings, Tier, Unit, period};
pub use reading::{Connections, Queue, Reading, Reported, Source};
pub use samples::{Above, HEAVIEST, Heavy, Samples};
