//! Decisions, single or all-or-nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::decide::{Answer, Question};
use arc_swap::ArcSwap;
use common::limiter::Rate;
use common::rate_limiter::{DecidingTier, Outcome};
use config::Formula;
use config::policy::{CheckHeaders, RequestLimit, RequestProtocol};
use hyper::header::HeaderValue;

use super::answer::{Decided, answer};
use super::charge::{Charge, ChargeKind};
use super::error::DecideError;
use super::escalation::Edge;
use super::fingerprint::Fingerprints;
use super::forecast::Forecast;
use super::limit::Limit;
use super::line::{Bounds, LineCounters, Lines, Spot, Waiting};
use super::offence::{Offence, Scope};
use super::periods::{Wall, within};
use super::quotas::Buckets;
use super::refusals::Refusals;
use super::reservations::{ReservationBounds, Reservations};
use super::resets::Resets;
use super::sources::{SourceClass, Sources};
use super::state_store::StateStore;
use super::tiers;
use super::unsupported::Unsupported;
use super::valid_request::ValidRequest;

/// All limits on requests, and the classes of clients.
pub struct Engine {
    pub(super) limits: Vec<Limit>,
    pub(super) by_name: HashMap<String, usize>,
    pub(super) requests: HashMap<String, Formula>,
    pub(super) sources: Sources,
    pub(super) fingerprints: Fingerprints,
    /// For limits whose keys hosts exchange: under their common secret.
    pub(super) together: Arc<ArcSwap<Fingerprints>>,
    /// Of these limits' keys.
    pub(super) resets: Arc<Resets>,
    pub(super) wall: Wall,
    /// Whether elastic limits pass more than their rate.
    pub(super) has_room: Arc<AtomicBool>,
    pub(super) edge: Arc<dyn Edge>,
    /// The protocols whose clients may cause bans.
    pub(super) escalate_from: Vec<RequestProtocol>,
    /// The headers that `/v1/check` reads.
    pub(super) check: Option<CheckHeaders>,
    pub(super) waiting: Arc<Waiting>,
    pub(super) bounds: Bounds,
    pub(super) reservations: Arc<Reservations>,
    pub(super) reservation_bounds: ReservationBounds,
    pub(super) refusals: Arc<Refusals>,
    pub(super) unsupported: Arc<Unsupported>,
    pub(super) quota_buckets: Arc<Buckets>,
}

/// The current engine, which is replaced when the config is reloaded.
pub type Current = ArcSwap<Engine>;

/// A clock: nanoseconds since a fixed instant.
pub type Now = fn() -> u64;

/// The reason why a charge does not pass now.
pub(super) struct Refused {
    pub(super) outcome: Outcome,
    /// The instant at which it will pass if only requests ahead of it do; `None`: unknown or never.
    pub(super) at: Option<u64>,
}

impl Engine {
    /// Decides or settles one request at `now`, in nanoseconds, without a wait.
    ///
    /// # Errors
    ///
    /// When the question is invalid; nothing is charged then.
    pub fn decide(&self, question: &Question, now: u64) -> Result<Answer, DecideError> {
        Ok(self.decide_alone(question, now)?.answer)
    }

    /// The same, with the reply's headers.
    pub(super) fn decide_alone(
        &self,
        question: &Question,
        now: u64,
    ) -> Result<Decided, DecideError> {
        self.expire(now);
        Ok(self.carry_out(self.validate(question, now)?, now))
    }

    /// Decides or settles a validated request.
    fn carry_out(&self, valid: ValidRequest, now: u64) -> Decided {
        match valid {
            ValidRequest::Charge(charge) => self.answer(&charge, self.decide_charge(charge, now)),
            ValidRequest::Reserve(charge, terms) => {
                let somebody_waits = !self.line_of(&charge).is_empty();
                let lines = somebody_waits.then(|| self.waiting.lock());
                self.reserve(lines.as_deref(), charge, terms, now)
            }
            ValidRequest::Settle((_, reservation), used) => {
                let decided = self.settle_reservation(&reservation, used, now);
                self.wake(&reservation.line);
                decided
            }
        }
    }

