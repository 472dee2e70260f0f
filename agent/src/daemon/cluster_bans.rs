//! The bans of the packet engine for the crate `cluster`.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::bans::{Applied, BanOutbox, HostBans, HostBansError, Lift, OwnBan, SharedBan};
use config::PrefixKey;

use super::packets::Packets;

/// The current packet engine, if any.
struct Running(Packets);

/// The interface to the bans of the current packet engine.
#[must_use]
pub fn bans_for_cluster(packets: &Packets) -> Arc<dyn HostBans> {
    Arc::new(Running(Arc::clone(packets)))
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
