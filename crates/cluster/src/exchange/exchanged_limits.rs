//! The limits with `cluster = "keys"`, and a host's share of them: the whole limit, or less without the store.

use std::sync::{Arc, Mutex, PoisonError};

use config::policy::{ClusterMode, Config};
use decide::{Current, EffectiveShare};

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
    in_effect: Mutex<EffectiveShare>,
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
            in_effect: Mutex::new(in_effect),
        };
        held.enforce_again();
        held
    }

    pub(super) fn in_effect(&self) -> EffectiveShare {
        *self
            .in_effect
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enforce(&self, in_effect: EffectiveShare) {
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

    fn apply(&self, in_effect: EffectiveShare) {
        let engine = self.engine.load();
        engine
            .exchanged()
            .for_each(|(name, ..)| engine.set_share(name, in_effect.share, in_effect.is_open));
        self.packets
            .exchanged()
            .iter()
            .for_each(|(limit, ..)| self.packets.enforce(limit, in_effect));
    }
}
