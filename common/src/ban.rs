//! A prefix that is refused altogether, until an instant of the kernel's own clock.

/// What a ban says. Kept in a trie of its own that only the agent writes, so that no traffic can push it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Ban {
    /// Until when the prefix is refused, in nanoseconds of the monotonic clock; [`Ban::FOREVER`] if it does not end.
    ///
    /// The trie finds the longest prefix only, so this is the latest end of this ban and of all that hold it: a short
    /// ban of one address does not open a hole in a long one of its network.
    pub until: u64,
    /// When this ban itself ends.
    pub own_until: u64,
    /// Packets it has refused.
    pub refused: u64,
}

impl Ban {
    /// It does not end.
    pub const FOREVER: u64 = u64::MAX;

    /// Whether it refuses at the instant `nanoseconds` of the monotonic clock.
    #[inline(always)]
    #[must_use]
    pub const fn is_in_force(until: u64, nanoseconds: u64) -> bool {
        nanoseconds < until
    }
}
