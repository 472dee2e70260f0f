//! This host's share of the limits that several hosts enforce together.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::share::Share;
use config::policy::{Multiplier, WhenStoreIsDown};

use super::engine::Engine;
use super::fingerprint::{Fingerprints, fnv1a};
use super::resets::{era_of, name_hash};
use super::state_store::StateStore;

/// The enforcement on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EffectiveShare {
    /// The share of rate and burst.
    pub share: Share,
    /// Whether nothing is refused, regardless of the share.
    pub is_open: bool,
}

impl EffectiveShare {
    /// The whole limit.
    pub const WHOLE: Self = Self {
        share: Share::WHOLE,
        is_open: false,
    };

    /// The fallback without a store, on one of `hosts` hosts.
    #[must_use]
    pub fn alone(when: WhenStoreIsDown, hosts: u64) -> Self {
        let share = |share| Self {
            share,
            is_open: false,
        };
        match when {
            WhenStoreIsDown::Share => share(Share::one_of(hosts)),
            WhenStoreIsDown::Local => Self::WHOLE,
            WhenStoreIsDown::Open => Self {
                is_open: true,
                ..Self::WHOLE
            },
            WhenStoreIsDown::Closed => share(Share::NOTHING),
        }
    }
}

impl Engine {
    /// The demand for a limit of the cluster, in units: (passed and refused, refused).
    #[must_use]
    pub fn demand(&self, name: &str) -> Option<(u64, u64)> {
        let together = self.limits[*self.by_name.get(name)?].together.as_ref()?;
        Some((
            together.wanted.load(Ordering::Relaxed),
            together.refused.load(Ordering::Relaxed),
        ))
    }

    /// Sets this host's share of a shared limit, and whether it refuses anything.
    pub fn set_share(&self, name: &str, share: Share, is_open: bool) {
        let Some(limit) = self.by_name.get(name).and_then(|nth| self.limits.get(*nth)) else {
            return;
        };
        limit.stores.iter().for_each(|store| store.set_share(share));
        if let Some(together) = &limit.together {
            together.is_open.store(is_open, Ordering::Relaxed);
        }
        if !limit.line.is_empty() {
            self.waiting.changed();
        }
    }

    /// The same for several limits, by name.
    pub fn set_shares<'a>(
        &self,
        shares: impl IntoIterator<Item = (&'a String, &'a EffectiveShare)>,
    ) {
        shares
            .into_iter()
            .for_each(|(name, share)| self.set_share(name, share.share, share.is_open));
    }

    /// The limits whose hosts exchange keys: each limit's name, the multiplier of its class, and its store.
    pub fn exchanged(&self) -> impl Iterator<Item = (&str, Multiplier, &Arc<StateStore>)> {
        let limits = self.limits.iter().filter(|limit| limit.is_exchanged());
        limits.flat_map(|limit| {
            let stores = self.sources.multipliers().iter().zip(&limit.stores);
            stores.map(|(multiplier, store)| (limit.policy.name.as_str(), *multiplier, store))
        })
    }

    /// A number for the states of one of these limits' stores: states of others cannot be compared.
    #[must_use]
    pub fn definition(&self, limit: &str, store: &StateStore) -> u64 {
        let definition = store.definition();
        match era_of(&self.resets.last(), name_hash(limit)) {
            0 => definition,
            era => fnv1a([definition, era].into_iter().flat_map(u64::to_le_bytes)),
        }
    }

    /// The secret of exchanged keys, and whether it is other hosts' or the previous agent's.
    #[must_use]
    pub fn exchanged_secret(&self) -> ([u64; 2], bool) {
        let fingerprints = self.together.load();
        (fingerprints.secret(), fingerprints.is_known())
    }

    /// Hashes exchanged keys with the hosts' common secret. Keys of another secret are removed, since they cannot be
    /// looked up.
    pub fn name_keys(&self, secret: [u64; 2]) {
        let (before, is_known) = self.exchanged_secret();
        if before == secret && is_known {
            return;
        }
        self.together.store(Arc::new(Fingerprints::under(secret)));
        if before != secret {
            self.resets.change(HashMap::clear);
            self.exchanged().for_each(|(.., store)| {
                store.clear();
            });
        }
    }
}
