//! Each test explores every interleaving of a few CPUs; see the crate.

mod charges;
mod connections;
