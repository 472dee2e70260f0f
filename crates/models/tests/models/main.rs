//! Each test explores every interleaving of a few CPUs; see the crate.

mod banks;
mod charges;
mod connections;
mod counts;
mod slots;
