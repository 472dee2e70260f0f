//! The parts of a release, made so that two builds of one commit are identical.
//!
//! `source` chooses the commit and copies its tree, `compile` builds static programs from the copy, `packages`, `tarball`,
//! `image` and `materials` make files of them, `sums` signs these, and `compare` checks a release of somebody else.

mod archive;
mod audit;
mod build_info;
mod compare;
mod compile;
mod image;
mod materials;
mod packages;
mod source;
mod sums;
mod tarball;
mod target;

pub use build_info::BuildInfo;
pub use compare::compare;
pub use compile::{Compilation, Speed};
pub use image::{Image, image_name, layout};
pub use materials::write as write_materials;
pub use packages::{deb, rpm};
pub use source::Source;
pub use sums::{sign, sums_of, write as write_sums};
pub use tarball::tarball;
pub use target::{TARGETS, Target};
