//! Rows of counters, their limits, and the sums of a limit's rows.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use common::counters::{BYPASS_ROWS, Counters, Traffic};

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

/// Counters without passed packets.
#[must_use]
pub fn without_passed(counters: Counters) -> Counters {
    Counters {
        passed: Traffic::default(),
        ..counters
    }
}

/// Adds up the rows of each limit. `rules` have the limit, the rule's row, and the row with its span's passed packets;
/// several rules of a limit in one span see the same packets, which count once.
///
/// # Errors
///
/// When `row` fails.
pub fn sums<L: Copy + Ord, E>(
    rules: impl IntoIterator<Item = (L, u32, u32)>,
    row: impl Fn(u32) -> Result<Counters, E>,
) -> Result<BTreeMap<L, Counters>, E> {
    let mut sums = BTreeMap::<L, Counters>::new();
    let mut spans = BTreeSet::new();
    for (limit, counter, span) in rules {
        let sum = sums.entry(limit).or_default();
        *sum = sum.plus(without_passed(row(counter)?));
        if spans.insert((limit, span)) {
            sum.passed = sum.passed.plus(row(span)?.passed);
        }
    }
    Ok(sums)
}

/// The same with rows that have been read; missing ones count as 0.
#[must_use]
pub fn sums_of_rows<L: Copy + Ord>(
    rules: impl IntoIterator<Item = (L, u32, u32)>,
    rows: &[Counters],
) -> BTreeMap<L, Counters> {
    let row = |row: u32| Ok::<_, Infallible>(rows.get(row as usize).copied().unwrap_or_default());
    let Ok(sums) = sums(rules, row);
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packets(packets: u64) -> Traffic {
        Traffic { packets, bytes: 0 }
    }

    #[test]
    fn packets_that_pass_several_rules_of_a_span_count_once() {
        let row = |passed, throttled| Counters {
            passed: packets(passed),
            throttled: packets(throttled),
            ..Counters::default()
        };
        // A limit with two tiers in the spans of rows 0 and 3, and another one in the first span.
        let rows = [row(10, 1), row(0, 2), row(0, 4), row(20, 8), row(0, 16)];
        let rules = [
            ("web", 0, 0),
            ("web", 1, 0),
            ("dns", 2, 0),
            ("web", 3, 3),
            ("web", 4, 3),
        ];
        let sums = sums_of_rows(rules, &rows);
        assert_eq!(sums["web"], row(30, 27));
        assert_eq!(sums["dns"], row(10, 4));
    }
}
