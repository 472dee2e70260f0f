//! The live view of `weir top`.
//!
//! Keys and replies change [`App`], a state machine without a terminal or a socket; [`draw`] renders it. Only `view.rs`
//! uses the terminal. A separate thread queries the agent, so that keys work while it does not reply.

mod app;
mod draw;
mod fair;
mod history;
mod levels;
#[cfg(test)]
mod tests;
mod view;

pub use app::{App, Effect};
pub use draw::{Glyphs, Theme, draw};
pub use levels::{bounds_text, sparkline, whole};
pub use view::{Screen, run};
