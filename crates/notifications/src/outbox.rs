//! The queue of one receiver: a pure state machine that gets the time as an argument.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::Event;
use api::notification::{NotificationFailing, NotificationStatus};
use common::rate_limiter::Policy;
use config::policy::Notify;
use host::backoff::Backoff;

use crate::batch::Batch;
use crate::document::Document;

/// How long the first event waits for others of the same moment.
pub const GATHER: Duration = Duration::from_millis(500);

/// The pauses between attempts.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub reason: String,
    pub retry: Retry,
}

/// Whether a later attempt may succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    Later,
    /// Not before this time, which the receiver requests.
    After(Duration),
    Never,
}

impl Failure {
    /// A failure after which the attempt is repeated.
    pub const fn retried(reason: String) -> Self {
        Self {
            reason,
            retry: Retry::Later,
        }
    }
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing until an event comes.
    Idle,
    /// Nothing until this instant, or until an event comes.
    Wait(Instant),
    /// Send this document.
    Attempt(Arc<str>),
}

/// A change for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Attempts fail from now on.
    Failing,
    /// Attempts succeed again, after so many failures.
    Recovered(u64),
    /// A notification was dropped.
    Dropped,
}

/// A document that is not delivered yet.
#[derive(Debug)]
struct Delivery {
    body: Arc<str>,
    events: u64,
    failures: u32,
    /// The instant of the first attempt.
    began: Instant,
    due: Instant,
}

/// A receiver whose last attempt failed.
#[derive(Debug)]
struct Failing {
    since: Instant,
    attempts: u64,
    reason: String,
}

#[derive(Debug, Default)]
struct Totals {
    delivered: u64,
    dropped: u64,
    failed_attempts: u64,
    events_delivered: u64,
    events_dropped: u64,
    left_out: u64,
}

/// The events and the unfinished notification of one receiver.
#[derive(Debug)]
pub struct Outbox {
    config: Notify,
    host: String,
    /// Distinguishes the documents of this outbox from those of others.
    run: u64,
    documents: u64,
    pace: Policy,
    pace_state: [u64; 1],
    epoch: Instant,
    batch: Batch,
    /// The instant of the batch's first event.
    since: Option<Instant>,
    delivery: Option<Delivery>,
    failing: Option<Failing>,
    /// Notifications dropped since the last delivered one.
    undelivered: u64,
    totals: Totals,
}

impl Outbox {
    /// An empty outbox. `run` is a random number.
    pub fn new(config: Notify, host: String, run: u64, now: Instant) -> Self {
        let pace = Policy::token_bucket(config.rate, config.rate.count);
        let mut pace_state = [0];
        pace.open(&mut pace_state, 0);
        Self {
            config,
            host,
            run,
            documents: 0,
            pace,
            pace_state,
            epoch: now,
            batch: Batch::default(),
            since: None,
            delivery: None,
            failing: None,
            undelivered: 0,
            totals: Totals::default(),
        }
    }

    /// Adds an event to the next notification. Returns whether it is the first, for which a sender that is idle wakes.
    pub fn absorb(&mut self, event: &Arc<Event>, now: Instant) -> bool {
        let is_first = self.batch.is_empty();
        self.batch.add(event);
        self.since.get_or_insert(now);
        is_first
    }

    /// The step at `now`; `time` is the same in seconds since 1970.
    pub fn next(&mut self, now: Instant, time: f64) -> Step {
        if self.delivery.is_none() {
            let Some(since) = self.since else {
                return Step::Idle;
            };
            if now < since + GATHER {
                return Step::Wait(since + GATHER);
            }
            let at = self.nanoseconds(now);
            if !self.pace.charge(&mut self.pace_state, at, 1) {
                let wait = self.pace.wait(&self.pace_state, at, 1).unwrap_or(u64::MAX);
                // At least a moment, so that a rounded wait does not spin.
                return Step::Wait(
                    now + Duration::from_nanos(wait.clamp(1_000_000, 3_600_000_000_000)),
                );
            }
            self.make(now, time);
        }
        match &self.delivery {
            Some(delivery) if now < delivery.due => Step::Wait(delivery.due),
            Some(delivery) => Step::Attempt(Arc::clone(&delivery.body)),
            None => Step::Idle,
        }
    }

