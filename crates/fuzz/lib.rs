//! What the fuzzers call: the same functions as `cargo test --test fuzz`.

#[path = "../../agent/tests/fuzz/entries/mod.rs"]
pub mod entries;
