//! Rows of counters and their limits.

use common::counters::BYPASS_ROWS;

use super::at::LimitAt;

/// One row of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedRule {
    /// The limit at the rule's key.
    pub at: LimitAt,
    /// The row of the first rule of the same span, where passed packets are counted.
    pub span: u32,
}

/// The row of counters of the nth rule of the catalogue.
pub const fn counter_row(nth: usize) -> u32 {
    BYPASS_ROWS + nth as u32
}
