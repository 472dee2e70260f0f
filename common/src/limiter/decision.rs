//! The result of an algorithm.

/// The result of an algorithm with one word of state, for one cost at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It conforms. Replace the state by this one; if another CPU has changed it meanwhile, decide again on the new
    /// state.
    Pass(u64),
    /// It does not conform, and the state stays: a refusal charges nothing.
    Refuse,
}

impl Decision {
    /// Writes the new state into a word that nobody else changes. Returns whether the cost conforms.
    #[inline]
    pub(super) const fn write(self, word: &mut u64) -> bool {
        match self {
            Self::Pass(next) => {
                *word = next;
                true
            }
            Self::Refuse => false,
        }
    }
}