    /// Makes a document of the batch.
    fn make(&mut self, now: Instant, time: f64) {
        let batch = std::mem::take(&mut self.batch);
        self.since = None;
        self.documents += 1;
        let id = format!("{:016x}-{}", self.run, self.documents);
        let document = Document::new(
            &id,
            time,
            &self.host,
            &self.config.name,
            &batch,
            self.undelivered,
        );
        let body = document.json().into();
        self.totals.left_out += batch.left_out.values().sum::<u64>();
        self.delivery = Some(Delivery {
            body,
            events: batch.count,
            failures: 0,
            began: now,
            due: now,
        });
    }

    /// Records a successful attempt.
    pub fn delivered(&mut self) -> Option<Change> {
        let delivery = self.delivery.take()?;
        self.totals.delivered += 1;
        self.totals.events_delivered += delivery.events;
        self.undelivered = 0;
        self.failing
            .take()
            .map(|failing| Change::Recovered(failing.attempts))
    }

    /// Records a failed attempt. `random` is from 0 to 1.
    pub fn failed(&mut self, failure: Failure, now: Instant, random: f64) -> Vec<Change> {
        let Some(delivery) = &mut self.delivery else {
            return Vec::new();
        };
        self.totals.failed_attempts += 1;
        let mut changes = Vec::new();
        match &mut self.failing {
            Some(failing) => {
                (failing.attempts, failing.reason) = (failing.attempts + 1, failure.reason);
            }
            None => {
                self.failing = Some(Failing {
                    since: now,
                    attempts: 1,
                    reason: failure.reason,
                });
                changes.push(Change::Failing);
            }
        }
        delivery.failures = delivery.failures.saturating_add(1);
        let requested = match failure.retry {
            Retry::After(after) => after,
            Retry::Later | Retry::Never => Duration::ZERO,
        };
        delivery.due = now + PAUSES.pause_by(delivery.failures, random).max(requested);
        let is_over =
            delivery.due.saturating_duration_since(delivery.began) > self.config.retry_for;
        if is_over || failure.retry == Retry::Never {
            self.totals.dropped += 1;
            self.totals.events_dropped += delivery.events;
            self.undelivered += 1;
            self.delivery = None;
            changes.push(Change::Dropped);
        }
        changes
    }

    /// The reason of the last failure.
    pub fn reason(&self) -> &str {
        self.failing.as_ref().map_or("", |failing| &failing.reason)
    }

    pub fn status(&self, now: Instant) -> NotificationStatus {
        let seconds = |instant: Instant| now.saturating_duration_since(instant).as_secs_f64();
        let failing = self.failing.as_ref().map(|failing| NotificationFailing {
            for_seconds: seconds(failing.since),
            attempts: failing.attempts,
            error: failing.reason.clone(),
            next_attempt_in_seconds: self
                .delivery
                .as_ref()
                .map(|delivery| delivery.due.saturating_duration_since(now).as_secs_f64()),
        });
        let totals = &self.totals;
        NotificationStatus {
            name: self.config.name.clone(),
            on: self.config.on.iter().map(ToString::to_string).collect(),
            to: self.config.target().to_string(),
            delivered: totals.delivered,
            dropped: totals.dropped,
            failed_attempts: totals.failed_attempts,
            events_delivered: totals.events_delivered,
            events_dropped: totals.events_dropped,
            events_waiting: self.batch.count
                + self.delivery.as_ref().map_or(0, |delivery| delivery.events),
            left_out: totals.left_out,
            failing,
        }
    }

    fn nanoseconds(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.epoch).as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests;
