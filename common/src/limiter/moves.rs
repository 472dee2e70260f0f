//! States that change their slot.

/// How the states of a group of limits may be moved from one slot to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Moves {
    /// All are buckets: the later of two states has more of the allowance used.
    Anywhere = 0,
    /// Some are sliding windows: the later of two states still bounds both, but a window's end does not tell how much is
    /// used, so no key gives way before it has decayed.
    Inherit = 1,
    /// Some are fixed windows or logs, which cannot be merged.
    Nowhere = 2,
}

impl Moves {
    /// By the lowest two bits.
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Anywhere,
            1 => Self::Inherit,
            _ => Self::Nowhere,
        }
    }
}