    /// Decides many requests separately.
    ///
    /// # Errors
    ///
    /// The first invalid question with its index; none is charged then.
    pub fn decide_each(
        &self,
        questions: &[Question],
        now: u64,
    ) -> Result<Vec<Decided>, (usize, DecideError)> {
        self.expire(now);
        let valid = self.validate_all(questions, now)?.into_iter();
        Ok(valid.map(|valid| self.carry_out(valid, now)).collect())
    }

    /// Whether a limit is elastic.
    #[must_use]
    pub fn is_elastic(&self) -> bool {
        let is_elastic = |limit: &Limit| limit.policy.throttle.is_elastic();
        self.limits.iter().any(is_elastic)
    }

    /// Whether elastic limits pass more than their rate; `None` if no limit is elastic.
    #[must_use]
    pub fn has_room(&self) -> Option<bool> {
        self.is_elastic()
            .then(|| self.has_room.load(Ordering::Relaxed))
    }

    /// Sets whether the host has resources to spare, which elastic limits pass more for.
    pub fn set_room(&self, has_room: bool) {
        self.has_room.store(has_room, Ordering::Relaxed);
    }

    /// The reply to a charge, with the `RateLimit-Policy` of the client's class.
    pub(super) fn answer(&self, charge: &Charge, outcome: Outcome) -> Decided {
        Decided {
            answer: answer(self.limit_name(charge), outcome),
            policy: self.policy_header(charge).cloned(),
        }
    }

    /// The store of a charge's key; `None` if the client is exempt.
    pub(super) fn store_of(&self, charge: &Charge) -> Option<&StateStore> {
        self.shared_store_of(charge).map(Arc::as_ref)
    }

    /// The same, to be kept.
    pub(super) fn shared_store_of(&self, charge: &Charge) -> Option<&Arc<StateStore>> {
        let SourceClass::Multiplier(multiplier) = charge.source_class else {
            return None;
        };
        self.limits.get(charge.limit)?.stores.get(multiplier)
    }

    /// Decides one charge; requests that wait for its key are ahead of it.
    fn decide_charge(&self, charge: Charge, now: u64) -> Outcome {
        let line = self.line_of(&charge);
        let outcome = if line.is_empty() {
            self.decide_now(charge, now)
        } else {
            self.decide_behind(&self.waiting.lock(), charge, now)
        };
        // Also of a queue that was empty before.
        if charge.kind == ChargeKind::Refund {
            self.wake(line);
        }
        outcome
    }

    /// Decides one charge that does not wait.
    pub(super) fn decide_behind(&self, lines: &Lines, charge: Charge, now: u64) -> Outcome {
        match self.behind(lines, &charge, now) {
            Some(refused) => self.count(&charge, refused.outcome, now),
            None => self.decide_now(charge, now),
        }
    }

    /// Charges and counts a request that conforms and is first in its queue; else the reason why it does not pass.
    pub(super) fn try_pass(
        &self,
        lines: &Lines,
        charge: Charge,
        spot: &Spot,
        now: u64,
    ) -> Result<Outcome, Refused> {
        if lines.has(spot)
            && let Some(refused) = self.behind(lines, &charge, now)
        {
            return Err(refused);
        }
        self.pass(charge, now)
            .ok_or_else(|| self.refused(&charge, std::iter::empty(), now))
    }

    /// Charges and counts the request if it conforms.
    pub(super) fn pass(&self, charge: Charge, now: u64) -> Option<Outcome> {
        let Some(store) = self.store_of(&charge) else {
            return Some(self.free(&charge));
        };
        let outcome = store.decide(charge.key, now, charge.cost);
        (outcome.allowed || self.limits[charge.limit].observes_now())
            .then(|| self.count(&charge, outcome, now))
    }

