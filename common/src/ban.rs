//! Bans of prefixes, until an instant of the kernel's clock.

/// A ban in its trie. Only the agent writes the trie, so no traffic can evict a ban.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Ban {
    /// The instant until which the prefix is refused, in nanoseconds of the monotonic clock; [`Ban::FOREVER`] if it
    /// does not end.
    ///
    /// The trie finds only the longest prefix, so this is the latest end of this ban and of all bans that contain it: a
    /// short ban of an address does not interrupt a long one of its network.
    pub until: u64,
    /// The end of the operator's or a limit's ban of exactly this prefix; 0 if only others ban it.
    pub own_until: u64,
    /// The packets it has refused, and in the highest bits who made it: see [`Ban::packets`], [`Ban::is_by_limit`],
    /// [`Ban::is_by_crowdsec`], [`Ban::is_by_host`] and [`Ban::is_exception`].
    pub refused: u64,
}

impl Ban {
    /// The end of a ban without an end.
    pub const FOREVER: u64 = u64::MAX;
    /// The bit of [`Ban::refused`] that is set if a limit made the ban, not an operator. Stored here because the map
    /// outlives the agent.
    pub const BY_LIMIT: u64 = 1 << 63;
    /// The bit of [`Ban::refused`] that is set if CrowdSec bans exactly this prefix.
    pub const BY_CROWDSEC: u64 = 1 << 62;
    /// The bit of [`Ban::refused`] that is set if another host of the cluster bans exactly this prefix.
    pub const BY_HOST: u64 = 1 << 60;
    /// The bit of [`Ban::refused`] that is set if bans by CrowdSec and by other hosts do not apply to this prefix.
    pub const EXCEPTION: u64 = 1 << 61;
    /// All of these bits.
    const AUTHORS: u64 = Self::BY_LIMIT | Self::BY_CROWDSEC | Self::BY_HOST | Self::EXCEPTION;

    /// The packets it has refused.
    #[must_use]
    pub const fn packets(&self) -> u64 {
        self.refused & !Self::AUTHORS
    }

    /// Whether a limit made it.
    #[must_use]
    pub const fn is_by_limit(&self) -> bool {
        self.refused & Self::BY_LIMIT != 0
    }

    /// Whether CrowdSec bans exactly this prefix.
    #[must_use]
    pub const fn is_by_crowdsec(&self) -> bool {
        self.refused & Self::BY_CROWDSEC != 0
    }

    /// Whether another host of the cluster bans exactly this prefix.
    #[must_use]
    pub const fn is_by_host(&self) -> bool {
        self.refused & Self::BY_HOST != 0
    }

    /// Whether bans by CrowdSec and by other hosts do not apply to this prefix.
    #[must_use]
    pub const fn is_exception(&self) -> bool {
        self.refused & Self::EXCEPTION != 0
    }

    /// Whether it refuses at the instant `nanoseconds` of the monotonic clock.
    #[inline(always)]
    #[must_use]
    pub const fn is_in_effect(until: u64, nanoseconds: u64) -> bool {
        nanoseconds < until
    }
}
