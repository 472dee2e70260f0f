//! The verdict on a packet.

use crate::time::Ticks;

/// The verdict on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It conforms to all rules that can refuse it, and is charged.
    Pass(Passage),
    /// The rule with this index refuses it, and none is charged.
    Refuse(u32),
}

/// How a packet passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// The first rule that marks it; [`Passage::UNMARKED`] if none does.
    pub marked_by: u32,
    /// Its departure, rounded to four ticks; [`Passage::AT_ONCE`] if it need not wait.
    pub departure: Ticks,
}

impl Passage {
    /// No rule has this index.
    pub const UNMARKED: u32 = u32::MAX;
    /// No departure. An instant that happens to be 0, once in eighteen years, does not wait either.
    pub const AT_ONCE: Ticks = 0;
    /// At once and unmarked.
    pub const FREE: Self = Self {
        marked_by: Self::UNMARKED,
        departure: Self::AT_ONCE,
    };
}

/// The verdict of a packet's only rule as one number: 0 if it refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct PackedVerdict(u64);

impl PackedVerdict {
    pub(super) const REFUSED: Self = Self(0);
    /// It passes, at once and unmarked.
    pub const FREE: Self = Self::pass(0, Passage::AT_ONCE);

    /// The last two bits of the departure, a fraction of a nanosecond, are used for flags.
    #[inline(always)]
    pub(super) const fn pass(is_marked: u32, departure: Ticks) -> Self {
        Self(departure & !3 | (is_marked as u64) << 1 | 1)
    }

    /// The number.
    #[inline(always)]
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// From the number of [`PackedVerdict::to_bits`].
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The verdict on a packet whose only rule has this result.
    #[inline(always)]
    #[must_use]
    pub const fn verdict(self, rule: u32) -> Verdict {
        if self.0 == Self::REFUSED.0 {
            return Verdict::Refuse(rule);
        }
        let marked_by = if self.0 & 2 != 0 {
            rule
        } else {
            Passage::UNMARKED
        };
        Verdict::Pass(Passage {
            marked_by,
            departure: self.0 & !3,
        })
    }
}

/// What became of a conforming packet of a hot key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum HotVerdict {
    /// It passes.
    Passed = 0,
    /// It is refused: a hold does not fit.
    Refused = 1,
    /// Another CPU was faster, and it was not charged.
    Lost = 2,
}

impl HotVerdict {
    /// Returns the verdict with this number; [`HotVerdict::Lost`] for unknown ones.
    #[inline(always)]
    #[must_use]
    pub const fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Passed,
            1 => Self::Refused,
            _ => Self::Lost,
        }
    }
}
