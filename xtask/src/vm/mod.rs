//! Virtual machines with other kernels, in which tests run that need one: emulated by QEMU, so that no machine is too
//! small or too virtual for them.
//!
//! A guest is a kernel of Debian's (`kernel`) with the modules that the tests need (`modules`), an initramfs made from
//! programs of this machine and the test's own (`guest`), and a QEMU that ends with what the test ended with
//! (`machine`).

mod debian;
mod guest;
mod kernel;
mod machine;
mod modules;

pub use guest::{Guest, Program};
pub use kernel::{Kernel, RELEASES, Release};
pub use machine::{Machine, Outcome};
