//! Evaluates one packet under all its rules: charged by all or by none.
//!
//! First every rule is checked; a packet that one of them refuses has then changed nothing, and costs only the update
//! of a counter. Only if all pass are they charged, each by compare-and-swap. If a rule refuses after all because
//! another CPU was faster, the earlier charges are refunded.

mod cells;
mod charge;
mod counting;
mod hearing;
mod host;
mod judge;
mod newcomer;
mod one_rule;
mod open;
mod overflow;
mod slot;
mod slow;
mod steps;
mod swift;
mod verdict;

pub use self::cells::{CELLS, FullTable, is_background, least};
pub use self::hearing::Hearing;
pub use self::host::{Cell, Host, Outcome, Sighting, TableEvent};
pub use self::judge::judge;
pub use self::one_rule::{charge, charge_by_bucket, conclude, look, take_back};
pub use self::open::{open, take};
pub use self::overflow::{claim, estimate, leave, spread};
pub use self::slow::judge_by_bucket;
pub use self::steps::Steps;
pub use self::verdict::{Passage, Ruling, Verdict};
