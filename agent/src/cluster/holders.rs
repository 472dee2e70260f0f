//! What holds a limit on this host: the kernel's rows, or the engine that answers applications.

use std::sync::Arc;

use super::{Holder, InForce, Shared, Usage};
use crate::config::policy::{Config, OnExit};
use crate::decide::Engine;
use crate::service::Service;

/// A limit on packets.
struct Packets {
    name: String,
    service: Arc<Service>,
    /// Packets are held to the share by the kernel until the limits are taken out of it.
    on_exit: OnExit,
}

impl Holder for Packets {
    fn asked(&self) -> Option<Usage> {
        self.service.asked(&self.name)
    }

    fn hold(&self, in_force: InForce) {
        self.service.hold(&self.name, in_force);
    }

    fn gives_back(&self) -> bool {
        self.on_exit == OnExit::Detach
    }
}

/// A limit on requests.
struct Requests {
    name: String,
    engine: Arc<Engine>,
}

impl Holder for Requests {
    fn asked(&self) -> Option<Usage> {
        let (wanted, refused) = self.engine.asked(&self.name)?;
        Some(Usage { wanted, refused })
    }

    fn hold(&self, in_force: InForce) {
        self.engine.set_share(&self.name, in_force.share, in_force.is_open);
    }

    fn gives_back(&self) -> bool {
        true
    }
}

/// Every limit of a config that many hosts keep together, with what holds it.
#[must_use]
pub fn shared(config: &Config, packets: Option<&Arc<Service>>, engine: &Arc<Engine>) -> Vec<Shared> {
    let mut shared = Vec::new();
    for limit in config.limits.iter().filter(|limit| limit.cluster) {
        if let Some(service) = packets {
            let (name, service) = (limit.name.clone(), Arc::clone(service));
            let holder = Packets { name, service, on_exit: config.agent.on_exit };
            shared.push(Shared::packets(limit, Box::new(holder)));
        }
    }
    for limit in config.decide.limits.iter().filter(|limit| limit.cluster) {
        let holder = Requests { name: limit.name.clone(), engine: Arc::clone(engine) };
        shared.push(Shared::requests(limit, Box::new(holder)));
    }
    shared
}
