//! A proxy with one bucket, which spends its tokens as Envoy 1.40 does.

use std::collections::{HashMap, VecDeque};

use rls::envoy::service::rate_limit_quota::v3::rate_limit_quota_response::bucket_action;
use rls::envoy::service::rate_limit_quota::v3::rate_limit_quota_usage_reports::BucketQuotaUsage;
use rls::envoy::service::rate_limit_quota::v3::{BucketId, RateLimitQuotaUsageReports};
use rls::envoy::r#type::v3::rate_limit_strategy::{BlanketRule, Strategy};

use super::SECOND;
use crate::Engine;
use crate::quotas::stream::Stream;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assignment {
    None,
    Tokens { left: u64, of: u32 },
    AllowAll,
    DenyAll,
}

/// A proxy with one bucket.
pub struct Proxy {
    pub stream: Stream,
    pub assignment: Assignment,
    until: u64,
    /// Whether requests pass without an assignment.
    pub allows_unassigned: bool,
    allowed: u64,
    denied: u64,
    pub passed: u64,
    /// Assignments on their way, with their arrival.
    coming: VecDeque<(u64, bucket_action::BucketAction)>,
    pub is_known: bool,
}

impl Proxy {
    pub fn new(engine: &Engine) -> Self {
        Self {
            stream: Stream::new(engine.quota_buckets.clone()).unwrap(),
            assignment: Assignment::None,
            until: u64::MAX,
            allows_unassigned: false,
            allowed: 0,
            denied: 0,
            passed: 0,
            coming: VecDeque::new(),
            is_known: false,
        }
    }

    /// The stream ends, with what is on its way.
    pub fn reconnect(&mut self, engine: &Engine) {
        self.stream = Stream::new(engine.quota_buckets.clone()).unwrap();
        self.coming.clear();
    }

    pub fn receive(&mut self, now: u64) {
        while self.coming.front().is_some_and(|(at, _)| *at <= now) {
            let (_, action) = self.coming.pop_front().unwrap();
            self.take(action, now);
        }
        if now >= self.until {
            self.assignment = Assignment::None;
        }
    }

    pub fn request(&mut self, engine: &Engine, now: u64) -> bool {
        self.receive(now);
        let passes = match &mut self.assignment {
            Assignment::None => self.allows_unassigned,
            Assignment::AllowAll => true,
            Assignment::DenyAll => false,
            Assignment::Tokens { left, .. } => {
                let has = *left > 0;
                *left -= u64::from(has);
                has
            }
        };
        self.allowed += u64::from(passes);
        self.denied += u64::from(!passes);
        self.passed += u64::from(passes);
        if !std::mem::replace(&mut self.is_known, true) {
            self.report(engine, now, 0);
        }
        passes
    }

    pub fn take(&mut self, action: bucket_action::BucketAction, now: u64) {
        let action = match action {
            bucket_action::BucketAction::AbandonAction(_) => {
                (self.allowed, self.denied, self.is_known) = (0, 0, false);
                (self.assignment, self.until) = (Assignment::None, u64::MAX);
                return;
            }
            bucket_action::BucketAction::QuotaAssignmentAction(action) => action,
        };
        let seconds = action.assignment_time_to_live.unwrap().seconds as u64;
        assert!(seconds > 0, "it would end at once");
        self.until = now + seconds * SECOND;
        self.assignment = match action.rate_limit_strategy.unwrap().strategy.unwrap() {
            Strategy::BlanketRule(rule) if rule == i32::from(BlanketRule::AllowAll) => {
                Assignment::AllowAll
            }
            Strategy::BlanketRule(_) => Assignment::DenyAll,
            Strategy::TokenBucket(tokens) => {
                assert_eq!(tokens.fill_interval.unwrap().seconds, 365 * 24 * 3_600);
                let max = tokens.max_tokens;
                // As Envoy 1.40: the part of the tokens that it has.
                let left = match self.assignment {
                    Assignment::Tokens { left, of } => left * u64::from(max) / u64::from(of),
                    _ => u64::from(max),
                };
                Assignment::Tokens { left, of: max }
            }
        };
    }

    /// Reports, and has the reply after a delay.
    pub fn report(&mut self, engine: &Engine, now: u64, delay: u64) {
        self.receive(now);
        if !self.is_known {
            return;
        }
        let usage = BucketQuotaUsage {
            bucket_id: Some(id("alice")),
            num_requests_allowed: std::mem::take(&mut self.allowed),
            num_requests_denied: std::mem::take(&mut self.denied),
        };
        let reply = self
            .stream
            .reply(engine, reports(vec![usage]), now)
            .unwrap();
        for action in reply.bucket_action {
            assert_eq!(action.bucket_id, Some(id("alice")));
            self.coming
                .push_back((now + delay, action.bucket_action.unwrap()));
        }
    }
}

pub fn id(user: &str) -> BucketId {
    BucketId {
        bucket: HashMap::from([("user".to_owned(), user.as_bytes().to_vec())]),
    }
}

pub fn reports(usages: Vec<BucketQuotaUsage>) -> RateLimitQuotaUsageReports {
    RateLimitQuotaUsageReports {
        domain: "shop".to_owned(),
        bucket_quota_usages: usages,
    }
}