    /// The reply to a charge behind other waiting requests.
    pub(super) fn behind(&self, lines: &Lines, charge: &Charge, now: u64) -> Option<Refused> {
        let spot = self.spot(charge).filter(|spot| lines.has(spot))?;
        let is_free = charge.cost == 0 || !charge.may_be_refused();
        if is_free || self.limits[charge.limit].observes_now() {
            return None;
        }
        Some(self.refused(charge, lines.costs(&spot), now))
    }

    fn refused(&self, charge: &Charge, in_front: impl Iterator<Item = u64>, now: u64) -> Refused {
        let at = self.forecast(charge, now).and_then(|mut forecast| {
            let mut pass = |cost| forecast.passes_at(cost, u64::MAX).ok();
            // Requests ahead pass in time, or do not wait.
            for cost in in_front {
                let _ = pass(cost);
            }
            pass(charge.cost)
        });
        Refused {
            outcome: self.refusal(charge, at, now),
            at,
        }
    }

    /// The reply to a charge that would conform at an instant, if ever.
    pub(super) fn refusal(&self, charge: &Charge, at: Option<u64>, now: u64) -> Outcome {
        let outcome = match self.store_of(charge) {
            Some(store) => store.peek(charge.key, now, charge.cost),
            None => self.free_outcome(charge),
        };
        let retry_after = match at {
            Some(at) => Some(Duration::from_nanos(at.saturating_sub(now))),
            None => outcome.retry_after,
        };
        // Waiting requests take what remains.
        let remaining = if outcome.allowed {
            0
        } else {
            outcome.remaining
        };
        Outcome {
            allowed: false,
            over: false,
            remaining,
            retry_after,
            tier: DecidingTier {
                remaining: remaining.min(outcome.tier.remaining),
                ..outcome.tier
            },
            ..outcome
        }
    }

    /// A forecast for a charge's key; `None` if it has no state or no limit.
    pub(super) fn forecast(&self, charge: &Charge, now: u64) -> Option<Forecast> {
        self.store_of(charge)?
            .lock(charge.key)
            .forecast(charge.key, now)
            .map(|forecast| forecast.until(charge.left))
    }

    /// The queue of a charge's key; `None` for a key without a limit and for a peek.
    pub(super) fn spot(&self, charge: &Charge) -> Option<Spot> {
        let SourceClass::Multiplier(multiplier) = charge.source_class else {
            return None;
        };
        Some(Spot::new(
            self.line_of(charge),
            *self.sources.multipliers().get(multiplier)?,
            charge.named,
        ))
    }

    /// The counters of the queue of a charge's limit.
    pub(super) fn line_of(&self, charge: &Charge) -> &Arc<LineCounters> {
        &self.limits[charge.limit].line
    }

    pub(super) fn limit_name(&self, charge: &Charge) -> &str {
        &self.limits[charge.limit].policy.name
    }

    pub(super) const fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// All waiting requests.
    #[must_use]
    pub const fn waiting(&self) -> &Arc<Waiting> {
        &self.waiting
    }

    fn decide_now(&self, charge: Charge, now: u64) -> Outcome {
        let Some(store) = self.store_of(&charge) else {
            return self.free(&charge);
        };
        let outcome = store.lock(charge.key).charge(&charge, now);
        self.count(&charge, outcome, now)
    }

