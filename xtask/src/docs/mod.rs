//! Checks of the project's Markdown: links, configs, the output of commands, and names of tests.

mod blocks;
mod links;
mod page;
mod tested;

pub use blocks::{check_commands, check_configs};
pub use links::check as check_links;
pub use page::pages;
pub use tested::check as check_tests;
