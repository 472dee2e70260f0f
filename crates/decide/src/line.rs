//! The queues of waiting requests. `waiting` decides who passes.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};

use api::decide::Question;
use api::limit::WaitingStatus;
use config::policy::Multiplier;
use tokio::sync::oneshot;

use super::answer::Decided;
use super::charge::Charge;
use super::error::DecideError;
use super::fingerprint::Fingerprint;
use super::received::{Part, Receiving};

/// The most waiting requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Per key of a limit.
    pub per_key: usize,
    pub in_all: usize,
}

impl Bounds {
    /// Per array of requests, so that no client takes most of the places.
    pub const fn per_request(self) -> usize {
        let part = self.in_all / 8;
        if part == 0 { 1 } else { part }
    }
}

/// The waiting requests of one limit, and the outcomes of earlier ones. Shared by successive engines.
#[derive(Debug)]
pub(super) struct LineCounters {
    pub(super) id: u64,
    pub(super) waiting: AtomicU64,
    pub(super) passed: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) left: AtomicU64,
    pub(super) full: AtomicU64,
}

impl Default for LineCounters {
    fn default() -> Self {
        static LINES: AtomicU64 = AtomicU64::new(0);
        let [waiting, passed, refused, left, full] = Default::default();
        Self {
            id: LINES.fetch_add(1, Ordering::Relaxed),
            waiting,
            passed,
            refused,
            left,
            full,
        }
    }
}

impl LineCounters {
    /// Whether no request waits. Without the lock: a request may enter afterwards, behind the caller's.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) == 0
    }

    /// Sets the counters of outcomes to 0.
    pub(super) fn reset(&self) {
        for counter in [&self.passed, &self.refused, &self.left, &self.full] {
            counter.store(0, Ordering::Relaxed);
        }
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

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The limit, multiplier and key of a queue. The same in successive engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Spot {
    line: u64,
    multiplier: Multiplier,
    key: Fingerprint,
}

impl Spot {
    pub(super) fn new(counters: &LineCounters, multiplier: Multiplier, key: Fingerprint) -> Self {
        Self {
            line: counters.id,
            multiplier,
            key,
        }
    }
}

/// The reply to a waiting request.
pub(super) type Answered = Result<Decided, DecideError>;

/// A waiting request.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) id: u64,
    pub(super) question: Question,
    /// The bytes of the question.
    #[expect(dead_code, reason = "held for what dropping it does")]
    pub(super) held: Part,
    pub(super) charge: Charge,
    /// The arrival and the deadline, in nanoseconds.
    pub(super) since: u64,
    pub(super) until: u64,
    pub(super) counters: Arc<LineCounters>,
    pub(super) answer: oneshot::Sender<Answered>,
}

/// The requests of a key in the order of arrival.
#[derive(Debug, Default)]
pub(super) struct Line {
    pub(super) waiters: VecDeque<Waiter>,
    /// The instant at which the first one will conform.
    pub(super) due: u64,
}

#[derive(Debug)]
pub(super) struct Lines {
    pub(super) lines: HashMap<Spot, Line>,
    /// The queue of each request.
    pub(super) places: HashMap<u64, Spot>,
    pub(super) due: BTreeSet<(u64, Spot)>,
    /// The bytes of all questions: a client chooses how long they are.
    pub(super) held: Receiving,
    pub(super) next_id: u64,
    /// Whether all queues must be served because their limits have changed.
    pub(super) has_changed: bool,
    pub(super) is_closed: bool,
}

/// A request that is decided now or later.
#[derive(Debug)]
pub enum Decision {
    /// Decided at once.
    Made(Decided),
    /// Decided once it conforms, or cannot conform in time.
    Waits(Ticket),
}

impl Decision {
    /// Waits for the reply.
    ///
    /// # Errors
    ///
    /// When the request is invalid under another config, or the agent stops.
    pub async fn answer(self) -> Result<Decided, DecideError> {
        match self {
            Self::Made(answer) => Ok(answer),
            Self::Waits(mut ticket) => (&mut ticket.answer)
                .await
                .unwrap_or(Err(DecideError::Ending)),
        }
    }

    /// Like [`Decision::answer`], but blocks the thread.
    ///
    /// # Errors
    ///
    /// As [`Decision::answer`].
    pub fn wait(self) -> Result<Decided, DecideError> {
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

/// A place in a queue. Dropping it removes the request, and nothing is charged.
#[derive(Debug)]
pub struct Ticket {
    pub(super) id: u64,
    pub(super) answer: oneshot::Receiver<Answered>,
    pub(super) waiting: Arc<Waiting>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.waiting.leave(self.id);
    }
}

/// All waiting requests.
#[derive(Debug)]
pub struct Waiting {
    pub(super) lines: Mutex<Lines>,
    pub(super) changed: Condvar,
    pub(super) thread: Once,
}

impl Default for Waiting {
    fn default() -> Self {
        let lines = Lines {
            lines: HashMap::new(),
            places: HashMap::new(),
            due: BTreeSet::new(),
            held: Receiving::default(),
            next_id: 0,
            has_changed: false,
            is_closed: false,
        };
        Self {
            lines: Mutex::new(lines),
            changed: Condvar::new(),
            thread: Once::new(),
        }
    }
}

impl Waiting {
    pub(super) fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of waiting requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().places.len()
    }

    /// Whether no request waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Wakes the thread, since a limit may have changed.
    pub(super) fn changed(&self) {
        self.lock().has_changed = true;
        self.changed.notify_one();
    }

    pub(super) fn leave(&self, id: u64) {
        if self.lock().leave(id) {
            self.changed.notify_one();
        }
    }
}

impl Lines {
    /// Whether requests wait in this queue.
    pub(super) fn has(&self, spot: &Spot) -> bool {
        self.lines.contains_key(spot)
    }

    /// The costs of this queue's requests, in order.
    pub(super) fn costs(&self, spot: &Spot) -> impl Iterator<Item = u64> {
        self.lines
            .get(spot)
            .into_iter()
            .flat_map(|line| line.waiters.iter().map(|waiter| waiter.charge.cost))
    }

    /// The next instant at which a queue must be served.
    pub(super) fn next_due(&self) -> Option<u64> {
        if self.has_changed {
            Some(0)
        } else {
            self.due.first().map(|(due, _)| *due)
        }
    }

    pub(super) fn push(&mut self, spot: Spot, waiter: Waiter) {
        self.places.insert(waiter.id, spot);
        self.lines
            .entry(spot)
            .or_default()
            .waiters
            .push_back(waiter);
    }

    /// Removes all requests, in the order of arrival.
    pub(super) fn take_all(&mut self) -> Vec<Waiter> {
        self.due.clear();
        let mut waiters: Vec<Waiter> = self
            .lines
            .drain()
            .flat_map(|(_, line)| line.waiters)
            .collect();
        waiters.sort_unstable_by_key(|waiter| waiter.id);
        waiters
    }

    /// Removes a dropped request. Returns whether the queue has another first one.
    fn leave(&mut self, id: u64) -> bool {
        let Some(spot) = self.places.remove(&id) else {
            return false;
        };
        let Some(line) = self.lines.get_mut(&spot) else {
            return false;
        };
        let Some(nth) = line.waiters.iter().position(|waiter| waiter.id == id) else {
            return false;
        };
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
