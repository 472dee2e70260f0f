//! The counts of refused packets for `escalate`.

use std::sync::Arc;

use common::key::Key;
use common::rule::{KeyKind, Rule};
use config::policy::Escalate;
use datapath::Sources;
use datapath::compile::PrefixKey;

use crate::daemon::escalation::{
    History, Look, Offence, Offender, Refusals, SavedEscalation, Scope,
};
use crate::stats::prefix_of;

/// The counts for `escalate`, and the resulting bans.
#[derive(Default)]
pub(super) struct Escalation {
    pub(super) refusals: Refusals,
    /// Packets that limits with `escalate` refused under this policy at the last reading.
    pub(super) refused: u64,
    /// The last offences of an earlier policy.
    pub(super) due: Vec<Offence>,
    /// The table of sources, kept because mapping it takes longer than a reading.
    pub(super) table: Option<Sources>,
    pub(super) history: History,
    /// The bans that `observe` prevented.
    pub(super) observed: History,
}

/// A state whose refusals are counted.
pub(super) struct Followed {
    pub(super) limit: Arc<str>,
    pub(super) escalate: Escalate,
    pub(super) rule: Rule,
}

impl Escalation {
    /// Lets sources start over when an operator lifts their bans.
    pub(super) fn forget(&mut self, prefixes: &[PrefixKey]) {
        self.history.forget(&prefixes.iter().copied().collect());
    }

    /// The durations of bans, for the next agent.
    pub(super) fn save(&self, now: u64) -> Vec<SavedEscalation> {
        self.history.save(now)
    }
}

impl Followed {
    /// Counts refusals of a key; returns the resulting offence. Refusals before a ban takes effect do not count towards
    /// the next one.
    pub(super) fn count(
        &self,
        look: &mut Look<'_>,
        key: &Key,
        refused: u64,
        is_banned: impl Fn(&PrefixKey) -> bool,
    ) -> Option<Offence> {
        let prefix = prefix_of(key, &self.rule);
        let port = if self.rule.key == KeyKind::AddressPort as u8 {
            key.extra
        } else {
            0
        };
        let offender = Offender {
            limit: Arc::clone(&self.limit),
            prefix,
            port,
        };
        if is_banned(&prefix) {
            look.forget(&offender);
            return None;
        }
        look.count(&offender, refused, &self.escalate)?;
        Some(Offence {
            limit: offender.limit,
            scope: Scope::Packet,
            prefix,
            escalate: self.escalate,
        })
    }
}
