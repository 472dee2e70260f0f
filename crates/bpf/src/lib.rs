//! BPF for the packet path and process groups: objects, links, pins, BTF and the kernel's release.

pub mod btf;
mod directory;
pub mod link;
pub mod lockdown;
pub mod objects;
mod release;
pub mod syscall;

pub use directory::{DirectoryError, create_directory, open_directory};
pub use release::{TESTED, is_kernel_too_old, is_too_old, is_untested, kernel_release};
