//! Requests that wait for a limit: first come, first served per key, bounded per key and in total.
//!
//! A refused request with `wait` is kept until it conforms, and charged then. Nothing overtakes it: later requests for
//! the key queue behind it. The instant at which each one will pass is known in advance, so that a request which cannot
//! pass in time is refused at once. A thread serves the queues when they are due and when a limit has changed.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use api::decide::Question;
use common::rate_limiter::Outcome;
use tokio::sync::oneshot;

use super::answer::Decided;
use super::charge::{Charge, ChargeKind};
use super::engine::{Current, Engine, Now};
use super::error::DecideError;
use super::forecast::Forecast;
use super::line::{Answered, Decision, Lines, Spot, Ticket, Waiter, Waiting, count};
use super::valid_request::ValidRequest;

impl Waiting {
    /// Decides requests separately; refused ones with `wait` enter their queues.
    pub(super) fn decide(
        self: &Arc<Self>,
        current: &Arc<Current>,
        questions: &[Question],
        now: Now,
    ) -> Result<Vec<Decision>, (usize, DecideError)> {
        current.load().expire(now());
        let mut lines = self.lock();
        // Replaced only while the queues are locked: see `replace`.
        let engine = current.load_full();
        let all = engine.validate_all(questions, now())?;
        let mut decisions = Vec::with_capacity(all.len());
        let mut places = engine.bounds().per_request();
        let mut returns = false;
        for (question, valid) in questions.iter().zip(all) {
            let charge = match valid {
                ValidRequest::Charge(charge) => charge,
                ValidRequest::Reserve(charge, terms) => {
                    let decided = engine.reserve(Some(&lines), charge, terms, now());
                    decisions.push(Decision::Made(decided));
                    continue;
                }
                ValidRequest::Settle((_, reservation), used) => {
                    let decided = engine.settle_reservation(&reservation, used, now());
                    decisions.push(Decision::Made(decided));
                    returns = true;
                    continue;
                }
            };
            returns |= charge.kind == ChargeKind::Refund;
            let (sender, answer) = oneshot::channel();
            decisions.push(
                match lines.enter(&engine, question, charge, now(), places > 0, sender) {
                    Entered::Decided(decided) => Decision::Made(decided),
                    Entered::Waits(id) => {
                        places -= 1;
                        Decision::Waits(Ticket {
                            id,
                            answer,
                            waiting: Arc::clone(self),
                        })
                    }
                },
            );
        }
        lines.has_changed |= returns;
        drop(lines);
        if returns || places < engine.bounds().per_request() {
            self.start(current, now);
            self.changed.notify_one();
        }
        Ok(decisions)
    }

    /// Replaces the engine, and moves the waiting requests to it.
    pub(super) fn replace(&self, current: &Current, engine: Engine, now: u64) {
        let engine = Arc::new(engine);
        let mut lines = self.lock();
        current.store(Arc::clone(&engine));
        lines.move_to(&engine, now);
        drop(lines);
        self.changed.notify_one();
    }

    /// Refuses all waiting requests, and later ones that would wait.
    pub(super) fn close(&self, engine: &Engine, now: u64) -> usize {
        let mut lines = self.lock();
        lines.is_closed = true;
        let waiters = lines.take_all();
        for waiter in &waiters {
            count(&waiter.counters.refused);
        }
        let count = waiters.len();
        for waiter in waiters {
            lines.refuse(engine, waiter, None, now);
        }
        drop(lines);
        self.changed.notify_one();
        count
    }

    /// Starts the thread that serves the queues, once; it ends when the engine's slot is dropped.
    fn start(self: &Arc<Self>, current: &Arc<Current>, now: Now) {
        self.thread.call_once(|| {
            let (waiting, deciding) = (Arc::clone(self), Arc::downgrade(current));
            let serve = move || waiting.serve(&deciding, now);
            if let Err(error) = thread::Builder::new().name("weir-wait".to_owned()).spawn(serve) {
                tracing::error!("starting the thread that serves waiting requests failed: {error}; no request waits");
                self.close(&current.load_full(), now());
            }
        });
    }

