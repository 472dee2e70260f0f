//! The tables, one module each.

mod all;
mod ban_list;
mod class;
mod cluster;
mod crowdsec;
mod decide;
mod geo;
mod group;
mod key;
mod limit;
mod notify;
mod request;

pub use all::TABLES;
