//! What holds a limit on this host: the kernel's rows, or the engine that answers applications.

use std::sync::Arc;

use super::part::Definition;
use super::{Holder, InForce, Shared, Usage};
use crate::applications::Packets;
use crate::config::policy::{Config, OnExit};
use crate::decide::Current;

/// A limit on packets.
struct OfPackets {
    name: String,
    packets: Packets,
    /// Packets are held to the share by the kernel until the limits are taken out of it.
    on_exit: OnExit,
}

impl Holder for OfPackets {
    fn asked(&self) -> Option<Usage> {
        self.packets.load().as_ref()?.asked(&self.name)
    }

    fn hold(&self, in_force: InForce) {
        if let Some(service) = self.packets.load().as_ref() {
            service.hold(&self.name, in_force);
        }
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

impl Holder for OfRequests {
    fn asked(&self) -> Option<Usage> {
        let (wanted, refused) = self.engine.load().asked(&self.name)?;
        Some(Usage { wanted, refused })
    }

    fn hold(&self, in_force: InForce) {
        self.engine.load().set_share(&self.name, in_force.share, in_force.is_open);
    }

    fn gives_back(&self) -> bool {
        true
    }
}

/// Every limit of a config that many hosts keep together, with what holds it.
#[must_use]
pub fn shared(config: &Config, packets: &Packets, engine: &Arc<Current>) -> Vec<Shared> {
    let mut shared = Vec::new();
    for limit in config.limits.iter().filter(|limit| limit.cluster) {
        if packets.load().is_some() {
            let (name, packets) = (limit.name.clone(), Arc::clone(packets));
            let holder = OfPackets { name, packets, on_exit: config.agent.on_exit };
            shared.push(Shared { definition: Definition::packets(limit), holder: Box::new(holder) });
        }
    }
    for limit in config.decide.limits.iter().filter(|limit| limit.cluster) {
        let holder = OfRequests { name: limit.name.clone(), engine: Arc::clone(engine) };
        shared.push(Shared { definition: Definition::requests(limit), holder: Box::new(holder) });
    }
    shared
}
