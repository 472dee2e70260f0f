//! What policies counted that are in force no more, so that counters never go down while the agent runs.

use std::collections::HashMap;

use common::counters::{BYPASS_ROWS, Counters, TableCounters, Traffic};

use crate::compile::Image;
use crate::config::policy::Limit;

/// Counters of earlier policies.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// By the limit's name.
    pub limits: HashMap<String, Counters>,
    /// Of packets that came to no limit.
    pub bypass: [Counters; BYPASS_ROWS as usize],
    /// Of all packets.
    pub total: Counters,
    /// What befell the table of sources.
    pub table: TableCounters,
}

impl Counted {
    /// Adds what one direction of a policy counted.
    pub fn add(&mut self, limits: &[Limit], image: &Image, rows: &[Counters], table: TableCounters) {
        for (sum, row) in self.bypass.iter_mut().zip(rows) {
            *sum = sum.plus(*row);
        }
        self.total = rows.iter().fold(self.total, |sum, row| sum.plus(*row));
        self.table = self.table.plus(table);
        for (nth, limit) in limits.iter().enumerate().filter(|(_, limit)| is_of(limit, image)) {
            let sum = self.limits.entry(limit.name.clone()).or_default();
            *sum = sum.plus(of_limit(nth, image, rows));
        }
    }
}

/// Whether a limit is on this direction.
fn is_of(limit: &Limit, image: &Image) -> bool {
    (limit.direction == common::packet::Direction::Egress) == (image.settings.is_egress != 0)
}

/// What is counted of the nth limit.
#[must_use]
pub fn of_limit(nth: usize, image: &Image, rows: &[Counters]) -> Counters {
    let row = |row: u32| rows.get(row as usize).copied().unwrap_or_default();
    let mut sum = Counters::default();
    let mut spans = std::collections::BTreeSet::new();
    for (counter, counted) in (BYPASS_ROWS..).zip(&image.catalogue).filter(|(_, counted)| counted.limit == nth) {
        sum = sum.plus(Counters { passed: Traffic::default(), ..row(counter) });
        // A limit with tiers has several rules in one span, whose packets count once.
        if spans.insert(counted.span) {
            sum.passed = sum.passed.plus(row(counted.span).passed);
        }
    }
    sum
}
