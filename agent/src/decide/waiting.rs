//! Requests that wait in line for a limit: first come, first served per key, bounded per key and in all.
//!
//! A request that is refused and may wait is kept until it conforms, and charged then. Nobody overtakes it: while a key
//! has a line, whoever asks about the key is behind it. When each of the line will pass is known beforehand, so that a
//! request that would not pass in time is refused at once. A thread of its own serves the lines when they are due, and
//! when a limit has changed.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use common::rate_limiter::Outcome;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::engine::{Charge, Engine};
use super::fingerprint::Fingerprint;
use super::question::{Answer, DecideError, Question};
use super::store::Forecast;
use super::{Current, Now};
use crate::config::policy::Multiplier;
use crate::config::units;
use crate::stats::WaitingStatus;

/// The longest that a request may wait.
pub const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// How long a request may wait: `500ms` or `2s`, at most a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Wait(Duration);

impl Wait {
    /// The time.
    #[must_use]
    pub const fn time(self) -> Duration {
        self.0
    }

    fn nanoseconds(self) -> u64 {
        self.0.as_nanos() as u64
    }
}

impl FromStr for Wait {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let nanoseconds =
            units::time(text).map_err(|wrong| format!("invalid wait: {}; write \"500ms\"", wrong.message))?;
        let time = Duration::from_nanos(nanoseconds);
        if time > LONGEST_WAIT {
            return Err(format!("invalid wait {text:?}: a request waits {} s at most", LONGEST_WAIT.as_secs()));
        }
        Ok(Self(time))
    }
}

impl TryFrom<String> for Wait {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Wait> for String {
    fn from(Wait(time): Wait) -> Self {
        format!("{}ms", time.as_millis())
    }
}

/// How many requests may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// For one key of a limit.
    pub per_key: usize,
    /// In all.
    pub in_all: usize,
}

/// Of one limit: how many requests wait, and what became of those that did. The same from engine to engine.
#[derive(Debug)]
pub(super) struct LineCounters {
    id: u64,
    waiting: AtomicU64,
    passed: AtomicU64,
    refused: AtomicU64,
    left: AtomicU64,
    full: AtomicU64,
}

impl Default for LineCounters {
    fn default() -> Self {
        static LINES: AtomicU64 = AtomicU64::new(0);
        let [waiting, passed, refused, left, full] = Default::default();
        Self { id: LINES.fetch_add(1, Ordering::Relaxed), waiting, passed, refused, left, full }
    }
}

