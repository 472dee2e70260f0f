//! The toolchain for the `ebpf` crate: a rustc with the source of `core`, and a bpf-linker whose LLVM reads that
//! rustc's output.
//!
//! The first complete one of two is used. The usual one: a toolchain of rustup with the component `rust-src`, and
//! bpf-linker in PATH. Debian's: the packages rustc-web, rust-web-src and llvm-N-dev, and a bpf-linker built against
//! that LLVM in the user's cache folder.

mod compiler;
mod linker;
mod pair;
mod paths;

pub use compiler::Compiler;
pub use pair::{TARGET, Toolchain};
pub use paths::{Renamed, renamed};
