//! The tiers of a limit, with those of what passes above it.

use std::ops::Deref;

use common::rate_limiter::{Policy, PolicyError};
use config::policy::{Multiplier, RequestLimit};

/// The tiers of a limit, and of what passes above it.
#[derive(Clone, Debug, PartialEq)]
pub struct Tiers {
    all: Box<[Policy]>,
    /// The number of those of the limit.
    own: usize,
    /// Whether nothing passes above the limit.
    is_hard: bool,
}

impl Tiers {
    /// `above`: of what passes above the limit, in the same order, or none.
    pub fn new(own: Vec<Policy>, above: Vec<Policy>) -> Self {
        Self {
            own: own.len(),
            is_hard: above.is_empty(),
            all: own.into_iter().chain(above).collect(),
        }
    }

    /// Those of a limit's class with this multiplier.
    ///
    /// # Errors
    ///
    /// When a window is too short for its count, or a log is too long.
    pub fn of(limit: &RequestLimit, multiplier: Multiplier) -> Result<Self, PolicyError> {
        Ok(Self::new(
            limit.policies(multiplier)?,
            limit.policies_above(multiplier)?,
        ))
    }

    /// The same states, of which none passes above the limit.
    pub fn hard(&self) -> Self {
        Self {
            is_hard: true,
            ..self.clone()
        }
    }

    /// Each tier replaced by another one with as many words.
    pub fn map(&self, other: impl Fn(&Policy) -> Policy) -> Self {
        Self {
            all: self.all.iter().map(other).collect(),
            ..*self
        }
    }

    /// Those of the limit.
    pub fn own(&self) -> &[Policy] {
        &self.all[..self.own]
    }

    /// Whether nothing passes above the limit.
    pub const fn is_hard(&self) -> bool {
        self.is_hard
    }

    /// Those that refuse a cost.
    pub fn refusing(&self) -> &[Policy] {
        if self.is_hard {
            &self.all
        } else {
            &self.all[self.own..]
        }
    }

    /// The words of those that refuse a cost.
    pub fn refusing_words<'w>(&self, words: &'w [u64]) -> &'w [u64] {
        if self.is_hard {
            words
        } else {
            &words[self.own_words()..]
        }
    }

    fn own_words(&self) -> usize {
        self.own().iter().map(Policy::words).sum()
    }
}

/// Of a hard limit.
impl From<Vec<Policy>> for Tiers {
    fn from(own: Vec<Policy>) -> Self {
        Self::new(own, Vec::new())
    }
}

/// All of them.
impl Deref for Tiers {
    type Target = [Policy];

    fn deref(&self) -> &[Policy] {
        &self.all
    }
}
