//! Bans shared with other hosts: this host's are reported to the outbox, and the others' applied like CrowdSec's.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::event::seconds_since_1970;
use cluster::bans::entry::Kind;
use cluster::bans::{Applied, BanOutbox, Lift, Order, OwnBan, Scope, SharedBan};
use common::ban::Ban;
use config::PrefixKey;
use config::policy::Mode;
use datapath::LoadError;
use datapath::bans::{BanKey, By, Held, Owner, Why};
use host::clock::boot_nanoseconds;

use super::engine::PacketEngine;
use super::in_effect::InEffect;
use super::saved_bans::AT_ONCE;
use crate::ban_reason;
use crate::stats::{monotonic_nanoseconds, owner_text};

const SECOND: u64 = 1_000_000_000;
const MILLISECOND: u64 = 1_000_000;

/// The age of a ban whose start is not known.
const UNKNOWN_AGE: u64 = 7 * 86_400 * SECOND;

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

    /// Of each prefix that this host bans, the ban that ends last, with its start; operators' first.
    #[must_use]
    pub fn own_bans(&self, most: usize) -> Vec<(PrefixKey, OwnBan, u64)> {
        let (in_effect, now) = (self.lock(), monotonic_nanoseconds());
        let (wall, boot) = (seconds_since_1970() as u64, boot_nanoseconds());
        let mut own = in_effect.bans.own();
        own.dedup_by_key(|(key, _)| key.prefix);
        own.retain(|(_, held)| Ban::is_in_effect(held.until, now));
        own.sort_by_key(|(key, _)| key.owner.by);
        own.truncate(most);
        own.into_iter()
            .map(|(key, held)| (key.prefix, own_ban(key, held), since(held, wall, boot)))
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
        lifted: &BTreeMap<PrefixKey, Lift>,
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
        self.apply_shared_bans(&changes, &BTreeMap::new())
    }

    fn apply_shared_bans(
        &self,
        bans: &BTreeMap<PrefixKey, Option<Held>>,
        lifted: &BTreeMap<PrefixKey, Lift>,
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
        let lifted: Vec<_> = lifted.iter().collect();
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

    /// Lifts own bans that were removed on another host, and publishes those that stay. Sources that no limit bans any
    /// more start over, as after `weir unban`.
    fn lift_removed(&mut self, removed: &[(&PrefixKey, &Lift)]) -> Result<(), LoadError> {
        let (mut lifted, now) = (Vec::new(), boot_nanoseconds());
        for (prefix, lift) in removed {
            if self.is_waiting(prefix) {
                continue;
            }
            let is_lifted = |key: &&BanKey| {
                let of_owner = lift.owner.as_ref().is_none_or(|owner| {
                    let is_unrecorded = key.owner == Owner::unnamed(By::Operator);
                    owner_text(&key.owner) == *owner || is_unrecorded && !owner.starts_with("limit")
                });
                !lift.is_elsewhere && of_owner && is_older(self.bans.get(key), lift.age, now)
            };
            let keys: Vec<BanKey> = self
                .bans
                .own_keys(prefix)
                .filter(is_lifted)
                .cloned()
                .collect();
            if self.lift_keys(&keys)? > 0 {
                lifted.push(**prefix);
            }
            self.publish_ban(prefix, monotonic_nanoseconds());
        }
        self.let_start_over(&lifted);
        if !lifted.is_empty() {
            tracing::info!("{} lifted on another host", super::bans::listed(&lifted));
        }
        Ok(())
    }

    /// Publishes the ban of a prefix that ends last, if this host has one, as ordered at this instant of the monotonic
    /// clock.
    pub(super) fn publish_ban(&self, prefix: &PrefixKey, at: u64) {
        let longest = self.bans.longest_own(prefix);
        if let (Some(outbox), Some((key, held))) = (&self.outbox, longest) {
            outbox.push(
                *prefix,
                Order {
                    at: at as i64,
                    ban: Some(own_ban(key, held)),
                    scope: Scope::All,
                },
            );
        }
    }
}

