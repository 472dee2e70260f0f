//! `cargo xtask`: build, test and demonstrate Weir.
fn main() {}
