//! The bouncer in `weir status`.

use std::time::Instant;

use api::crowdsec::{AlertsStatus, CrowdSecStatus, IgnoredDecisions};
use config::policy::CrowdSec;
use host::PROGRAM;

use super::shared::{Pulls, State};

/// The document, without the prefixes in the kernel.
pub(super) fn document(state: &State, settings: &CrowdSec) -> CrowdSecStatus {
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
    CrowdSecStatus {
        url: settings.shown_url(),
        state: health.to_owned(),
        decisions: *decisions as u64,
        ignored: IgnoredDecisions {
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
        ..CrowdSecStatus::default()
    }
}

/// Notes for the operator.
pub(super) fn notes(state: &State) -> Vec<String> {
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
