//! From the operator's policy to the kernel's rows.

mod image;

pub use image::{CountedRule, Group, Image, PrefixKey};
