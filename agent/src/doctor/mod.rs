//! The report of `weir doctor`: which parts of a config this host supports, with fixes.

mod check;
mod host;
mod interfaces;
mod locks;
mod report;
#[cfg(test)]
mod tests;

pub use check::{Check, Verdict};
pub use report::{Report, examine, lacking};
