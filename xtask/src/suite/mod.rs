//! The programs that cargo builds of the workspace's tests, and how they share the machine.

mod built;
mod busy;
mod lanes;

pub use built::{TestProgram, build};
pub use busy::Busy;
pub use lanes::{Job, run};
