//! Enforcement of a shared limit on this host: the kernel's rows, or the engine of request limits.

use std::sync::Arc;

use config::policy::{ClusterMode, Config, OnExit};
use decide::Current;

use super::packets::Packets;
use super::part::Definition;
use super::{EffectiveShare, Enforcer, Shared, Usage};

/// A limit on packets.
struct OfPackets {
    name: String,
    packets: Arc<dyn Packets>,
    /// The kernel enforces the share until the limits are detached.
    on_exit: OnExit,
}

impl Enforcer for OfPackets {
    fn demand(&self) -> Option<Usage> {
        self.packets.demand(&self.name)
    }

    fn enforce(&self, in_effect: EffectiveShare) {
        self.packets.enforce(&self.name, in_effect);
    }

    fn gives_back(&self) -> bool {
        self.on_exit == OnExit::Detach
    }
}

/// A limit on requests.
struct OfRequests {
    name: String,
    engine: Arc<Current>,
}

impl Enforcer for OfRequests {
    fn demand(&self) -> Option<Usage> {
        let (wanted, refused) = self.engine.load().demand(&self.name)?;
        Some(Usage { wanted, refused })
    }

    fn enforce(&self, in_effect: EffectiveShare) {
        self.engine
            .load()
            .set_share(&self.name, in_effect.share, in_effect.is_open);
    }

    fn gives_back(&self) -> bool {
        true
    }
}

/// Every limit with `cluster = "shares"`, with its enforcement.
#[must_use]
pub fn shared(config: &Config, packets: &Arc<dyn Packets>, engine: &Arc<Current>) -> Vec<Shared> {
    let mut shared = Vec::new();
    for limit in config
        .limits
        .iter()
        .filter(|limit| limit.cluster == Some(ClusterMode::Shares))
    {
        if packets.is_running() {
            let (name, packets) = (limit.name.clone(), Arc::clone(packets));
            let enforcer = OfPackets {
                name,
                packets,
                on_exit: config.agent.on_exit,
            };
            shared.push(Shared {
                definition: Definition::packets(limit),
                enforcer: Box::new(enforcer),
            });
        }
    }
    for limit in config
        .decide
        .limits
        .iter()
        .filter(|limit| limit.cluster == Some(ClusterMode::Shares))
    {
        let enforcer = OfRequests {
            name: limit.name.clone(),
            engine: Arc::clone(engine),
        };
        shared.push(Shared {
            definition: Definition::requests(limit),
            enforcer: Box::new(enforcer),
        });
    }
    shared
}
