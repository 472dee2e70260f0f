//! Checks of the project's Markdown: links, configs, and the output of commands.

mod blocks;
mod links;
mod page;

pub use blocks::{check_commands, check_configs};
pub use links::check as check_links;
pub use page::pages;
