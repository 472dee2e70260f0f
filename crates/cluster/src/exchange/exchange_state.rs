//! Where a host is on its way between the others and a time without the store.

use super::peer::Peer;
use super::use_log::UseLog;

/// The exchanges from the return of all hosts until each has read what the others wrote.
pub(super) const RETURN_REPLIES: u32 = 3;

/// While a store is new, each host that joins has at most this part of a limit: other hosts may have used it up.
pub(super) const HOSTS_OF_A_NEW_STORE: u64 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExchangeState {
    /// Before the first reply.
    Joining,
    Exchanging,
    /// No reply for a lease: `when_store_is_down` is in effect.
    Alone,
    /// Among the others again, with a share of slow buckets until it has read what each used without the others. So many
    /// replies since.
    Returning(u32),
}

impl ExchangeState {
    /// Whether the other hosts have its publications, and it has theirs.
    pub(super) const fn is_among_others(self) -> bool {
        matches!(self, Self::Exchanging | Self::Returning(_))
    }
}

/// The replies since the others are back and all use is written and read, after another one.
pub(super) fn replies_after(replies: u32, peer: &Peer, uses: &UseLog) -> u32 {
    if uses.is_behind() || uses.is_restoring() || peer.are_returning() {
        0
    } else {
        replies + 1
    }
}