impl LineCounters {
    /// Whether nobody waits. One that asks before another waits is in front of it.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) == 0
    }

    pub(super) fn status(&self) -> WaitingStatus {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        WaitingStatus {
            waiting: of(&self.waiting),
            passed: of(&self.passed),
            refused: of(&self.refused),
            left: of(&self.left),
            full: of(&self.full),
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A key's line: of which limit, multiplier and key. The same from engine to engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Spot {
    line: u64,
    multiplier: Multiplier,
    key: Fingerprint,
}

impl Spot {
    pub(super) fn new(counters: &LineCounters, multiplier: Multiplier, key: Fingerprint) -> Self {
        Self { line: counters.id, multiplier, key }
    }
}

/// What is answered to one that waits.
type Answered = Result<Answer, DecideError>;

/// A request in line.
#[derive(Debug)]
struct Waiter {
    id: u64,
    question: Question,
    charge: Charge,
    /// When it came and by when it has to pass, in nanoseconds.
    since: u64,
    until: u64,
    counters: Arc<LineCounters>,
    answer: oneshot::Sender<Answered>,
}

/// The requests of a key, in the order in which they came.
#[derive(Debug, Default)]
struct Line {
    waiters: VecDeque<Waiter>,
    /// When the first of them will conform.
    due: u64,
}

/// All lines.
#[derive(Debug)]
pub(super) struct Lines {
    lines: HashMap<Spot, Line>,
    /// Where each request waits.
    places: HashMap<u64, Spot>,
    due: BTreeSet<(u64, Spot)>,
    next_id: u64,
    /// All lines have to be looked at: what they wait for has changed.
    has_changed: bool,
    is_closed: bool,
}

/// A question that is answered now or later.
#[derive(Debug)]
pub enum Decision {
    /// Now.
    Made(Answer),
    /// Once it conforms, or cannot in time.
    Waits(Ticket),
}

impl Decision {
    /// The answer, when there is one.
    ///
    /// # Errors
    ///
    /// When another config does not understand the question any more, or the agent ends.
    pub async fn answer(self) -> Result<Answer, DecideError> {
        match self {
            Self::Made(answer) => Ok(answer),
            Self::Waits(mut ticket) => (&mut ticket.answer).await.unwrap_or(Err(DecideError::Ending)),
        }
    }

    /// As [`Decision::answer`], blocking the thread.
    ///
    /// # Errors
    ///
    /// As it.
    pub fn wait(self) -> Result<Answer, DecideError> {
        match self {
            Self::Made(answer) => Ok(answer),
            Self::Waits(mut ticket) => {
                let (_, nobody) = oneshot::channel();
                let answer = std::mem::replace(&mut ticket.answer, nobody);
                answer.blocking_recv().unwrap_or(Err(DecideError::Ending))
            }
        }
    }
}

/// A place in line. Dropped, it is free, and nothing is charged.
#[derive(Debug)]
pub struct Ticket {
    id: u64,
    answer: oneshot::Receiver<Answered>,
    waiting: Arc<Waiting>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.waiting.leave(self.id);
    }
}

/// Everybody who waits.
#[derive(Debug)]
pub struct Waiting {
    lines: Mutex<Lines>,
    changed: Condvar,
    thread: Once,
}

impl Default for Waiting {
    fn default() -> Self {
        let lines = Lines {
            lines: HashMap::new(),
            places: HashMap::new(),
            due: BTreeSet::new(),
            next_id: 0,
            has_changed: false,
            is_closed: false,
        };
        Self { lines: Mutex::new(lines), changed: Condvar::new(), thread: Once::new() }
    }
}

impl Waiting {
    pub(super) fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().places.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What somebody waits for may have changed.
    pub(super) fn changed(&self) {
        self.lock().has_changed = true;
        self.changed.notify_one();
    }

    /// Decides on questions, each for itself; those that are refused and may wait do.
    pub(super) fn decide(
        self: &Arc<Self>,
        current: &Arc<Current>,
        questions: &[Question],
        now: Now,
    ) -> Result<Vec<Decision>, (usize, DecideError)> {
        let mut lines = self.lock();
        // Replaced only while the lines are held: see `replace`.
        let engine = current.load_full();
        let charges = engine.understand(questions)?;
        let mut decisions = Vec::with_capacity(charges.len());
        for (question, charge) in questions.iter().zip(charges) {
            let (sender, answer) = oneshot::channel();
            decisions.push(match lines.enter(&engine, question, charge, now(), sender) {
                Entered::Decided(answer) => Decision::Made(answer),
                Entered::Waits(id) => Decision::Waits(Ticket { id, answer, waiting: Arc::clone(self) }),
            });
        }
        drop(lines);
        if decisions.iter().any(|decision| matches!(decision, Decision::Waits(_))) {
            self.start(current, now);
            self.changed.notify_one();
        }
        Ok(decisions)
    }

    /// Has another engine decide, and everybody wait for it instead.
    pub(super) fn replace(&self, current: &Current, engine: Engine, now: u64) {
        let engine = Arc::new(engine);
        let mut lines = self.lock();
        current.store(Arc::clone(&engine));
        lines.move_to(&engine, now);
        drop(lines);
        self.changed.notify_one();
    }

    /// Refuses everybody who waits, and whoever would.
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

    fn leave(&self, id: u64) {
        if self.lock().leave(id) {
            self.changed.notify_one();
        }
    }

