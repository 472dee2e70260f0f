//! Evaluates one packet under all its rules: charged by all or by none.
//!
//! First every rule is checked; a packet that one of them refuses has then changed nothing, and costs only the update
//! of a counter. Only if all pass are they charged, each by compare-and-swap. If a rule refuses after all because
//! another CPU was faster, the earlier charges are refunded.

mod cells;
mod charge;
mod counting;
mod fair;
mod fair_rule;
mod fast;
mod host;
mod hot;
mod newcomer;
mod one_rule;
mod open;
mod outcome;
mod overflow;
mod packet_state;
mod slot;
mod slow;
mod steps;
mod verdict;

pub use self::cells::{CELLS, FullTable, is_background, least};
pub use self::fair_rule::{FairStep, charge_fair, charge_new_fair, take_back_fair};
pub use self::host::{Cell, Host, Sample};
pub use self::hot::{add_hot, charge_hot, make_hot};
pub use self::one_rule::{charge, charge_by_bucket, conclude, look, refuse_by, take_back};
pub use self::open::{open, take};
pub use self::outcome::{Outcome, TableEvent};
pub use self::overflow::{claim, estimate, leave, spread};
pub use self::packet_state::PacketState;
pub use self::slow::evaluate_by_bucket;
pub use self::steps::Steps;
pub use self::verdict::{HotVerdict, PackedVerdict, Passage, Verdict};

use self::fair::{evaluate_with_fair, pass_by_fair_alone, split};
use self::fast::evaluate_on_fast_path;
use self::slow::evaluate_on_slow_path;
use crate::rule::{RuleSpan, Subject};

/// Evaluates a packet under the rules of `span`.
#[inline(always)]
pub fn evaluate<H: Steps>(host: &H, span: RuleSpan, subject: &Subject) -> Verdict {
    let mut span = span;
    if host.fair_in_use() && span.count & RuleSpan::FAIR != 0 {
        let split = split(host, span, subject);
        if split.is_busy {
            return evaluate_with_fair(host, &split, subject);
        }
        span = split.others;
        if span.count == 0 {
            return pass_by_fair_alone(host, span, subject);
        }
    }
    match evaluate_on_fast_path(host, span, subject) {
        Some(verdict) => verdict,
        None => evaluate_on_slow_path(host, span, subject),
    }
}
