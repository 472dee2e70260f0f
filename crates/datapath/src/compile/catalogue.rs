//! Rows of counters and their limits.

use common::counters::BYPASS_ROWS;

/// One row of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedRule {
    /// The limit's index in the config.
    pub limit: usize,
    /// 0: the limit's own key; n: its nth level.
    pub level: usize,
    /// The row of the first rule of the same span, where passed packets are counted.
    pub span: u32,
}

/// The row of counters of the nth rule of the catalogue.
pub const fn counter_row(nth: usize) -> u32 {
    BYPASS_ROWS + nth as u32
}