    /// Starts the thread that serves the lines, once; it ends with whatever decides.
    fn start(self: &Arc<Self>, current: &Arc<Current>, now: Now) {
        self.thread.call_once(|| {
            let (waiting, deciding) = (Arc::clone(self), Arc::downgrade(current));
            let serve = move || waiting.serve(&deciding, now);
            if let Err(error) = thread::Builder::new().name("weir-wait".to_owned()).spawn(serve) {
                eprintln!("starting the thread that serves waiting requests failed: {error}; no request waits");
                self.close(&current.load_full(), now());
            }
        });
    }

    fn serve(&self, current: &Weak<Current>, now: Now) {
        let mut lines = self.lock();
        while !lines.is_closed {
            let Some(engine) = current.upgrade().map(|current| current.load_full()) else { return };
            let at = now();
            lines.serve(&engine, at);
            drop(engine);
            lines = match lines.next_due() {
                None => self.changed.wait(lines).unwrap_or_else(PoisonError::into_inner),
                Some(due) => {
                    let time = Duration::from_nanos(due.saturating_sub(at));
                    self.changed.wait_timeout(lines, time).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// What became of a question.
enum Entered {
    Decided(Answer),
    /// It waits under this number.
    Waits(u64),
}

impl Lines {
    /// Whether somebody waits there.
    pub(super) fn has(&self, spot: &Spot) -> bool {
        self.lines.contains_key(spot)
    }

    /// The costs of those who wait there, in their order.
    pub(super) fn costs(&self, spot: &Spot) -> impl Iterator<Item = u64> {
        self.lines.get(spot).into_iter().flat_map(|line| line.waiters.iter().map(|waiter| waiter.charge.cost))
    }

    /// When something is to be done next.
    fn next_due(&self) -> Option<u64> {
        if self.has_changed { Some(0) } else { self.due.first().map(|(due, _)| *due) }
    }

    fn enter(
        &mut self,
        engine: &Engine,
        question: &Question,
        charge: Charge,
        now: u64,
        answer: oneshot::Sender<Answered>,
    ) -> Entered {
        let made = |outcome| Entered::Decided(engine.answer(&charge, outcome));
        let (Some(wait), Some(spot), false) = (question.wait, engine.spot(&charge), self.is_closed) else {
            return made(engine.settle_behind(self, charge, now));
        };
        let counters = Arc::clone(engine.line_of(&charge));
        // From here on, whoever comes later looks at the lines.
        counters.waiting.fetch_add(1, Ordering::SeqCst);
        let until = now.saturating_add(wait.nanoseconds());
        let decided = match engine.try_pass(self, charge, &spot, now) {
            Ok(outcome) => Some(outcome),
            Err(refused) => {
                let is_in_time = refused.at.is_some_and(|at| at <= until);
                let bounds = engine.bounds();
                let is_full = self.places.len() >= bounds.in_all
                    || self.lines.get(&spot).is_some_and(|line| line.waiters.len() >= bounds.per_key)
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
        self.push(spot, Waiter { id, question, charge, since: now, until, counters, answer });
        self.tend(engine, spot, now);
        Entered::Waits(id)
    }

    fn push(&mut self, spot: Spot, waiter: Waiter) {
        self.places.insert(waiter.id, spot);
        self.lines.entry(spot).or_default().waiters.push_back(waiter);
    }

    /// Serves the lines that are due, or all if something has changed.
    fn serve(&mut self, engine: &Engine, now: u64) {
        if std::mem::take(&mut self.has_changed) {
            let spots: Vec<Spot> = self.lines.keys().copied().collect();
            spots.into_iter().for_each(|spot| self.tend(engine, spot, now));
        }
        while let Some((due, spot)) = self.due.first().copied()
            && due <= now
        {
            self.tend(engine, spot, now);
        }
    }

    /// Lets those in front pass who conform, refuses those who cannot in time, and notes when the next one will.
    fn tend(&mut self, engine: &Engine, spot: Spot, now: u64) {
        let Some(mut line) = self.lines.remove(&spot) else { return };
        self.due.remove(&(line.due, spot));
        while let Some(first) = line.waiters.front() {
            let Some(outcome) = engine.pass(first.charge, now) else { break };
            let Some(first) = line.waiters.pop_front() else { break };
            count(&first.counters.passed);
            self.answer(engine, first, outcome, now);
        }
        let mut forecast = line.waiters.front().and_then(|first| engine.forecast(&first.charge, now));
        let mut due = None;
        for waiter in std::mem::take(&mut line.waiters) {
            let pass = |forecast: &mut Forecast| forecast.passes_at(waiter.charge.cost, waiter.until);
            let at = forecast.as_mut().map_or(Err(None), pass);
            match at {
                Ok(at) => {
                    // A line whose first is due now, but did not pass, is looked at again a moment later.
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

    /// Answers one that is in no line any more.
    fn answer(&mut self, engine: &Engine, waiter: Waiter, outcome: Outcome, now: u64) {
        self.places.remove(&waiter.id);
        waiter.counters.waiting.fetch_sub(1, Ordering::SeqCst);
        let waited = Duration::from_nanos(now.saturating_sub(waiter.since));
        let answer = engine.answer(&waiter.charge, outcome).after(waited);
        // Who has gone meanwhile has taken the ticket along.
        let _ = waiter.answer.send(Ok(answer));
    }

    /// Refuses one that is in no line any more, and would pass at an instant, if ever.
    fn refuse(&mut self, engine: &Engine, waiter: Waiter, at: Option<u64>, now: u64) {
        let outcome = engine.refusal(&waiter.charge, at, now);
        let outcome = engine.count(&waiter.charge, outcome, now);
        self.answer(engine, waiter, outcome, now);
    }

    /// Takes everybody out, in the order in which they came.
    fn take_all(&mut self) -> Vec<Waiter> {
        self.due.clear();
        let mut waiters: Vec<Waiter> = self.lines.drain().flat_map(|(_, line)| line.waiters).collect();
        waiters.sort_unstable_by_key(|waiter| waiter.id);
        waiters
    }

    /// Has everybody wait for another engine: the question is understood anew.
    fn move_to(&mut self, engine: &Engine, now: u64) {
        let mut spots = Vec::new();
        for mut waiter in self.take_all() {
            let understood = engine.understand(std::slice::from_ref(&waiter.question));
            match understood.map_err(|(_, error)| error).map(|charges| charges.first().copied()) {
                Ok(Some(charge)) => {
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
                        // Its source is not limited any more.
                        None => {
                            let outcome = engine.settle_behind(self, charge, now);
                            count(&waiter.counters.passed);
                            self.answer(engine, waiter, outcome, now);
                        }
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    self.places.remove(&waiter.id);
                    count(&waiter.counters.refused);
                    waiter.counters.waiting.fetch_sub(1, Ordering::SeqCst);
                    let _ = waiter.answer.send(Err(error));
                }
            }
        }
        spots.into_iter().for_each(|spot| self.tend(engine, spot, now));
    }

    /// Takes out one who has gone. Returns whether the line has another first one.
    fn leave(&mut self, id: u64) -> bool {
        let Some(spot) = self.places.remove(&id) else { return false };
        let Some(line) = self.lines.get_mut(&spot) else { return false };
        let Some(nth) = line.waiters.iter().position(|waiter| waiter.id == id) else { return false };
        if let Some(waiter) = line.waiters.remove(nth) {
            count(&waiter.counters.left);
            waiter.counters.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        self.due.remove(&(line.due, spot));
        if line.waiters.is_empty() {
            self.lines.remove(&spot);
            return false;
        }
        if nth == 0 {
            line.due = 0;
        }
        self.due.insert((line.due, spot));
        nth == 0
    }
}

/// When a line is looked at again whose first should have passed by now.
const AGAIN_NANOSECONDS: u64 = 1_000_000;

#[cfg(test)]
mod tests;
