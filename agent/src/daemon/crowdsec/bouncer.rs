//! The bouncer's handle.

use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use api::crowdsec::{AlertsStatus, CrowdSecStatus};
use config::policy::CrowdSec;
use crowdsec::{Alert, Decisions};
use decide::Offence;
use host::PROGRAM;

use super::saved::SavedBouncer;
use super::shared::{Parts, Pulls, Shared, State};
use super::{alerts, poll};

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

    /// The document in `weir status`; `None` without `[crowdsec]`.
    #[must_use]
    pub fn status(&self) -> Option<CrowdSecStatus> {
        let (applied, exceptions) = self.0.counts();
        let state = self.0.state();
        let settings = state.settings.as_ref()?;
        let Pulls {
            decisions,
            ignored,
            pulls,
            failures,
            failure,
            trouble,
            last,
            last_full,
        } = &state.pulls;
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
            alerts: settings.machine_id.as_ref().map(|_| AlertsStatus {
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
        let Some(settings) = &state.settings else {
            return notes;
        };
        let url = settings.shown_url();
        let Pulls {
            failure,
            trouble,
            ignored,
            ..
        } = &state.pulls;
        notes.extend(failure.as_ref().map(|failure| {
            format!("CrowdSec's local API at {url} is unavailable: {failure}; known decisions apply until they expire")
        }));
        notes.extend(
            trouble
                .as_ref()
                .map(|trouble| format!("bans by CrowdSec are not all in effect: {trouble}")),
        );
        if ignored.excess > 0 {
            notes.push(format!(
                "{} decisions of CrowdSec exceed [crowdsec] max_decisions and are ignored",
                ignored.excess
            ));
        }
        if ignored.wide > 0 {
            notes.push(format!(
                "{} decisions of CrowdSec are on ranges wider than /8 (IPv6: /16) and are ignored: {PROGRAM} ban --force bans them",
                ignored.wide
            ));
        }
        notes.extend(
            state
                .sent
                .failure
                .as_ref()
                .map(|failure| format!("sending alerts to CrowdSec at {url} failed: {failure}")),
        );
        notes
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
