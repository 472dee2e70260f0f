//! Events, counts and the status of rules.

use api::rules::RulesStatus;
use config::policy::RulesAddress;
use rollout::board::{Progress, Report};
use rollout::host::Event as Happened;
use rollout::rules::Rights;

use crate::daemon::events::{Event, EventKind, EventLog};

/// Counts since the agent started.
#[derive(Default)]
pub(super) struct Totals {
    pub refusals: u64,
    pub stops: u64,
    pub last_refusal: Option<String>,
    /// Failed requests since the store was available.
    pub failures: u64,
    /// Whether the last request succeeded.
    pub is_up: Option<bool>,
    pub failure: Option<String>,
}

impl Totals {
    pub(super) fn store_failed(&mut self, reason: String) {
        self.failures += 1;
        self.is_up = Some(false);
        self.failure = Some(reason);
    }

    pub(super) fn store_replied(&mut self) {
        self.failures = 0;
        self.is_up = Some(true);
        self.failure = None;
    }

    /// Totals and logs what happened, and makes an event of it.
    pub(super) fn happened(&mut self, happened: &Happened, stream: &str, events: &EventLog) {
        let reason = happened.to_string();
        let (kind, count) = match happened {
            Happened::Begun { .. } => (EventKind::RulesTried, 1),
            Happened::Confirmed { .. } => (EventKind::RulesConfirmed, 1),
            Happened::Stopped { .. } => {
                self.stops += 1;
                (EventKind::RulesStopped, 1)
            }
            Happened::Refused(refusal) => {
                self.refusals += 1;
                self.last_refusal = Some(refusal.to_string());
                (EventKind::RulesRefused, 1)
            }
            Happened::Stalled { .. } => (EventKind::RulesStalled, 1),
            Happened::StoreDown(_) => (EventKind::RulesStoreDown, self.failures.max(1)),
            Happened::StoreUp => (EventKind::RulesStoreUp, 1),
        };
        match kind {
            EventKind::RulesTried | EventKind::RulesConfirmed | EventKind::RulesStoreUp => {
                tracing::info!("stream {stream}: {reason}");
            }
            EventKind::RulesStoreDown => tracing::warn!("stream {stream}: {reason}"),
            _ => tracing::error!("stream {stream}: {reason}"),
        }
        events.push(Event {
            source: Some(format!("stream {stream}")),
            ..Event::now(kind, count, reason)
        });
    }
}

/// The document in `weir status`, without errors and what is in effect.
pub(super) fn document(
    rules: &RulesAddress,
    rights: &Rights,
    report: &Report,
    counts: &Totals,
) -> RulesStatus {
    let (state, reason) = match &report.progress {
        _ if report.version == 0 => ("none", None),
        Progress::Waiting => ("waiting", None),
        Progress::Trying { .. } => ("trying", None),
        Progress::Held => ("held", None),
        Progress::Failed { reason } => ("failed", Some(reason)),
        Progress::Stopped { reason } => ("stopped", Some(reason)),
    };
    RulesStatus {
        store: rules.to_string(),
        stream: rules.stream.clone(),
        prefix: match rights {
            Rights::Fleet { .. } => None,
            Rights::Team { prefix, .. } => Some(prefix.clone()),
        },
        node: report.host.clone(),
        accepted: report.version,
        state: state.to_owned(),
        reason: reason.cloned(),
        refused: report.refused.clone(),
        last_refusal: counts.last_refusal.clone(),
        refusals: counts.refusals,
        stops: counts.stops,
        store_up: counts.is_up,
        ..RulesStatus::default()
    }
}
