//! Ban lists: reads their sources, and replaces the lists in the kernel as a whole.
//!
//! A thread waits for intervals and for changes of files. Each URL is fetched on a thread of its own, so that a slow
//! server delays nothing else. The lists of an earlier agent stay in effect until those of this one replace them.

mod forecast;
mod one;
mod set;
mod source;
mod worker;

pub use forecast::notes as forecast;
pub use set::BanLists;
