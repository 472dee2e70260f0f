//! Compiles a policy to the rows of the kernel's maps.
//!
//! A *span* has the rules that apply to packets of one protocol, port and kind, side by side. Each span is laid out
//! once, so that the kernel program does one look-up for any number of limits. Limits with the same key share a slot of
//! the table of sources if they fit, so that one cache line has all their states.

mod at;
mod catalogue;
mod direction;
mod error;
mod group;
mod groups;
mod image;
mod layout;
mod plan;
mod prefixes;
mod rules;
mod scopes;
mod spans;
mod table;
#[cfg(test)]
mod tests;

pub use at::LimitAt;
pub use catalogue::CountedRule;
pub use config::PrefixKey;
pub use direction::compile;
pub use error::CompileError;
pub use group::Group;
pub use image::Image;
pub use layout::{CarryPlan, Layout, StateCarry};
pub use plan::{Plan, plan, plan_after};
pub use scopes::InterfaceNumbers;
pub use table::TableSpec;
