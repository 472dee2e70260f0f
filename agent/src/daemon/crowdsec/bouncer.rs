//! The bouncer's handle, and what its threads share.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use api::crowdsec::{AlertsStatus, CrowdSecStatus};
use config::PrefixKey;
use config::policy::{CrowdSec, Secret};
use crowdsec::{Alert, Decisions, Ignored};
use decide::Offence;
use host::StateDirectory;

use super::saved::SavedBouncer;
use super::{alerts, poll};
use crate::daemon::events::EventLog;
use crate::daemon::packets::Packets;

/// The most alerts that wait for the API.
const WAITING: usize = 1_000;

/// The most time that an ending agent waits for the last save.
const LAST_SAVE: Duration = Duration::from_secs(1);

/// What the bouncer works with.
pub struct Parts {
    pub packets: Packets,
    pub events: Arc<EventLog>,
    pub directory: StateDirectory,
}

/// The bouncer. Its threads end when it is closed.
pub struct Bouncer(Arc<Shared>);

pub(super) struct Shared {
    pub parts: Parts,
    state: Mutex<State>,
    /// Wakes both threads.
    wake: Condvar,
}

#[derive(Default)]
pub(super) struct State {
    pub settings: Option<Arc<CrowdSec>>,
    /// Counts reloads, so that a thread notices each.
    pub generation: u64,
    pub is_closed: bool,
    /// Whether the thread of decisions has ended, after the last save.
    pub has_ended: bool,
    /// Whether the exceptions have changed since the last save.
    pub has_new_exceptions: bool,
    pub alerts: VecDeque<Alert>,
    pub pulls: Pulls,
    pub sent: Sent,
    /// Notes about the state file.
    pub notes: Vec<String>,
}

/// What the thread of decisions reports.
#[derive(Default)]
pub(super) struct Pulls {
    pub decisions: usize,
    pub ignored: Ignored,
    pub pulls: u64,
    pub failures: u64,
    /// Why the last pull failed; `None` if it succeeded.
    pub failure: Option<String>,
    /// Why the kernel does not have all bans.
    pub trouble: Option<String>,
    pub last: Option<Instant>,
    pub last_full: Option<Instant>,
}

/// What the thread of alerts reports.
#[derive(Default)]
pub(super) struct Sent {
    pub sent: u64,
    pub dropped: u64,
    pub failure: Option<String>,
}

impl Bouncer {
    /// Takes up what an earlier agent saved, and starts to pull if the config has `[crowdsec]`.
    #[must_use]
    pub fn start(settings: Option<&CrowdSec>, parts: Parts) -> Self {
        let (saved, damage) = SavedBouncer::read(&parts.directory);
        let state = State {
            settings: settings.cloned().map(Arc::new),
            notes: damage.into_iter().collect(),
            ..State::default()
        };
        let shared = Arc::new(Shared { parts, state: Mutex::new(state), wake: Condvar::new() });
        let mut decisions = Decisions::default();
        if let Some(settings) = settings {
            decisions = poll::empty(settings);
        }
        poll::take_up(&shared, saved.as_ref(), &mut decisions);
        type Work = Box<dyn FnOnce() + Send>;
        let (of_pulls, of_alerts) = (Arc::clone(&shared), Arc::clone(&shared));
        let threads: [(&str, Work); 2] = [
            ("weir-crowdsec", Box::new(move || poll::run(&of_pulls, decisions))),
            ("weir-alerts", Box::new(move || alerts::run(&of_alerts))),
        ];
        for (name, work) in threads {
            if let Err(error) = thread::Builder::new().name(name.to_owned()).spawn(work) {
                let note = format!("starting the thread {name} failed: {error}; restart the agent");
                tracing::error!("{note}");
                shared.state().notes.push(note);
            }
        }
        Self(shared)
    }

    /// Continues with another config; call it after the limits on packets are replaced, since these may exempt others.
    pub fn replace(&self, settings: Option<&CrowdSec>) {
        let mut state = self.0.state();
        state.settings = settings.cloned().map(Arc::new);
        state.generation += 1;
        if state.settings.as_ref().is_none_or(|settings| settings.machine.is_none()) {
            state.alerts.clear();
            state.sent.failure = None;
        }
        self.0.wake.notify_all();
    }

    /// Saves changed exceptions soon.
    pub fn exceptions_changed(&self) {
        self.0.state().has_new_exceptions = true;
        self.0.wake.notify_all();
    }

    /// Reports a ban by a limit, if the config has a machine for it.
    pub fn report(&self, offence: &Offence, ban: Duration) {
        let mut state = self.0.state();
        if state.settings.as_ref().is_none_or(|settings| settings.machine.is_none()) {
            return;
        }
        if state.alerts.len() >= WAITING {
            state.sent.dropped += 1;
            return;
        }
        state.alerts.push_back(Alert {
            limit: offence.limit.to_string(),
            prefix: offence.prefix,
            message: offence.reason(),
            count: u64::from(offence.escalate.after),
            within: Duration::from_nanos(offence.escalate.within),
            at: std::time::SystemTime::now(),
            ban,
        });
        self.0.wake.notify_all();
    }

