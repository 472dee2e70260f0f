//! Hierarchical heavy hitters: the prefixes from which packets come, found without being configured.
//!
//! The input is a random sample of packets, in a [`Window`] of bounded time and size. Each sample counts at all levels of
//! its address, so that within the window the counts are exact: the only error is that of sampling. RHHH (Ben Basat,
//! Einziger, Friedman, Luizelli and Waisbard, SIGCOMM 2017) counts each packet at one random level, in a summary of
//! bounded size. It has the error of a sample that is as many times smaller as there are levels, and that of the summary.
//!
//! A prefix is heavy if it has a share of the packets without those of the heavy prefixes within it (Cormode, Korn,
//! Muthukrishnan and Srivastava, 2003). A prefix is therefore not reported only because one of its sources is heavy.

mod hierarchy;
mod sample;
mod summary;
#[cfg(test)]
mod tests;
mod window;

pub use hierarchy::{IPV4_LEVELS, IPV6_LEVELS};
pub use sample::{Batch, Sample};
pub use summary::{HeavyPrefix, Summary};
pub use window::Window;
