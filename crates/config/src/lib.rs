//! limits.toml: raw TOML → validated values → a policy whose types exclude invalid states.
//!
//! One module per table. All errors of a file are reported at once, each with its position and a correction.

mod agent;
pub mod ban_list;
mod built_in;
pub mod calendar;
mod changes;
mod check_headers;
mod checks;
mod class;
pub mod cluster;
mod crowdsec;
mod decide;
mod describe;
pub mod escalate;
mod excerpt;
mod fair;
mod fair_rules;
mod fleet;
mod fleet_stream;
mod fleet_team;
mod formula;
mod functions;
mod geo;
pub mod group;
mod group_resources;
pub mod human;
mod levels;
mod limit;
mod limit_action;
mod limit_rules;
mod limit_scope;
mod load;
mod names;
pub mod notify;
mod over;
pub mod policy;
mod ports;
pub mod prefix;
mod prefix_key;
mod rates;
pub mod reference;
pub mod report;
mod request;
pub mod request_key;
mod request_limit;
mod request_notes;
mod requests;
pub mod schema;
pub mod ssh;
mod suggestion;
mod table;
mod tcp;
mod ticks;
pub mod units;
mod value_pattern;
mod words;

pub use changes::{Change, Changes, needing_restart};
pub use checks::forgeable_exemptions;
pub use excerpt::excerpt;
pub use formula::{Formula, FormulaError};
pub use load::{ConfigError, Loaded, load, parse, paths, read_argument, read_text};
pub use policy::DEFAULT_SOCKET;
pub use prefix_key::PrefixKey;
pub use ssh::ssh_warning;
pub use suggestion::suggestion;

#[cfg(test)]
mod tests;
