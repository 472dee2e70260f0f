//! The packet engine's interface for the crate `cluster`.

use std::sync::Arc;

use cluster::{BusySource, EffectiveShare, Elsewhere, PacketsError, Usage};

use super::packets::Packets;

/// The current packet engine, if any.
struct Running(Packets);

/// The interface to the current packet engine.
#[must_use]
pub fn for_cluster(packets: &Packets) -> Arc<dyn cluster::Packets> {
    Arc::new(Running(Arc::clone(packets)))
}

impl cluster::Packets for Running {
    fn is_running(&self) -> bool {
        self.0.load().is_some()
    }

    fn demand(&self, limit: &str) -> Option<Usage> {
        self.0.load().as_ref()?.demand(limit)
    }

    fn enforce(&self, limit: &str, in_effect: EffectiveShare) {
        if let Some(engine) = self.0.load().as_ref() {
            engine.enforce(limit, in_effect);
        }
    }

    fn exchanged(&self) -> Vec<(String, u64, f64)> {
        self.0
            .load()
            .as_ref()
            .map(|engine| engine.exchanged())
            .unwrap_or_default()
    }

    fn busy_sources(&self, limit: &str) -> Result<Vec<BusySource>, PacketsError> {
        let Some(engine) = self.0.load_full() else {
            return Ok(Vec::new());
        };
        Ok(engine.lock().reader().busy_sources(limit)?)
    }

    fn charge_beyond(&self, limit: &str, charges: &[Elsewhere]) -> Result<(), PacketsError> {
        let Some(engine) = self.0.load_full() else {
            return Ok(());
        };
        Ok(engine.lock().reader().charge_beyond(limit, charges)?)
    }
}
