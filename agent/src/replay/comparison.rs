//! Compares the verdicts of two configs on the same packets.

use common::key::Key;
use common::rule::Subject;
use datapath::compile::LimitAt;

use super::evaluation::{Evaluated, Evaluation};
use super::program::Verdict;
use super::refused::{Refused, SourceKey};

/// The differences of two configs' verdicts.
#[derive(Debug)]
pub struct Comparison {
    /// Packets that both pass.
    pub both_pass: u64,
    /// Packets that both refuse.
    pub both_refuse: u64,
    /// Packets that only the first config refuses, and only the second.
    pub only: [u64; 2],
    /// Their sources, by address.
    pub sources: [Refused; 2],
}

impl Comparison {
    /// For two evaluations; `None` for any other number.
    #[must_use]
    pub fn of(evaluations: &[Evaluation<'_>]) -> Option<Self> {
        let [one, other] = evaluations else {
            return None;
        };
        let refused = |evaluation: &Evaluation<'_>| {
            Refused::new(
                evaluation
                    .programs()
                    .map(|program| program.image().max_sources)
                    .max()
                    .unwrap_or(0),
            )
        };
        Some(Self {
            both_pass: 0,
            both_refuse: 0,
            only: [0; 2],
            sources: [refused(one), refused(other)],
        })
    }

    /// Adds a packet's two verdicts.
    #[inline]
    pub fn add(&mut self, verdicts: &[Evaluated; 2], captured: u64) {
        let refuses =
            |evaluated: &Evaluated| matches!(evaluated.verdict, Verdict::Refuse | Verdict::Drop);
        let nth = match (refuses(&verdicts[0]), refuses(&verdicts[1])) {
            (false, false) => return self.both_pass += 1,
            (true, true) => return self.both_refuse += 1,
            (true, false) => 0,
            (false, true) => 1,
        };
        self.only[nth] += 1;
        if let Some(Subject { hi, lo, size, .. }) = verdicts[nth].subject {
            let key = Key {
                hi,
                lo,
                ..Key::default()
            };
            let source = SourceKey::of(LimitAt::default(), key);
            self.sources[nth].add(source, (1, size.bytes.into()), 0, captured, None);
        }
    }
}
