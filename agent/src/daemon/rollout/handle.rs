//! The handle of the thread that decides about rules.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use api::rules::RulesStatus;
use rollout::host::Input;

/// The longest time that an ending agent waits for the thread: it may be putting rules in effect.
const LAST: Duration = Duration::from_secs(1);

/// Rules were not put in effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RulesError {
    /// An operator has a config on trial, or the agent is stopping.
    Later,
    Failed(String),
}

/// How other rules of a stream were put in effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned {
    /// They were in effect, or do not go with the host's file.
    Unchanged,
    Changed,
    /// Beside the trial of another stream, which begins again.
    BesideATrial,
}

/// The trial of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RulesTrial {
    Lasts,
    /// Somebody else ended it.
    Ended,
    /// The stream was not followed for a while.
    Removed,
}

/// A message to the thread.
#[derive(Debug)]
pub enum Signal {
    /// The store of a follower replied.
    Store(FollowerId, Box<Input>),
    /// The store cannot be written; what it has was read.
    NotWritten(FollowerId, Box<Input>, String),
    /// A reload put the host's own file in effect, with the rules.
    Reloaded,
    /// Somebody else ended the trial of a stream's version.
    Ended {
        stream: String,
        version: u64,
        reason: String,
    },
}

/// One follower of a stream. One that follows the same stream later has another number.
pub(super) type FollowerId = u64;

#[derive(Default)]
struct Inner {
    signals: VecDeque<Signal>,
    is_closed: bool,
    has_ended: bool,
    /// Whether the config has `[fleet]`.
    has_started: bool,
    /// By stream.
    status: Vec<RulesStatus>,
    notes: Vec<String>,
}

/// The rules of the fleet on this host.
#[derive(Default)]
pub struct Rollout {
    inner: Mutex<Inner>,
    wake: Condvar,
}

impl Rollout {
    /// Adds a note for the operator.
    pub(super) fn note(&self, note: String) {
        self.lock().notes.push(note);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports what happened.
    pub fn signal(&self, signal: Signal) {
        let mut inner = self.lock();
        // Without a thread nobody takes them.
        if inner.has_started && !inner.has_ended {
            inner.signals.push_back(signal);
            self.wake.notify_all();
        }
    }

    /// Whether a signal waits that somebody else ended the trial of a stream's version.
    pub fn has_ended_trial(&self, stream: &str, version: u64) -> bool {
        let is_it = |signal: &Signal| matches!(signal, Signal::Ended { stream: of, version: ended, .. } if of == stream && *ended == version);
        self.lock().signals.iter().any(is_it)
    }

    /// The next signal, or `None` at the instant `until`; an error when the agent is stopping.
    pub(super) fn next(&self, until: Instant) -> Result<Option<Signal>, Closed> {
        let mut inner = self.lock();
        loop {
            if inner.is_closed {
                return Err(Closed);
            }
            if let Some(signal) = inner.signals.pop_front() {
                return Ok(Some(signal));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let waited = self.wake.wait_timeout(inner, left);
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Replaces status and notes; signals are taken from the first one on.
    pub(super) fn publish(&self, status: Vec<RulesStatus>, notes: Vec<String>) {
        let mut inner = self.lock();
        inner.has_started = true;
        inner.status = status;
        inner.notes = notes;
    }

    /// No further signals are taken.
    pub(super) fn ended(&self) {
        self.lock().has_ended = true;
        self.wake.notify_all();
    }

    /// The documents in `weir status`, none without `[fleet]`, and notes for the operator, of one reading.
    #[must_use]
    pub fn status(&self) -> (Vec<RulesStatus>, Vec<String>) {
        let inner = self.lock();
        (inner.status.clone(), inner.notes.clone())
    }

    /// Ends the thread.
    pub fn close(&self) {
        let mut inner = self.lock();
        inner.is_closed = true;
        self.wake.notify_all();
        let is_running = |inner: &mut Inner| inner.has_started && !inner.has_ended;
        drop(self.wake.wait_timeout_while(inner, LAST, is_running));
    }
}

/// The agent is stopping.
pub(super) struct Closed;

/// Ends the rollout with its thread, also by a panic.
pub(super) struct Ending(pub(super) Arc<Rollout>);

impl Drop for Ending {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.note("the thread weir-rules has ended by an internal error: the rules of the fleet stay as they are until the agent is restarted".to_owned());
        }
        self.0.ended();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_trial_is_known_until_the_thread_takes_it() {
        let rollout = Rollout::default();
        rollout.publish(Vec::new(), Vec::new());
        rollout.signal(Signal::Reloaded);
        rollout.signal(Signal::Ended {
            stream: "web".to_owned(),
            version: 2,
            reason: String::new(),
        });
        for is_pending in [true, true, false] {
            assert_eq!(rollout.has_ended_trial("web", 2), is_pending);
            assert!(!rollout.has_ended_trial("web", 3) && !rollout.has_ended_trial("api", 2));
            drop(rollout.next(Instant::now()));
        }
    }

    #[test]
    fn a_thread_that_panics_leaves_a_note() {
        let rollout = Arc::new(Rollout::default());
        rollout.publish(vec![RulesStatus::default()], Vec::new());
        for panics in [false, true] {
            let ending = Ending(Arc::clone(&rollout));
            let thread = thread::spawn(move || {
                let _ending = ending;
                assert!(!panics, "for the test");
            });
            assert_eq!(thread.join().is_err(), panics);
            assert!(rollout.lock().has_ended);
            assert_eq!(rollout.lock().notes.len(), usize::from(panics));
        }
    }
}
