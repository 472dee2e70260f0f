//! The thread that reports bans by limits to CrowdSec.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use config::policy::CrowdSec;
use crowdsec::{Alert, Machine};
use host::backoff::Backoff;

use super::shared::{Shared, reveal};

/// The most alerts in one request.
const AT_ONCE: usize = 50;
/// The pauses after failures.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Sends alerts until the bouncer is closed.
pub(super) fn run(shared: &Shared) {
    let mut machine: Option<(Arc<CrowdSec>, Machine)> = None;
    let mut failures = 0u32;
    let mut after: Option<Instant> = None;
    loop {
        if let Some(after) = after.take() {
            drop(shared.wait(Some(after), |_| false));
        }
        let mut state = shared.wait(None, |state| !state.alerts.is_empty());
        if state.is_closed {
            return;
        }
        let Some(settings) = state.settings.clone() else {
            state.alerts.clear();
            continue;
        };
        // A ban that has ended is no news.
        let now = SystemTime::now();
        let before = state.alerts.len();
        state.alerts.retain(|alert| alert.ends() > now);
        state.sent.dropped += (before - state.alerts.len()) as u64;
        let some: Vec<Alert> = state.alerts.iter().take(AT_ONCE).cloned().collect();
        drop(state);
        if some.is_empty() {
            continue;
        }
        let result = send(&mut machine, &settings, &some, now);
        let mut state = shared.state();
        match result {
            Ok(()) => {
                failures = 0;
                state.sent.sent += some.len() as u64;
                state.sent.failure = None;
                // A reload may have emptied the queue meanwhile.
                state.alerts.retain(|alert| !some.contains(alert));
            }
            Err(reason) => {
                if state.sent.failure.is_none() {
                    tracing::error!(
                        "sending alerts to CrowdSec failed: {reason}; the agent tries again"
                    );
                }
                state.sent.failure = Some(reason);
                failures = failures.saturating_add(1);
                after = Some(Instant::now() + PAUSES.pause(failures));
            }
        }
    }
}

fn send(
    machine: &mut Option<(Arc<CrowdSec>, Machine)>,
    settings: &Arc<CrowdSec>,
    alerts: &[Alert],
    now: SystemTime,
) -> Result<(), String> {
    if machine.as_ref().is_none_or(|(of, _)| of != settings) {
        let Some(of) = settings.machine() else {
            return Ok(());
        };
        let password = reveal(Some(&of.password))?;
        let next = Machine::new(settings.url.reveal(), of.id, password, settings.timeout);
        *machine = Some((Arc::clone(settings), next));
    }
    let Some((_, sender)) = machine else {
        return Ok(());
    };
    let result = sender.send(alerts, now).map_err(|error| error.to_string());
    if result.is_err() {
        // The password's file may be replaced.
        *machine = None;
    }
    result
}
