//! The bans of this host, as the thread that shares them uses them.

use std::collections::BTreeMap;
use std::sync::Arc;

use config::PrefixKey;
use thiserror::Error;

use super::known_bans::{Lift, SharedBan};
use super::outbox::{BanOutbox, OwnBan};

/// The kernel refused a change of bans.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct HostBansError(pub String);

/// The result of a change.
#[derive(Debug, Default)]
pub struct Applied {
    /// Prefixes that were left as they are: a later order for them waits in the outbox.
    pub skipped: Vec<PrefixKey>,
    /// Exempt prefixes, which no ban applies to.
    pub exempt: Vec<PrefixKey>,
    /// Whether the agent only observes, so that no ban of another host is in effect.
    pub is_observing: bool,
}

/// The bans of this host.
pub trait HostBans: Send + Sync {
    /// Reports new bans and removals to this outbox from now on, or to none. Returns whether it did not before.
    fn report_to(&self, outbox: Option<&Arc<BanOutbox>>) -> bool;

    /// Of each prefix that operators and limits ban, the ban that ends last, with its start in seconds since 1970 (0 if it is not known):
    /// operators' first, and at most this many.
    fn own(&self, most: usize) -> Vec<(PrefixKey, OwnBan, u64)>;

    /// Changes bans of other hosts (`None` ends one), and lifts own bans that were removed on another host.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    fn change(
        &self,
        bans: &BTreeMap<PrefixKey, Option<SharedBan>>,
        lifted: &BTreeMap<PrefixKey, Lift>,
    ) -> Result<Applied, HostBansError>;

    /// Makes these bans of other hosts, and no others, the ones in effect.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    fn set(&self, bans: &BTreeMap<PrefixKey, SharedBan>) -> Result<Applied, HostBansError>;
}
