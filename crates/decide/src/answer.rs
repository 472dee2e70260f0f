//! The reply to a question, and its HTTP headers.

use std::time::Duration;

use api::decide::Answer;
use common::rate_limiter::Outcome;
use hyper::header::HeaderValue;

/// A reply, and the `RateLimit-Policy` of the client's class.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided {
    pub answer: Answer,
    /// `None` for an exempt client.
    pub(super) policy: Option<HeaderValue>,
}

impl Decided {
    /// Adds the wait to the reply.
    pub(super) fn after(mut self, waited: Duration) -> Self {
        self.answer.waited_seconds = Some(waited.as_secs_f64());
        self
    }
}

/// The reply for an outcome.
pub(super) fn answer(limit: &str, outcome: Outcome) -> Answer {
    Answer {
        allowed: outcome.allowed,
        limit: limit.to_owned(),
        remaining: i64::try_from(outcome.remaining).unwrap_or(i64::MAX)
            - i64::try_from(outcome.debt).unwrap_or(i64::MAX),
        retry_after_seconds: outcome.retry_after.map(|wait| wait.as_secs_f64()),
        reset_after_seconds: outcome.reset_after.as_secs_f64(),
        tier: outcome.tier.nth,
        tier_remaining: outcome.tier.remaining,
        tier_reset_after_seconds: outcome.tier.reset_after.as_secs_f64(),
        waited_seconds: None,
        reservation: None,
    }
}
