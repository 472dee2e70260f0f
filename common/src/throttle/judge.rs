//! The verdict on a packet: by the fast path if possible, else by the slow one.

use super::slow::judge_thoroughly;
use super::steps::Steps;
use super::swift::judge_swiftly;
use super::verdict::Verdict;
use crate::rule::{RuleSpan, Subject};

/// Evaluates a packet under the rules of `span`.
#[inline(always)]
pub fn judge<H: Steps>(host: &H, span: RuleSpan, subject: &Subject) -> Verdict {
    match judge_swiftly(host, span, subject) {
        Some(verdict) => verdict,
        None => judge_thoroughly(host, span, subject),
    }
}
