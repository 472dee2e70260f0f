//! Bans shared with other hosts: this host's are reported to the outbox, and the others' applied like CrowdSec's.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::bans::{Applied, BanOutbox, Order, OwnBan, SharedBan};
use common::ban::Ban;
use config::PrefixKey;
use config::policy::Mode;
use datapath::LoadError;
use datapath::bans::{By, Held, Why};

use super::bans::AT_ONCE;
use super::engine::PacketEngine;
use super::in_effect::InEffect;
use crate::ban_reason;
use crate::stats::monotonic_nanoseconds;

impl PacketEngine {
    /// Reports own bans and removals to this outbox from now on. Returns whether it did not before.
    pub fn report_bans_to(&self, outbox: Option<&Arc<BanOutbox>>) -> bool {
        let mut in_effect = self.lock();
        let is_same = match (&in_effect.outbox, outbox) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        in_effect.outbox = outbox.cloned();
        !is_same
    }

    /// The bans by operators and limits in effect, each with its start, operators' first.
    #[must_use]
    pub fn own_bans(&self, most: usize) -> Vec<(PrefixKey, OwnBan, u64)> {
        let (in_effect, now) = (self.lock(), monotonic_nanoseconds());
        let of = |by: By| {
            in_effect
                .bans
                .of(by)
                .map(move |(prefix, held)| (by, prefix, held))
        };
        let own = By::OWN
            .iter()
            .flat_map(|by| of(*by))
            .filter(|(.., held)| Ban::is_in_effect(held.until, now));
        own.take(most)
            .map(|(by, prefix, held)| (prefix, own_ban(by, held), held.since))
            .collect()
    }

    /// Changes bans of other hosts, and lifts own bans that were removed on another host.
    ///
    /// # Errors
    ///
    /// When the kernel refuses; the changes before the failure are in effect.
    pub fn change_shared_bans(
        &self,
        bans: &BTreeMap<PrefixKey, Option<SharedBan>>,
        lifted: &[PrefixKey],
    ) -> Result<Applied, LoadError> {
        let held = bans
            .iter()
            .map(|(prefix, ban)| (*prefix, ban.as_ref().map(held)))
            .collect();
        self.apply_shared_bans(&held, lifted)
    }

    /// Makes these bans of other hosts, and no others, the ones in effect.
    ///
    /// # Errors
    ///
    /// When the kernel refuses; the changes before the failure are in effect.
    pub fn set_shared_bans(
        &self,
        bans: &BTreeMap<PrefixKey, SharedBan>,
    ) -> Result<Applied, LoadError> {
        let wanted = bans
            .iter()
            .map(|(prefix, ban)| (*prefix, held(ban)))
            .collect();
        let changes = self.changes_to(By::Host, wanted);
        self.apply_shared_bans(&changes, &[])
    }

    fn apply_shared_bans(
        &self,
        bans: &BTreeMap<PrefixKey, Option<Held>>,
        lifted: &[PrefixKey],
    ) -> Result<Applied, LoadError> {
        let mut applied = Applied::default();
        let changes: Vec<_> = bans.iter().collect();
        for some in changes.chunks(AT_ONCE) {
            // The lock is released in between for other requests.
            let mut in_effect = self.lock();
            // A later order of this host is under way to the store.
            let (waiting, some): (Vec<_>, Vec<_>) = some
                .iter()
                .copied()
                .partition(|(prefix, _)| in_effect.is_waiting(prefix));
            applied
                .skipped
                .extend(waiting.into_iter().map(|(prefix, _)| *prefix));
            applied
                .exempt
                .extend(in_effect.apply_elsewhere(By::Host, &some)?);
        }
        for some in lifted.chunks(AT_ONCE) {
            self.lock().lift_removed(some)?;
        }
        applied.is_observing = self.lock().config.agent.mode == Mode::Observe;
        Ok(applied)
    }
}

impl InEffect {
    fn is_waiting(&self, prefix: &PrefixKey) -> bool {
        self.outbox
            .as_ref()
            .is_some_and(|outbox| outbox.is_waiting(prefix))
    }

    /// Lifts own bans that were removed on another host. Their growth starts over, as after `agent unban`.
    fn lift_removed(&mut self, prefixes: &[PrefixKey]) -> Result<(), LoadError> {
        let mut lifted = Vec::new();
        for prefix in prefixes {
            if !self.is_waiting(prefix) && self.unban(prefix)? {
                lifted.push(*prefix);
            }
        }
        self.escalation.forget(&lifted);
        if !lifted.is_empty() {
            tracing::info!("{} lifted on another host", super::bans::listed(&lifted));
        }
        Ok(())
    }

    /// Publishes an own ban, ordered at this instant of the monotonic clock.
    pub(super) fn publish_ban(&self, prefix: &PrefixKey, by: By, held: &Held, at: u64) {
        if let Some(outbox) = &self.outbox {
            outbox.push(
                *prefix,
                Order {
                    at: at as i64,
                    ban: Some(own_ban(by, held)),
                },
            );
        }
    }

    /// Publishes that an operator lifts the bans of these prefixes.
    pub(super) fn publish_removals(&self, prefixes: &[PrefixKey]) {
        let Some(outbox) = &self.outbox else { return };
        let at = monotonic_nanoseconds() as i64;
        prefixes
            .iter()
            .for_each(|prefix| outbox.push(*prefix, Order { at, ban: None }));
    }
}

fn own_ban(by: By, held: &Held) -> OwnBan {
    OwnBan {
        until: held.until,
        is_by_limit: by == By::Limit,
        limit: held.why.as_ref().and_then(|why| why.limit.clone()),
        reason: held.why.as_ref().map(|why| Arc::clone(&why.text)),
    }
}

/// Another host's ban. A limit without a known name has an empty one.
fn held(ban: &SharedBan) -> Held {
    let (entry, detail) = (&ban.entry, &ban.entry.detail);
    let is_by_limit = entry.kind == cluster::bans::entry::Kind::Limit;
    let limit = is_by_limit.then(|| detail.limit.as_deref().unwrap_or_default().into());
    // The text comes from the store.
    let text = detail
        .reason
        .as_deref()
        .filter(|reason| ban_reason::is_printable(reason))
        .unwrap_or_default();
    let why = Why {
        text: text.into(),
        limit,
        decision: None,
        host: Some(entry.host.as_str().into()),
    };
    Held {
        until: ban.until,
        since: entry.made / 1_000,
        why: Some(why),
    }
}
