//! The tables, one module each.

mod all;
mod ban_list;
mod class;
mod crowdsec;
mod group;
mod key;
mod limit;
mod notify;
mod request;

pub use all::TABLES;
