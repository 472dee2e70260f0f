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
    /// The end of this ban itself.
    pub own_until: u64,
    /// The packets it has refused, and in the highest bit whether a limit made it: see [`Ban::packets`] and
    /// [`Ban::is_by_limit`].
    pub refused: u64,
}

impl Ban {
    /// The end of a ban without an end.
    pub const FOREVER: u64 = u64::MAX;
    /// The bit of [`Ban::refused`] that is set if a limit made the ban, not an operator. Stored here because the map
    /// outlives the agent.
    pub const BY_LIMIT: u64 = 1 << 63;

    /// The packets it has refused.
    #[must_use]
    pub const fn packets(&self) -> u64 {
        self.refused & !Self::BY_LIMIT
    }

    /// Whether a limit made it.
    #[must_use]
    pub const fn is_by_limit(&self) -> bool {
        self.refused & Self::BY_LIMIT != 0
    }

    /// Whether it refuses at the instant `nanoseconds` of the monotonic clock.
    #[inline(always)]
    #[must_use]
    pub const fn is_in_effect(until: u64, nanoseconds: u64) -> bool {
        nanoseconds < until
    }
}