    fn serve(&self, current: &Weak<Current>, now: Now) {
        let mut lines = self.lock();
        while !lines.is_closed {
            let Some(engine) = current.upgrade().map(|current| current.load_full()) else {
                return;
            };
            let at = now();
            lines.serve(&engine, at);
            drop(engine);
            lines = match lines.next_due() {
                None => self
                    .changed
                    .wait(lines)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(due) => {
                    let time = Duration::from_nanos(due.saturating_sub(at));
                    self.changed
                        .wait_timeout(lines, time)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
    }
}

/// The outcome of a request.
enum Entered {
    Decided(Decided),
    /// It waits with this ID.
    Waits(u64),
}

impl Lines {
    fn enter(
        &mut self,
        engine: &Engine,
        question: &Question,
        charge: Charge,
        now: u64,
        has_place: bool,
        answer: oneshot::Sender<Answered>,
    ) -> Entered {
        let made = |outcome| Entered::Decided(engine.answer(&charge, outcome));
        let (Some(wait), Some(spot), false) = (question.wait, engine.spot(&charge), self.is_closed)
        else {
            return made(engine.decide_behind(self, charge, now));
        };
        let counters = Arc::clone(engine.line_of(&charge));
        // From here on, later requests check the queues.
        counters.waiting.fetch_add(1, Ordering::SeqCst);
        let until = now.saturating_add(wait.time().as_nanos() as u64);
        let mut held = self.held.part();
        let decided = match engine.try_pass(self, charge, &spot, now) {
            Ok(outcome) => Some(outcome),
            Err(refused) => {
                let is_in_time = refused.at.is_some_and(|at| at <= until);
                let bounds = engine.bounds();
                let is_full = !has_place
                    || held.add(bytes(question)).is_err()
                    || self.places.len() >= bounds.in_all
                    || self
                        .lines
                        .get(&spot)
                        .is_some_and(|line| line.waiters.len() >= bounds.per_key)
                    || bounds.per_key == 0;
                if is_in_time && is_full {
                    count(&counters.full);
                }
                (!is_in_time || is_full).then(|| engine.count(&charge, refused.outcome, now))
            }
        };
        if let Some(outcome) = decided {
            counters.waiting.fetch_sub(1, Ordering::SeqCst);
            return made(outcome);
        }
        let id = self.next_id;
        self.next_id += 1;
        let question = question.clone();
        self.push(
            spot,
            Waiter {
                id,
                question,
                held,
                charge,
                since: now,
                until,
                counters,
                answer,
            },
        );
        self.tend(engine, spot, now);
        Entered::Waits(id)
    }

    /// Serves the queues that are due, or all if a limit has changed.
    fn serve(&mut self, engine: &Engine, now: u64) {
        if std::mem::take(&mut self.has_changed) {
            let spots: Vec<Spot> = self.lines.keys().copied().collect();
            spots
                .into_iter()
                .for_each(|spot| self.tend(engine, spot, now));
        }
        while let Some((due, spot)) = self.due.first().copied()
            && due <= now
        {
            self.tend(engine, spot, now);
        }
    }

    /// Passes the first requests that conform, refuses those that cannot in time, and schedules the next ones.
    fn tend(&mut self, engine: &Engine, spot: Spot, now: u64) {
        let Some(mut line) = self.lines.remove(&spot) else {
            return;
        };
        self.due.remove(&(line.due, spot));
        for waiter in &mut line.waiters {
            waiter.charge = engine.current(waiter.charge);
        }
        while let Some(first) = line.waiters.front() {
            let Some(outcome) = engine.pass(first.charge, now) else {
                break;
            };
            let Some(first) = line.waiters.pop_front() else {
                break;
            };
            count(&first.counters.passed);
            self.answer(engine, first, outcome, now);
        }
        let mut forecast = line
            .waiters
            .front()
            .and_then(|first| engine.forecast(&first.charge, now));
        let mut due = None;
        for waiter in std::mem::take(&mut line.waiters) {
            let pass =
                |forecast: &mut Forecast| forecast.passes_at(waiter.charge.cost, waiter.until);
            let at = forecast.as_mut().map_or(Err(None), pass);
            match at {
                Ok(at) => {
                    // A queue whose first request is due but did not pass is retried shortly after.
                    due.get_or_insert(at.max(now + AGAIN_NANOSECONDS));
                    line.waiters.push_back(waiter);
                }
                Err(at) => {
                    count(&waiter.counters.refused);
                    self.refuse(engine, waiter, at, now);
                }
            }
        }
        if let Some(due) = due {
            line.due = due;
            self.due.insert((due, spot));
            self.lines.insert(spot, line);
        }
    }

    /// Replies to a request that has left its queue.
    fn answer(&mut self, engine: &Engine, waiter: Waiter, outcome: Outcome, now: u64) {
        self.places.remove(&waiter.id);
        waiter.counters.waiting.fetch_sub(1, Ordering::SeqCst);
        let waited = Duration::from_nanos(now.saturating_sub(waiter.since));
        let answer = engine.answer(&waiter.charge, outcome).after(waited);
        // Fails if the request was dropped meanwhile.
        let _ = waiter.answer.send(Ok(answer));
    }

    /// Refuses a request that has left its queue; it would have passed at `at`, if ever.
    fn refuse(&mut self, engine: &Engine, waiter: Waiter, at: Option<u64>, now: u64) {
        let outcome = engine.refusal(&waiter.charge, at, now);
        let outcome = engine.count(&waiter.charge, outcome, now);
        self.answer(engine, waiter, outcome, now);
    }

    /// Moves all waiting requests to another engine, which validates them again.
    fn move_to(&mut self, engine: &Engine, now: u64) {
        let mut spots = Vec::new();
        for mut waiter in self.take_all() {
            match engine.charge(&waiter.question) {
                Ok(charge) => {
                    waiter.charge = charge;
                    match engine.spot(&charge) {
                        Some(spot) => {
                            let counters = Arc::clone(engine.line_of(&charge));
                            counters.waiting.fetch_add(1, Ordering::SeqCst);
                            waiter.counters.waiting.fetch_sub(1, Ordering::SeqCst);
                            waiter.counters = counters;
                            self.push(spot, waiter);
                            spots.push(spot);
                        }
                        // Its source is exempt now.
                        None => {
                            let outcome = engine.decide_behind(self, charge, now);
                            count(&waiter.counters.passed);
                            self.answer(engine, waiter, outcome, now);
                        }
                    }
                }
                Err(error) => {
                    self.places.remove(&waiter.id);
                    count(&waiter.counters.refused);
                    waiter.counters.waiting.fetch_sub(1, Ordering::SeqCst);
                    let _ = waiter.answer.send(Err(error));
                }
            }
        }
        spots
            .into_iter()
            .for_each(|spot| self.tend(engine, spot, now));
    }
}

/// The bytes of a question's text, which is kept while it waits.
fn bytes(question: &Question) -> usize {
    let key = question
        .key
        .iter()
        .map(|(entry, value)| entry.len() + value.len());
    let parameters = question.parameters.keys().map(String::len);
    let names = question.limit.len() + question.request.as_ref().map_or(0, String::len);
    names + key.chain(parameters).sum::<usize>()
}

/// The delay before a queue is retried whose first request should have passed.
const AGAIN_NANOSECONDS: u64 = 1_000_000;

#[cfg(test)]
mod tests;