    /// The document in `agent status`; `None` without `[crowdsec]`.
    #[must_use]
    pub fn status(&self) -> Option<CrowdSecStatus> {
        let (applied, exceptions) = self.0.counts();
        let state = self.0.state();
        let settings = state.settings.as_ref()?;
        let Pulls { decisions, ignored, pulls, failures, failure, trouble, last, last_full } = &state.pulls;
        let health = match (failure, last) {
            (Some(_), _) => "unavailable",
            (None, Some(_)) => "ok",
            (None, None) => "starting",
        };
        let ago = |at: &Option<Instant>| at.map(|at| at.elapsed().as_secs_f64());
        Some(CrowdSecStatus {
            url: settings.shown_url(),
            state: health.to_owned(),
            decisions: *decisions as u64,
            banned_prefixes: applied,
            exceptions: exceptions.iter().map(ToString::to_string).collect(),
            ignored: api::crowdsec::IgnoredDecisions {
                scope: ignored.scope,
                r#type: ignored.kind,
                invalid: ignored.invalid,
                wide: ignored.wide,
                simulated: ignored.simulated,
                own: ignored.own,
                excess: ignored.excess,
            },
            pulls: *pulls,
            failed_pulls: *failures,
            last_pull_seconds_ago: ago(last),
            last_full_pull_seconds_ago: ago(last_full),
            error: failure.clone().or_else(|| trouble.clone()),
            alerts: settings.machine.as_ref().map(|_| AlertsStatus {
                sent: state.sent.sent,
                waiting: state.alerts.len() as u64,
                dropped: state.sent.dropped,
                error: state.sent.failure.clone(),
            }),
        })
    }

    /// Notes for the operator.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let state = self.0.state();
        let mut notes = state.notes.clone();
        let Some(settings) = &state.settings else { return notes };
        let url = settings.shown_url();
        let Pulls { failure, trouble, ignored, .. } = &state.pulls;
        notes.extend(failure.as_ref().map(|failure| {
            format!("CrowdSec's local API at {url} is unavailable: {failure}; known decisions apply until they expire")
        }));
        notes.extend(trouble.as_ref().map(|trouble| format!("bans by CrowdSec are not all in effect: {trouble}")));
        if ignored.excess > 0 {
            notes.push(format!(
                "{} decisions of CrowdSec exceed [crowdsec] max_decisions and are ignored",
                ignored.excess
            ));
        }
        if ignored.wide > 0 {
            notes.push(format!(
                "{} decisions of CrowdSec are on ranges wider than /8 (IPv6: /16) and are ignored: agent ban --force bans them",
                ignored.wide
            ));
        }
        notes.extend(
            state.sent.failure.as_ref().map(|failure| format!("sending alerts to CrowdSec at {url} failed: {failure}")),
        );
        notes
    }

    /// Ends the threads, and waits for a last save unless a pull is under way for long.
    pub fn close(&self) {
        let mut state = self.0.state();
        state.is_closed = true;
        self.0.wake.notify_all();
        drop(self.0.wake.wait_timeout_while(state, LAST_SAVE, |state| !state.has_ended));
    }
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves plain values, each of which is valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `until`, or until something has changed for which `is_due`.
    pub(super) fn wait(&self, until: Option<Instant>, is_due: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let mut state = self.state();
        loop {
            if state.is_closed || is_due(&state) {
                return state;
            }
            state = match until {
                None => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return state;
                    }
                    self.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Reports that the thread of decisions has ended.
    pub(super) fn closed(&self) {
        self.state().has_ended = true;
        self.wake.notify_all();
    }

    /// The number of prefixes that CrowdSec bans, and the exceptions.
    pub(super) fn counts(&self) -> (u64, Vec<PrefixKey>) {
        self.parts.packets.load_full().map(|packets| packets.decision_counts()).unwrap_or_default()
    }
}

/// The largest file of a secret.
const LONGEST_SECRET: u64 = 4_096;

/// Reads a secret.
pub(super) fn reveal(secret: &Secret) -> Result<String, String> {
    let path = match secret {
        Secret::Text(text) => return Ok(text.clone()),
        Secret::File(path) => path,
    };
    let read = || -> io::Result<String> {
        if fs::metadata(path)?.len() > LONGEST_SECRET {
            return Err(io::Error::other("it is larger than 4 KiB"));
        }
        fs::read_to_string(path)
    };
    let text = read().map_err(|error| format!("reading {} failed: {error}", path.display()))?;
    let text = text.trim();
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("{} must have one line of printable ASCII characters without spaces", path.display()));
    }
    Ok(text.to_owned())
}
