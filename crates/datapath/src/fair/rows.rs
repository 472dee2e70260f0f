//! The rows of a fair limit: of its rules, and of their counters.

use std::collections::BTreeSet;

use common::fair::WIDER_KEYS;

use crate::compile::{Image, LimitAt};

/// The wider keys of a limit: networks, and all sources together.
pub(super) const WIDER: usize = WIDER_KEYS as usize;

/// The row of a source's rule in the map.
#[derive(Clone, Copy, Debug)]
pub(super) struct FairRow {
    pub(super) row: usize,
    /// The distances from it to those of wider keys; 0: the limit has none.
    pub(super) wider: [u8; WIDER],
}

impl FairRow {
    /// Those of a limit, from a row of a bank on.
    pub(super) fn all(image: &Image, limit: usize, first: usize) -> Vec<Self> {
        let is = |row: usize, level: usize| {
            image.rules[row].is_fair() && image.at_of_row(row) == Some(LimitAt { limit, level })
        };
        let own = (0..image.rules.len()).filter(|row| is(*row, 0));
        let distance = |row: usize, level: usize| {
            // The next one, behind the span.
            let mut near = (row..image.rules.len()).take(1 << u8::BITS);
            let next = near.find(|other| is(*other, level));
            next.and_then(|next| u8::try_from(next - row).ok())
        };
        own.map(|row| Self {
            row: first + row,
            wider: std::array::from_fn(|nth| distance(row, nth + 1).unwrap_or(0)),
        })
        .collect()
    }
}

/// Rows of counters of a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CountedRows {
    /// Those with the passed packets of its spans.
    pub(super) spans: Vec<u32>,
    pub(super) fair: Vec<u32>,
    pub(super) wider: [Vec<u32>; WIDER],
    pub(super) most: Vec<u32>,
}

impl CountedRows {
    pub(super) fn of(image: &Image, limit: usize) -> Self {
        let mut rows = Self::default();
        let mut spans = BTreeSet::new();
        for (counted, rule) in image.catalogue.iter().zip(&image.rules) {
            if counted.at.limit != limit {
                continue;
            }
            spans.insert(counted.span);
            let own = match (rule.is_fair(), counted.at.level) {
                (true, 0) => Some(&mut rows.fair),
                (true, level) => rows.wider.get_mut(level - 1),
                (false, _) => Some(&mut rows.most),
            };
            own.into_iter().for_each(|own| own.push(rule.counter));
        }
        rows.spans = spans.into_iter().collect();
        rows
    }
}
