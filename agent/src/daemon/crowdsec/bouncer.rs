//! The bouncer's handle.

use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use api::crowdsec::CrowdSecStatus;
use config::policy::CrowdSec;
use crowdsec::{Alert, Decisions};
use decide::Offence;

use super::saved::SavedBouncer;
use super::shared::{Parts, Shared, State};
use super::{alerts, poll, status};

/// The most alerts that wait for the API.
const WAITING: usize = 1_000;

/// The most time that an ending agent waits for the last save.
const LAST_SAVE: Duration = Duration::from_secs(1);

/// The bouncer. Its threads end when it is closed.
pub struct Bouncer(Arc<Shared>);

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
        let shared = Arc::new(Shared {
            parts,
            state: Mutex::new(state),
            wake: Condvar::new(),
        });
        let mut decisions = Decisions::default();
        if let Some(settings) = settings {
            decisions = poll::empty(settings);
        }
        poll::take_up(&shared, saved.as_ref(), &mut decisions);
        type Work = Box<dyn FnOnce() + Send>;
        let (of_pulls, of_alerts) = (Arc::clone(&shared), Arc::clone(&shared));
        let threads: [(&str, Work); 2] = [
            (
                "weir-crowdsec",
                Box::new(move || poll::run(&of_pulls, decisions)),
            ),
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
        if state
            .settings
            .as_ref()
            .is_none_or(|settings| settings.machine_id.is_none())
        {
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
        if state
            .settings
            .as_ref()
            .is_none_or(|settings| settings.machine_id.is_none())
        {
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
            count: offence.escalate.after,
            within: Duration::from_nanos(offence.escalate.within),
            at: std::time::SystemTime::now(),
            ban,
        });
        self.0.wake.notify_all();
    }

    /// The document in `weir status`, `None` without `[crowdsec]`, and notes for the operator: of one reading, so that neither
    /// contradicts the other.
    #[must_use]
    pub fn status(&self) -> (Option<CrowdSecStatus>, Vec<String>) {
        let (banned_prefixes, exceptions) = self.0.counts();
        let state = self.0.state();
        let document = state.settings.as_ref().map(|settings| CrowdSecStatus {
            banned_prefixes,
            exceptions: exceptions.iter().map(ToString::to_string).collect(),
            ..status::document(&state, settings)
        });
        (document, status::notes(&state))
    }

    /// Ends the threads, and waits for a last save unless a pull is under way for long.
    pub fn close(&self) {
        let mut state = self.0.state();
        state.is_closed = true;
        self.0.wake.notify_all();
        drop(
            self.0
                .wake
                .wait_timeout_while(state, LAST_SAVE, |state| !state.has_ended),
        );
    }
}
