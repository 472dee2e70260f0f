//! Bans from elsewhere, by CrowdSec and by other hosts: applies them to the list of bans and to the kernel.

use std::collections::{BTreeMap, BTreeSet};

use config::PrefixKey;
use config::policy::Mode;
use datapath::LoadError;
use datapath::bans::{BanKey, By, Held};

use super::engine::PacketEngine;
use super::in_effect::InEffect;
use super::saved_bans::AT_ONCE;

/// The ban of each prefix; `None` where the author bans it no more.
pub type DecisionBans = BTreeMap<PrefixKey, Option<Held>>;

impl PacketEngine {
    /// Makes these bans by CrowdSec, and no others of its, the ones in effect.
    ///
    /// # Errors
    ///
    /// When the kernel refuses; the bans before the failure are in effect.
    pub fn set_decisions(&self, wanted: BTreeMap<PrefixKey, Held>) -> Result<(), LoadError> {
        let changes = self.changes_to(By::CrowdSec, wanted);
        self.apply_decisions(&changes)
    }

    /// The changes that make these bans, and no others of their author, the ones in effect.
    pub(super) fn changes_to(&self, author: By, wanted: BTreeMap<PrefixKey, Held>) -> DecisionBans {
        let mut changes: DecisionBans = wanted
            .into_iter()
            .map(|(prefix, held)| (prefix, Some(held)))
            .collect();
        {
            let in_effect = self.lock();
            let mut known = BTreeSet::new();
            for (BanKey { prefix, .. }, held) in in_effect.bans.of(author) {
                match changes.get(prefix) {
                    Some(Some(wanted)) if wanted == held => known.insert(*prefix),
                    Some(_) => continue,
                    None => {
                        changes.insert(*prefix, None);
                        continue;
                    }
                };
            }
            changes.retain(|prefix, held| match held {
                // An exempt prefix may be banned from before it was exempt.
                Some(_) => !known.contains(prefix) || in_effect.is_exempt(prefix),
                None => true,
            });
        }
        changes
    }

    /// Changes bans by CrowdSec. None is in effect in observe mode, nor within an exempt prefix.
    ///
    /// # Errors
    ///
    /// When the kernel refuses; the bans before the failure are in effect.
    pub fn apply_decisions(&self, changes: &DecisionBans) -> Result<(), LoadError> {
        let changes: Vec<_> = changes.iter().collect();
        for some in changes.chunks(AT_ONCE) {
            // The lock is released in between for other requests.
            self.lock().apply_elsewhere(By::CrowdSec, some)?;
        }
        Ok(())
    }

    /// The number of prefixes that CrowdSec bans, and the exceptions from bans from elsewhere.
    #[must_use]
    pub fn decision_counts(&self) -> (u64, Vec<PrefixKey>) {
        let in_effect = self.lock();
        (
            in_effect.bans.count_of(By::CrowdSec) as u64,
            in_effect.bans.exceptions().collect(),
        )
    }

    /// Restores the exceptions from bans from elsewhere.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn restore_exceptions(&self, exceptions: &[PrefixKey]) -> Result<(), LoadError> {
        exceptions
            .chunks(AT_ONCE)
            .try_for_each(|some| self.lock().except(some))
    }
}

impl InEffect {
    /// Changes bans of an author elsewhere; returns the exempt prefixes among new ones.
    pub(super) fn apply_elsewhere(
        &mut self,
        author: By,
        changes: &[(&PrefixKey, &Option<Held>)],
    ) -> Result<BTreeSet<PrefixKey>, LoadError> {
        let is_observing = self.config.agent.mode == Mode::Observe;
        let exempt: BTreeSet<PrefixKey> = changes
            .iter()
            .map(|(prefix, _)| **prefix)
            .filter(|prefix| self.is_exempt(prefix))
            .collect();
        let prefixes: Vec<PrefixKey> = changes.iter().map(|(prefix, _)| **prefix).collect();
        self.change_bans(&prefixes, |bans, touched| {
            for (prefix, held) in changes {
                match held
                    .as_ref()
                    .filter(|_| !is_observing && !exempt.contains(prefix))
                {
                    Some(held) => bans.ban(BanKey::of(**prefix, author), held.clone(), touched),
                    None => drop(bans.lift(&BanKey::of(**prefix, author), touched)),
                }
            }
        })?;
        Ok(exempt)
    }

    /// Whether no ban applies to any address of a prefix.
    fn is_exempt(&self, prefix: &PrefixKey) -> bool {
        let mut exempt = self.config.agent.never_banned().map(PrefixKey::from);
        exempt.any(|exempt| exempt.length <= prefix.length && prefix.cut(exempt.length) == exempt)
    }
}
