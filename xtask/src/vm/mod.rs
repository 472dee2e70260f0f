//! Virtual machines with other kernels, in which tests run that need one: emulated by QEMU, so that no machine is too
//! small or too virtual for them.
//!
//! A guest is a kernel of Debian's (`kernel`) with the modules that the tests need (`modules`), an initramfs made from
//! programs of this machine and the test's own (`guest`), and a QEMU that ends with what the test ended with
//! (`machine`).
//!
//! A guest with systemd (`systemd`) is a Debian that starts from a disk, with the package in it and its tests in
//! agent/tests/systemd. To add one: write `fn name()` in a file there and an entry in that file's `TESTS`, then run
//! `cargo xtask vm --systemd -- --test systemd NAME`; `guest.rs` beside it has the guest's network and commands. A test fails by a
//! panic, whereupon the journal since its start is printed. Tests after a reboot stand in the list of their boot.

mod debian;
mod guest;
mod kernel;
mod machine;
mod modules;
mod systemd;

pub use guest::{Guest, Program};
pub use kernel::{Kernel, RELEASES, Release};
pub use machine::{Machine, Outcome};
pub use systemd::{Cargo, DISTRIBUTIONS, Distribution, Image};
