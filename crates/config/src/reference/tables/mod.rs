//! The tables, one module each.

mod all;
mod ban_list;
mod class;
mod group;
mod key;
mod limit;
mod request;

pub use all::TABLES;
