//! Requests that reserve, commit and release.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use api::decide::{OnExpiry, Question};
use common::rate_limiter::{DecidingTier, Outcome};

use super::answer::{Decided, answer};
use super::charge::{Charge, ChargeKind};
use super::engine::Engine;
use super::error::DecideError;
use super::line::{LineCounters, Lines};
use super::periods::within;
use super::reservations::{Account, Reservation, Reservations};
use super::state_store::StateStore;
use super::tiers::{self, Charges};
use super::valid_request::{Terms, ValidRequest};

impl Engine {
    /// Validates several requests. If one is invalid, reservations that others name stay open.
    pub(super) fn validate_all(
        &self,
        questions: &[Question],
        now: u64,
    ) -> Result<Vec<ValidRequest>, (usize, DecideError)> {
        let mut all = Vec::with_capacity(questions.len());
        for (nth, question) in questions.iter().enumerate() {
            match self.validate(question, now) {
                Ok(valid) => all.push(valid),
                Err(error) => {
                    for valid in all {
                        if let ValidRequest::Settle(taken, _) = valid {
                            self.reservations.put_back(taken);
                        }
                    }
                    return Err((nth, error));
                }
            }
        }
        Ok(all)
    }

    /// Validates a request.
    pub(super) fn validate(
        &self,
        question: &Question,
        now: u64,
    ) -> Result<ValidRequest, DecideError> {
        check(question)?;
        if let Some(id) = &question.release {
            return Ok(ValidRequest::Settle(self.reservations.take(id)?, 0));
        }
        if let Some(id) = &question.commit {
            let taken = self.reservations.take(id)?;
            let used = match self.used(&taken.1, question) {
                Ok(used) => used,
                Err(error) => {
                    self.reservations.put_back(taken);
                    return Err(error);
                }
            };
            return Ok(ValidRequest::Settle(taken, used));
        }
        let charge = self.charge(question)?;
        let Some(time) = question.reserve else {
            return Ok(ValidRequest::Charge(charge));
        };
        let terms = Terms {
            place: self.reservations.place(
                (self.line_of(&charge).id, charge.named),
                self.reservation_bounds,
            )?,
            until: now.saturating_add(time.time().as_nanos() as u64),
            on_expiry: question.on_expiry.unwrap_or_default(),
        };
        Ok(ValidRequest::Reserve(charge, terms))
    }

    /// The units of a commit: those of the question, else those that were reserved.
    fn used(&self, reservation: &Reservation, question: &Question) -> Result<u64, DecideError> {
        if question.cost.is_none() && question.request.is_none() && question.parameters.is_empty() {
            return Ok(reservation.charged);
        }
        match self.cost(reservation.most, question)? {
            (used, ChargeKind::Refund) if used > 0 => Err(DecideError::Cost(
                "a negative cost conflicts with commit: commit what was used, or release the reservation",
            )),
            (used, _) if question.forces_nothing && used > reservation.reserved => {
                Err(DecideError::Fields(
                    "a commit of more than was reserved requires root on the control socket: run it with sudo, or use [decide] http",
                ))
            }
            (used, _) => Ok(used),
        }
    }

    /// Reserves a cost if it conforms, behind requests that wait for its key.
    pub(super) fn reserve(
        &self,
        lines: Option<&Lines>,
        charge: Charge,
        terms: Terms,
        now: u64,
    ) -> Decided {
        if let Some(refused) = lines.and_then(|lines| self.behind(lines, &charge, now)) {
            return self.answer(&charge, self.count(&charge, refused.outcome, now));
        }
        let (outcome, account, charged) = match self.shared_store_of(&charge) {
            None => (self.free(&charge), None, charge.cost),
            Some(store) => {
                let (outcome, account) = self.charge_account(store, &charge, now);
                // A limit on observe lets pass what it does not charge.
                let charged = if outcome.allowed { charge.cost } else { 0 };
                (self.count(&charge, outcome, now), Some(account), charged)
            }
        };
        let mut decided = self.answer(&charge, outcome);
        if outcome.allowed {
            let reservation = Reservation {
                policy: decided.policy.clone(),
                until: terms.until,
                on_expiry: terms.on_expiry,
                ..self.reservation(&charge, account, charged, now)
            };
            decided.answer.reservation = Some(terms.place.fill(reservation).to_string());
        }
        decided
    }

    /// A reservation without an end, of which `charged` units are charged.
    pub(super) fn reservation(
        &self,
        charge: &Charge,
        account: Option<Account>,
        charged: u64,
        now: u64,
    ) -> Reservation {
        let line = self.line_of(charge);
        Reservation {
            limit: self.limit_name(charge).to_owned(),
            policy: None,
            account,
            line: Arc::clone(line),
            together: self.limits[charge.limit].together.clone(),
            spot: (line.id, charge.named),
            most: self.most_of(charge),
            at: now,
            reserved: charge.cost,
            charged,
            until: u64::MAX,
            on_expiry: OnExpiry::Commit,
        }
    }

    /// Charges a cost if it conforms, to be settled later, without counting the request.
    pub(super) fn charge_account(
        &self,
        store: &Arc<StateStore>,
        charge: &Charge,
        now: u64,
    ) -> (Outcome, Account) {
        let mut held = store.lock(charge.key);
        let shares = held.shares(charge.key, now, charge.cost);
        let outcome = held.charge(charge, now);
        let is_own = held.knows(charge.key);
        let account = Account {
            store: Arc::clone(store),
            key: charge.key,
            is_own,
            charges: if is_own {
                held.charges(charge.key, now, &shares)
            } else {
                Charges::default()
            },
            periods: self.limits[charge.limit]
                .periods
                .clone()
                .map(|periods| (periods, charge.named)),
        };
        (outcome, account)
    }

