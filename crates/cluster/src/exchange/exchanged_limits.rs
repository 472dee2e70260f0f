//! The limits with `cluster = "keys"`, and a host's share of them: the whole limit, or less without the store.

use std::sync::{Arc, Mutex, PoisonError};

use common::share::Share;
use config::policy::{ClusterMode, Config};
use decide::{Current, EffectiveShare};

use super::use_log::LEAST_LIFE;
use crate::packets::Packets;

/// The names of a config's limits whose keys are exchanged.
pub fn limits(config: &Config) -> impl Iterator<Item = &str> {
    let packets = config
        .limits
        .iter()
        .map(|limit| (&limit.name, limit.cluster));
    let all = packets.chain(
        config
            .decide
            .limits
            .iter()
            .map(|limit| (&limit.name, limit.cluster)),
    );
    all.filter(|(_, mode)| *mode == Some(ClusterMode::Keys))
        .map(|(name, _)| name.as_str())
}

/// Whether a config has such limits.
pub(super) fn has_keys(config: &Config) -> bool {
    limits(config).next().is_some()
}

/// The enforcement and the share in effect.
pub(super) struct ExchangedLimits {
    pub(super) engine: Arc<Current>,
    pub(super) packets: Arc<dyn Packets>,
    /// The second: of the buckets whose use outlasts [`LEAST_LIFE`], while hosts return from a time without the store.
    in_effect: Mutex<(EffectiveShare, Option<Share>)>,
}

impl ExchangedLimits {
    /// Enforces a share.
    pub(super) fn new(
        engine: &Arc<Current>,
        packets: &Arc<dyn Packets>,
        in_effect: EffectiveShare,
    ) -> Self {
        let held = Self {
            engine: Arc::clone(engine),
            packets: Arc::clone(packets),
            in_effect: Mutex::new((in_effect, None)),
        };
        held.enforce_again();
        held
    }

    pub(super) fn in_effect(&self) -> EffectiveShare {
        let held = self.in_effect.lock();
        held.unwrap_or_else(PoisonError::into_inner).0
    }

    pub(super) fn enforce(&self, in_effect: EffectiveShare) {
        self.replace((in_effect, None));
    }

    /// The whole limit, but of buckets whose use outlasts [`LEAST_LIFE`] a share.
    pub(super) fn enforce_on_slow_buckets(&self, share: Share) {
        self.replace((EffectiveShare::WHOLE, Some(share)));
    }

    fn replace(&self, in_effect: (EffectiveShare, Option<Share>)) {
        // Locked until it is in effect: a reload may enforce the share at the same time.
        let mut held = self
            .in_effect
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *held = in_effect;
        self.apply(in_effect);
    }

    pub(super) fn enforce_again(&self) {
        let held = self
            .in_effect
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.apply(*held);
    }

    fn apply(&self, (in_effect, of_slow_buckets): (EffectiveShare, Option<Share>)) {
        let engine = self.engine.load();
        for (name, _, store) in engine.exchanged() {
            let share = of_slow_buckets.filter(|_| store.is_slow_bucket(LEAST_LIFE));
            engine.set_share(name, share.unwrap_or(in_effect.share), in_effect.is_open);
        }
        self.packets
            .exchanged()
            .iter()
            .for_each(|(limit, ..)| self.packets.enforce(limit, in_effect));
    }
}
