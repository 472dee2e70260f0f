//! What this host supports of a config, with fixes: the document of `agent doctor`.

mod check;
mod host;
mod interfaces;
mod report;
#[cfg(test)]
mod tests;

pub use check::{Check, Verdict};
pub use report::{Report, examine, lacking};
