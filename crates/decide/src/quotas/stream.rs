//! The stream of one proxy: its reports, and the assignments of its buckets.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use rls::envoy::service::rate_limit_quota::v3::rate_limit_quota_response::BucketAction;
use rls::envoy::service::rate_limit_quota::v3::rate_limit_quota_response::bucket_action::{
    self, AbandonAction, QuotaAssignmentAction,
};
use rls::envoy::service::rate_limit_quota::v3::{
    BucketId, RateLimitQuotaResponse, RateLimitQuotaUsageReports,
};
use rls::envoy::r#type::v3::rate_limit_strategy::{BlanketRule, Strategy};
use rls::envoy::r#type::v3::{RateLimitStrategy, TokenBucket};
use tonic::Status;

use super::bucket::{Bucket, Grant, Next, Report};
use super::buckets::{Buckets, Demand, Name, Pool, Proxy};
use crate::charge::Charge;
use crate::engine::Engine;

/// The shortest time that an assignment is valid. Envoy counts whole seconds.
const SHORTEST: Duration = Duration::from_secs(60);
/// A bucket without room is refused for this long while its limit has nothing left.
const WITHOUT_ROOM: Duration = Duration::from_secs(10);
/// An assignment is valid for so many intervals of reports.
const INTERVALS: u32 = 4;
/// The most buckets of a message: their work takes some tens of milliseconds.
const MOST_USAGES: usize = 10_000;
/// A token bucket that never fills: one token in a year, Envoy's slowest.
const NEVER: i64 = 365 * 24 * 3_600;

/// The buckets of one proxy. When its stream ends, it may spend its units: they stay charged.
#[derive(Debug)]
pub struct Stream {
    domain: String,
    assigned: HashMap<Name, Bucket>,
    buckets: Arc<Buckets>,
    proxy: Proxy,
}

/// The next assignment of a bucket.
struct Assignment {
    action: bucket_action::BucketAction,
    /// Whether its units are new.
    is_new: bool,
}

impl Stream {
    /// # Errors
    ///
    /// When there are too many.
    pub fn new(buckets: Arc<Buckets>) -> Result<Self, Status> {
        let full = || Status::resource_exhausted("too many quota streams: end one of them");
        Ok(Self {
            domain: String::new(),
            assigned: HashMap::new(),
            proxy: buckets.open().ok_or_else(full)?,
            buckets,
        })
    }

    /// Counts reports, and assigns units for the time until the next ones.
    ///
    /// # Errors
    ///
    /// Without a domain, if it changes, or with too many buckets.
    pub fn reply(
        &mut self,
        engine: &Engine,
        reports: RateLimitQuotaUsageReports,
        now: u64,
    ) -> Result<RateLimitQuotaResponse, Status> {
        if self.domain.is_empty() {
            self.domain = reports.domain;
        } else if !reports.domain.is_empty() && reports.domain != self.domain {
            return Err(Status::invalid_argument(format!(
                "domain changes from {:?} to {:?}: open another stream for it",
                self.domain, reports.domain
            )));
        }
        if self.domain.is_empty() {
            return Err(Status::invalid_argument(
                "missing domain in the first report",
            ));
        }
        let usages = reports.bucket_quota_usages.len();
        if usages > MOST_USAGES {
            return Err(Status::invalid_argument(format!(
                "{usages} buckets in a report: send at most {MOST_USAGES}, with fewer entries in bucket_id_builder"
            )));
        }
        engine.expire(now);
        let mut actions = Vec::with_capacity(reports.bucket_quota_usages.len());
        for usage in reports.bucket_quota_usages {
            let Some(id) = usage.bucket_id.filter(|id| !id.bucket.is_empty()) else {
                continue;
            };
            let report = Report::new(usage.num_requests_allowed, usage.num_requests_denied, now);
            let Assignment { action, is_new } = self.assign(engine, &id, report);
            if is_new {
                // Envoy begins a token bucket with the part of its tokens that it had of the one before.
                actions.push(BucketAction {
                    bucket_id: Some(id.clone()),
                    bucket_action: Some(assignment(blanket(BlanketRule::DenyAll), SHORTEST)),
                });
            }
            actions.push(BucketAction {
                bucket_id: Some(id),
                bucket_action: Some(action),
            });
        }
        Ok(RateLimitQuotaResponse {
            bucket_action: actions,
        })
    }

