//! Two banks of rules and prefixes, so that a policy with other rows is put in effect without loading programs.
//!
//! One bank is in effect; the agent writes the other one, then changes [`crate::settings::Runtime::bank`], which is one
//! word. A packet reads that word once, so that it is evaluated by one of both policies.

/// One of the two banks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Bank(u32);

impl Bank {
    /// The number of banks.
    pub const COUNT: u32 = 2;
    /// The bank of a policy whose programs have just been loaded.
    pub const FIRST: Self = Self(0);

    /// The bank in effect, from [`crate::settings::Runtime::bank`].
    #[inline(always)]
    #[must_use]
    pub const fn from_setting(setting: u32) -> Self {
        Self(setting % Self::COUNT)
    }

    /// Its number, which is below [`Bank::COUNT`].
    #[inline(always)]
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The bank that is not in effect while this one is.
    #[must_use]
    pub const fn other(self) -> Self {
        Self(1 - self.0)
    }

    /// The first of this bank's elements in a map with `size` elements for each bank.
    #[inline(always)]
    #[must_use]
    pub const fn first(self, size: u32) -> u32 {
        self.0 * size
    }
}