/// The age of a ban in nanoseconds at an instant since boot, if it is known. The wall clock may have been set since it began.
fn age(held: &Held, now: u64) -> Option<u64> {
    let age = (now as i64).saturating_sub(held.began?);
    Some(u64::try_from(age).unwrap_or(0))
}

/// Whether a ban was made before a removal of this age in milliseconds, as far as that is known.
fn is_older(held: Option<&Held>, of_removal: u64, now: u64) -> bool {
    held.and_then(|held| age(held, now))
        .is_none_or(|age| age >= of_removal.saturating_mul(MILLISECOND))
}

/// When a ban began, in seconds since 1970 by the present wall clock; 0 if that is not known.
fn since(held: &Held, wall: u64, boot: u64) -> u64 {
    age(held, boot).map_or(0, |age| wall.saturating_sub(age / SECOND))
}

/// When a ban began, on the monotonic clock; if that is not known, long before any removal.
pub(super) fn started(held: &Held, now: u64) -> i64 {
    let age = age(held, boot_nanoseconds()).map_or(UNKNOWN_AGE, |age| age.min(UNKNOWN_AGE));
    now as i64 - age as i64
}

pub(super) fn own_ban(key: &BanKey, held: &Held) -> OwnBan {
    let is_by_limit = key.owner.by == By::Limit;
    let name = key.owner.name.clone();
    let (limit, owner) = if is_by_limit {
        (name, None)
    } else {
        (None, name)
    };
    OwnBan {
        until: held.until,
        is_by_limit,
        limit,
        owner,
        reason: held.why.as_ref().map(|why| Arc::clone(&why.text)),
    }
}

/// Another host's ban.
fn held(ban: &SharedBan) -> Held {
    let (entry, detail) = (&ban.entry, &ban.entry.detail);
    let (by, name) = match entry.kind {
        Kind::Limit => (By::Limit, detail.limit.as_deref()),
        Kind::Operator | Kind::Removal => (By::Operator, detail.owner.as_deref()),
    };
    // The texts come from the store.
    let name = name.filter(|name| ban_reason::is_printable(name));
    let owner = Owner {
        by,
        name: name.map(Arc::from),
    };
    let text = detail
        .reason
        .as_deref()
        .filter(|reason| ban_reason::is_printable(reason))
        .unwrap_or_default();
    let why = Why {
        text: text.into(),
        decision: None,
        host: Some((entry.host.as_str().into(), owner)),
    };
    Held {
        until: ban.until,
        since: entry.made / 1_000,
        why: Some(why),
        ..Held::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_lifts_earlier_bans_whatever_the_wall_clock_is_set_to() {
        let now = 1_000 * SECOND;
        let began_100_s_ago = |since: u64| Held {
            since,
            began: Some(900 * SECOND as i64),
            ..Held::default()
        };
        let wall = seconds_since_1970() as u64;
        // By the wall clock it began an hour ago, now, in an hour, or at an unknown time.
        for since in [wall - 3_600, wall, wall + 3_600, 0] {
            let held = began_100_s_ago(since);
            for (age, is_lifted) in [(0, true), (100_000, true), (100_001, false)] {
                assert_eq!(is_older(Some(&held), age, now), is_lifted, "{since} {age}");
            }
            assert_eq!(super::since(&held, wall, now), wall - 100);
        }
        // Before the boot, and unknown.
        let earlier = Held {
            began: Some(-5_000 * SECOND as i64),
            ..Held::default()
        };
        assert!(is_older(Some(&earlier), 6_000_000, now));
        assert!(!is_older(Some(&earlier), 6_000_001, now));
        assert!(is_older(Some(&Held::default()), u64::MAX, now) && is_older(None, 0, now));
        assert_eq!(super::since(&Held::default(), wall, now), 0);
        let unknown = now as i64 - UNKNOWN_AGE as i64;
        assert_eq!(started(&Held::default(), now), unknown);
    }
}