    /// The whole allowance of a charge's class, on all hosts together.
    pub(super) fn most_of(&self, charge: &Charge) -> u64 {
        match self.store_of(charge) {
            Some(store) => tiers::most(store.tiers()),
            None => self.free_outcome(charge).remaining,
        }
    }

    /// Returns what a reservation has not used, or charges what it has used beyond it.
    pub(super) fn settle_reservation(
        &self,
        reservation: &Reservation,
        used: u64,
        now: u64,
    ) -> Decided {
        // Of what a limit that observes has not charged, nothing is charged later.
        let more = used.saturating_sub(reservation.reserved);
        if let (Some(together), Some(_)) = (&reservation.together, &reservation.account) {
            let wanted = more.min(reservation.most);
            together.wanted.fetch_add(wanted, Ordering::Relaxed);
        }
        let outcome = match &reservation.account {
            None => Outcome {
                allowed: true,
                over: false,
                remaining: reservation.most,
                debt: 0,
                retry_after: Some(Duration::ZERO),
                reset_after: Duration::ZERO,
                tier: DecidingTier {
                    remaining: reservation.most,
                    ..DecidingTier::default()
                },
            },
            Some(Account {
                store,
                key,
                is_own,
                charges,
                periods,
            }) => {
                let current = periods
                    .as_ref()
                    .map(|(periods, named)| periods.now(*named, &self.fingerprints));
                // Keys without room share an allowance of the current period.
                let is_chargeable = *is_own || current.is_none_or(|current| current.key == *key);
                let mut held = store.lock(*key);
                let outcome = match () {
                    () if more > 0 && is_chargeable => held.force(*key, now, more),
                    () if used < reservation.charged && *is_own => {
                        held.refund(*key, now, reservation.refund(used), charges)
                    }
                    () => held.peek(*key, now, 0),
                };
                drop(held);
                // It is settled in its own period; the client has the current one.
                let outcome = match current {
                    Some(current) if current.key != *key => store.peek(current.key, now, 0),
                    _ => outcome,
                };
                Outcome {
                    allowed: true,
                    retry_after: Some(Duration::ZERO),
                    ..within(outcome, current.map(|current| current.left))
                }
            }
        };
        Decided {
            answer: answer(&reservation.limit, outcome),
            policy: reservation.policy.clone(),
        }
    }

    /// Settles the reservations that are over.
    pub fn expire(&self, now: u64) {
        if now < self.reservations.next_due() {
            return;
        }
        for reservation in self.reservations.take_due(now) {
            if reservation.on_expiry == OnExpiry::Release {
                self.settle_reservation(&reservation, 0, now);
                self.wake(&reservation.line);
            }
        }
    }

    /// Serves the queues, since a key has more than before.
    pub(super) fn wake(&self, line: &LineCounters) {
        if !line.is_empty() {
            self.waiting().changed();
        }
    }

    pub(super) fn reservations(&self) -> Arc<Reservations> {
        Arc::clone(&self.reservations)
    }

    /// The number of open reservations.
    #[must_use]
    pub fn open_reservations(&self) -> usize {
        self.reservations.len()
    }
}

/// Checks which fields there are.
fn check(question: &Question) -> Result<(), DecideError> {
    let is_refund = question.is_refund();
    let settles = question.commit.is_some() || question.release.is_some();
    let asks = !question.limit.is_empty()
        || !question.key.is_empty()
        || question.source.is_some()
        || question.peek
        || question.wait.is_some()
        || question.reserve.is_some()
        || question.on_expiry.is_some()
        || question.charge.is_some();
    let has_cost =
        question.cost.is_some() || question.request.is_some() || !question.parameters.is_empty();
    let conflict = match () {
        () if question.commit.is_some() && question.release.is_some() => {
            "commit conflicts with release: leave out one of them"
        }
        () if settles && asks => {
            "commit and release take a reservation's ID, and commit a cost or a request: leave out the other fields"
        }
        () if question.release.is_some() && has_cost => {
            "release returns the whole reservation: leave out the cost, or commit it"
        }
        () if settles => return Ok(()),
        () if question.limit.is_empty() => return Err(DecideError::MissingLimit),
        () if question.on_expiry.is_some() && question.reserve.is_none() => {
            "on_expiry requires reserve: add reserve with a time such as \"30s\""
        }
        () if question.peek && question.wait.is_some() => {
            "peek conflicts with wait: a peek charges nothing; remove one of them"
        }
        () if question.peek
            && (question.reserve.is_some() || question.charge.is_some() || is_refund) =>
        {
            "peek conflicts with reserve, charge and a negative cost: a peek changes nothing"
        }
        () if question.wait.is_some()
            && (question.reserve.is_some() || question.charge.is_some() || is_refund) =>
        {
            "wait conflicts with reserve, charge and a negative cost: leave out one of them"
        }
        () if question.reserve.is_some() && (question.charge.is_some() || is_refund) => {
            "reserve conflicts with charge and a negative cost: force what a reservation lacks when you commit it"
        }
        () if question.charge.is_some() && is_refund => {
            "charge conflicts with a negative cost, which is a refund: leave out one of them"
        }
        () => return Ok(()),
    };
    Err(DecideError::Fields(conflict))
}
