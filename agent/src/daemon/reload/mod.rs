//! The config in effect and its replacement: reloads, trials and rollbacks.

mod allowed;
mod apply;
mod databases;
mod ended_trial;
mod error;
mod follow;
mod last_valid;
mod live;
mod on_trial;
mod protected;
mod record;
mod rules;
mod source;
mod summary;
mod trial;
mod watch;

pub use allowed::{AllowanceTerms, follow_allowances};
pub use databases::{follow_databases, report_changes};
pub use ended_trial::EndedTrial;
pub use error::ReloadError;
pub use follow::follow_interfaces;
pub use last_valid::{LastValid, keep_as_last_valid};
pub use live::{Cause, Changing, Live};
pub use protected::follow_protected;
pub use record::Record;
pub use source::Source;
pub use summary::{in_effect, report_left_out};
pub use trial::TRIALS;
pub use watch::changes;
