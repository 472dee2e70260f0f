//! The entries of the fuzzers: the same functions as in `cargo test --test fuzz`.

#[path = "../../agent/tests/fuzz/entries/mod.rs"]
pub mod entries;