    /// Counts the report of a bucket; returns its next assignment.
    fn assign(&mut self, engine: &Engine, id: &BucketId, report: Report) -> Assignment {
        let limits = count(engine, &self.domain, id, report);
        let name = Name::new(&self.domain, &id.bucket);
        let mut entry = match self.assigned.entry(name.clone()) {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(_) if limits.is_empty() => {
                return assignment(blanket(BlanketRule::AllowAll), SHORTEST).into();
            }
            Entry::Vacant(entry) if self.buckets.enter(&name, self.proxy) => {
                entry.insert_entry(Bucket::new())
            }
            Entry::Vacant(_) => return without_room(engine, &limits, report).into(),
        };
        let bucket = entry.get_mut();
        let interval = bucket.interval(report.now);
        let (settled, beyond) = bucket.count(report);
        if let Some(settled) = settled {
            engine.settle_grant(&settled, report.now);
        }
        engine.charge_beyond(&limits, beyond, report.now);
        let mut is_new = false;
        let strategy = match bucket.next(report) {
            Next::Abandon => {
                entry.remove();
                self.buckets.leave(&name, self.proxy);
                return abandon().into();
            }
            _ if limits.is_empty() => {
                for grant in bucket.take_all() {
                    engine.settle_grant(&grant, report.now);
                }
                blanket(BlanketRule::AllowAll)
            }
            Next::Drain => {
                bucket.drain(report.now);
                blanket(BlanketRule::DenyAll)
            }
            next => {
                if let Next::Grant { most, more_than } = next {
                    let pool = Pool {
                        units: engine.most_of_proxies(&limits, interval),
                        remaining: engine.remaining(&limits, report.now),
                        now: report.now,
                    };
                    let mut part = self.buckets.part(&name, self.proxy, bucket.held(), pool);
                    if bucket.is_new() {
                        // Another proxy may have the same bucket a moment later.
                        part = part.div_ceil(2);
                    }
                    // Of an allowance that keys without room share, nothing returns.
                    let most = if engine.is_without_room(&limits) {
                        report.requests().max(1).min(part)
                    } else {
                        most.min(part)
                    };
                    if let Some(grant) = engine.grant(&limits, most, more_than, report.now) {
                        bucket.replace(grant, report.now);
                        is_new = true;
                    }
                }
                bucket
                    .current()
                    .map_or(blanket(BlanketRule::DenyAll), strategy_of)
            }
        };
        let valid = SHORTEST.max(Duration::from_nanos(interval) * INTERVALS);
        let until = report.now.saturating_add(valid.as_nanos() as u64);
        bucket.set_end(until);
        let demand = Demand {
            requests: report.requests(),
            held: bucket.held(),
            until,
            has_ended: false,
        };
        self.buckets.set_demand(&name, self.proxy, demand);
        Assignment {
            action: assignment(strategy, valid),
            is_new,
        }
    }
}

impl From<bucket_action::BucketAction> for Assignment {
    fn from(action: bucket_action::BucketAction) -> Self {
        Self {
            action,
            is_new: false,
        }
    }
}

/// Counts a report at all limits of its bucket. Returns those that require units.
fn count(engine: &Engine, domain: &str, id: &BucketId, report: Report) -> Vec<Charge> {
    let mut charges = engine.charges_of_bucket(domain, &id.bucket);
    for charge in &charges {
        engine.count_report(charge, report);
    }
    charges.retain(|charge| engine.takes_units(charge));
    charges
}

/// Charges a report without a state of its bucket, which is denied while a limit has nothing left.
fn without_room(engine: &Engine, limits: &[Charge], report: Report) -> bucket_action::BucketAction {
    engine.charge_beyond(limits, report.allowed, report.now);
    if engine.remaining(limits, report.now) == 0 {
        return assignment(blanket(BlanketRule::DenyAll), WITHOUT_ROOM);
    }
    abandon()
}

fn assignment(strategy: Strategy, valid: Duration) -> bucket_action::BucketAction {
    bucket_action::BucketAction::QuotaAssignmentAction(QuotaAssignmentAction {
        assignment_time_to_live: Some(prost_types::Duration {
            seconds: valid.as_secs() as i64,
            nanos: 0,
        }),
        rate_limit_strategy: Some(RateLimitStrategy {
            strategy: Some(strategy),
        }),
    })
}

fn blanket(rule: BlanketRule) -> Strategy {
    Strategy::BlanketRule(rule.into())
}

fn strategy_of(grant: &Grant) -> Strategy {
    Strategy::TokenBucket(TokenBucket {
        max_tokens: u32::try_from(grant.units).unwrap_or(u32::MAX),
        tokens_per_fill: Some(1),
        fill_interval: Some(prost_types::Duration {
            seconds: NEVER,
            nanos: 0,
        }),
    })
}

fn abandon() -> bucket_action::BucketAction {
    bucket_action::BucketAction::AbandonAction(AbandonAction {})
}

impl Drop for Stream {
    fn drop(&mut self) {
        for name in self.assigned.keys() {
            self.buckets.end(name, self.proxy);
        }
        self.buckets.close();
    }
}
