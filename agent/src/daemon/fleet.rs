//! The packet engine's interfaces for the crate `cluster`.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::bans::{Applied, BanOutbox, HostBans, HostBansError, Lift, OwnBan, SharedBan};
use cluster::{BusySource, EffectiveShare, Elsewhere, Fleet, PacketsError, Usage};
use config::PrefixKey;
use events::EventLog;

use super::packets::Packets;
use crate::stats::monotonic_nanoseconds;

/// The current packet engine, if any.
struct Running(Packets);

/// This host as a member of a cluster, with the limits and bans of the current packet engine.
#[must_use]
pub fn fleet(packets: &Packets, events: &Arc<EventLog>) -> Fleet {
    let running = || Arc::new(Running(Arc::clone(packets)));
    Fleet::new(running(), running(), monotonic_nanoseconds, events)
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

impl HostBans for Running {
    fn report_to(&self, outbox: Option<&Arc<BanOutbox>>) -> bool {
        self.0
            .load()
            .as_ref()
            .is_some_and(|engine| engine.report_bans_to(outbox))
    }

    fn own(&self, most: usize) -> Vec<(PrefixKey, OwnBan, u64)> {
        self.0
            .load()
            .as_ref()
            .map(|engine| engine.own_bans(most))
            .unwrap_or_default()
    }

    fn change(
        &self,
        bans: &BTreeMap<PrefixKey, Option<SharedBan>>,
        lifted: &BTreeMap<PrefixKey, Lift>,
    ) -> Result<Applied, HostBansError> {
        let Some(engine) = self.0.load_full() else {
            return Ok(Applied::default());
        };
        engine
            .change_shared_bans(bans, lifted)
            .map_err(|error| HostBansError(error.to_string()))
    }

    fn set(&self, bans: &BTreeMap<PrefixKey, SharedBan>) -> Result<Applied, HostBansError> {
        let Some(engine) = self.0.load_full() else {
            return Ok(Applied::default());
        };
        engine
            .set_shared_bans(bans)
            .map_err(|error| HostBansError(error.to_string()))
    }
}
