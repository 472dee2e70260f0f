//! The samples of the last seconds.

use std::collections::VecDeque;
use std::time::Duration;

use crate::sample::Batch;
use crate::summary::Summary;

/// The samples of the last seconds.
#[derive(Debug)]
pub struct Window {
    batches: VecDeque<Batch>,
    span: Duration,
    most: usize,
}

impl Window {
    /// Of batches with at most this time, and at most so many samples. The oldest make room for new ones; one that is larger
    /// than that has no place, since a part of it would not be a random sample.
    #[must_use]
    pub const fn new(span: Duration, most: usize) -> Self {
        Self {
            batches: VecDeque::new(),
            span,
            most,
        }
    }

    pub fn add(&mut self, batch: Batch) {
        self.batches.push_back(batch);
        while self.length() > self.span || self.samples() > self.most {
            self.batches.pop_front();
        }
    }

    pub fn clear(&mut self) {
        self.batches.clear();
    }

    /// The time in which its samples were taken.
    #[must_use]
    pub fn length(&self) -> Duration {
        self.batches.iter().map(|batch| batch.length).sum()
    }

    /// The number of its samples.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.batches.iter().map(|batch| batch.samples.len()).sum()
    }

    /// One in how many packets was sampled, where fewest were: the table is as coarse as that. 1: all packets are in it.
    #[must_use]
    pub fn one_in(&self) -> u32 {
        let sampled = self.batches.iter().map(|batch| batch.one_in);
        sampled.max().unwrap_or(1)
    }

    /// The prefixes that have at least a share of the packets, from 0 to 1, without those of heavy prefixes within them.
    #[must_use]
    pub fn summary(&self, share: f64) -> Summary {
        Summary::of(self.batches.iter(), share)
    }
}