    /// Counts an outcome, and lets it pass if the limit is on `observe`.
    pub(super) fn count(&self, charge: &Charge, outcome: Outcome, now: u64) -> Outcome {
        let limit = &self.limits[charge.limit];
        let observes = limit.observes_now();
        let outcome = within(outcome, charge.left);
        if matches!(charge.kind, ChargeKind::Peek | ChargeKind::Refund) {
            return observed(outcome, observes);
        }
        if let Some(together) = &limit.together {
            // A cost that never passes would take the shares of other hosts.
            let wanted = charge.cost.min(self.most_of(charge));
            together.wanted.fetch_add(wanted, Ordering::Relaxed);
            if !outcome.allowed {
                together.refused.fetch_add(wanted, Ordering::Relaxed);
            }
        }
        let counter = match (outcome.allowed, observes) {
            (true, _) => &limit.counters.passed,
            (false, true) => &limit.counters.would_refuse,
            (false, false) => &limit.counters.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if outcome.over {
            limit.counters.over.fetch_add(1, Ordering::Relaxed);
        }
        if !outcome.allowed {
            self.refusals
                .record(limit.refused_source(charge.source), observes, now);
        }
        if !outcome.allowed && !charge.bans_nobody && limit.refuses_when_enforced() {
            self.escalate(limit, charge, now);
        }
        observed(outcome, observes)
    }

    /// Whether refusals of requests over this protocol count towards a ban of the source that they name.
    pub(super) fn bans_from(&self, protocol: RequestProtocol) -> bool {
        self.escalate_from.contains(&protocol)
    }

    /// Counts a refusal towards `escalate`. Also under `mode = "observe"`, where the agent only reports the ban.
    fn escalate(&self, limit: &Limit, charge: &Charge, now: u64) {
        if let (Some(escalation), Some(escalate), Some(source)) =
            (&limit.escalation, limit.policy.escalate, charge.source)
            // Without room for its key, a source is refused for what others do.
            && self.store_of(charge).is_some_and(|store| store.lock(charge.key).knows(charge.key))
            && let Some(prefix) = escalation.refused(source, &self.fingerprints, now)
        {
            let limit = limit.policy.name.as_str().into();
            self.edge.escalate(Offence {
                limit,
                scope: Scope::Request,
                prefix,
                escalate,
            });
        }
    }

    /// An exempt client passes and is counted as passed.
    pub(super) fn free(&self, charge: &Charge) -> Outcome {
        let outcome = self.free_outcome(charge);
        if !matches!(charge.kind, ChargeKind::Peek | ChargeKind::Refund) {
            self.limits[charge.limit]
                .counters
                .passed
                .fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    pub(super) fn free_outcome(&self, charge: &Charge) -> Outcome {
        let most = self.limits[charge.limit]
            .stores
            .first()
            .map_or(0, |store| tiers::most(store.tiers()));
        Outcome {
            allowed: true,
            over: false,
            remaining: most,
            debt: 0,
            retry_after: Some(Duration::ZERO),
            reset_after: Duration::ZERO,
            tier: DecidingTier {
                remaining: most,
                ..DecidingTier::default()
            },
        }
    }

    /// The `RateLimit-Policy` of a charge's class, unless it is exempt.
    pub(super) fn policy_header(&self, charge: &Charge) -> Option<&HeaderValue> {
        let SourceClass::Multiplier(multiplier) = charge.source_class else {
            return None;
        };
        self.limits[charge.limit].policy_headers.get(multiplier)
    }

    /// The limit's rate for the charge's class, unless it is exempt.
    pub(super) fn quota(&self, charge: &Charge) -> Option<Rate> {
        let SourceClass::Multiplier(multiplier) = charge.source_class else {
            return None;
        };
        self.limit(charge.limit)
            .quotas(*self.sources.multipliers().get(multiplier)?)
            .first()
            .copied()
    }

    /// The configured limit.
    pub(super) fn limit(&self, nth: usize) -> &RequestLimit {
        &self.limits[nth].policy
    }

    /// Removes decayed keys, each lock for some tens of microseconds, and buckets of proxies.
    pub fn sweep(&self, now: u64) {
        self.quota_buckets.sweep(now);
        for limit in &self.limits {
            limit.stores.iter().for_each(|store| store.sweep(now));
            if let Some(escalation) = &limit.escalation {
                escalation.sweep(now);
            }
        }
    }
}

/// The outcome of a limit that may only observe.
fn observed(outcome: Outcome, observes: bool) -> Outcome {
    if outcome.allowed || !observes {
        return outcome;
    }
    Outcome {
        allowed: true,
        retry_after: Some(Duration::ZERO),
        ..outcome
    }
}
