//! Virtual machines with other kernels for tests that need one: emulated by QEMU, so that no hardware support is
//! needed.
//!
//! A guest is a kernel of Debian (`kernel`) with the modules that the tests need (`modules`), an initramfs with
//! programs of this machine, or Debian's for another architecture (`programs`), and the test (`guest`), and a QEMU that ends with the test's exit status (`machine`).
//!
//! A guest with systemd (`systemd`) is a Debian that starts from a disk, with the package in it and its tests in
//! agent/tests/systemd. To add one: write `fn name()` in a file there and an entry in that file's `TESTS`, then run
//! `cargo xtask vm --systemd -- --test systemd NAME`; `guest.rs` beside it has the guest's network and commands. A test fails by a
//! panic, whereupon the journal since its start is printed. Tests after a reboot stand in the list of their boot.
//!
//! A guest with BusyBox alone (`busybox`) has the archive of a release and a shell script that tries it.

mod busybox;
mod guest;
mod kernel;
mod machine;
mod modules;
mod programs;
mod report;
mod systemd;
mod tool;

pub use busybox::try_archive;
pub use guest::{Guest, Program};
pub use kernel::{Kernel, RELEASES, Release};
pub use machine::{Machine, Outcome};
pub use report::Report;
pub use systemd::{Cargo, DISTRIBUTIONS, Distribution, Image};
