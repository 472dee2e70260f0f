//! The command line: its arguments, and one file per verb.

mod accepted;
mod allow;
pub mod arguments;
pub mod as_called;
mod ask;
mod ban;
mod capture;
mod check;
mod command_line;
mod completions;
mod decide;
mod detach;
mod doctor;
#[cfg(test)]
mod documented;
mod events;
mod execute;
mod exit;
mod fair;
mod groups;
mod heavy_prefixes;
mod html;
mod import;
mod manual;
mod names;
mod notify;
mod options;
mod package;
mod print;
mod progress;
mod record;
mod reload;
mod replay;
mod run;
mod socket;
mod suggest;
mod suggestions;
mod table;
mod top;
mod trace;
mod until;

pub use command_line::parsed;
pub use completions::complete_for_a_script;
pub use execute::execute;
