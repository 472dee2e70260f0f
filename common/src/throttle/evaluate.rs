//! The verdict on a packet: by the fast path if possible, else by the slow one.

use super::fast::evaluate_on_fast_path;
use super::slow::evaluate_on_slow_path;
use super::steps::Steps;
use super::verdict::Verdict;
use crate::rule::{RuleSpan, Subject};

/// Evaluates a packet under the rules of `span`.
#[inline(always)]
pub fn evaluate<H: Steps>(host: &H, span: RuleSpan, subject: &Subject) -> Verdict {
    match evaluate_on_fast_path(host, span, subject) {
        Some(verdict) => verdict,
        None => evaluate_on_slow_path(host, span, subject),
    }
}
