//! The sources with the most refusals, in bounded memory.
//!
//! A table of at most [`MOST`] sources. When it is full, the half with the fewest refusals is dropped. So the count of
//! a source is exact since it was last added; earlier dropped refusals are at most [`Refused::missed`] (the bound of
//! Misra and Gries, 1982).

use std::collections::HashMap;

use common::key::Key;
use common::source_sketch::{SourceSketch, hash};
use datapath::compile::LimitAt;
use foldhash::fast::RandomState;

/// The most sources, regardless of `max_sources`.
const MOST: usize = 1 << 16;
const FEWEST: usize = 1 << 10;
const SECOND: u64 = 1_000_000_000;
/// The seed of senders: fixed, so that every replay of a capture gives the same result.
const SENDERS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9];

/// A source under a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceKey {
    /// The key.
    pub key: Key,
    /// The limit, and its level whose key it is.
    pub at: LimitAt,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedSource {
    pub packets: u64,
    pub bytes: u64,
    /// Packets passed since the first refusal, in steps of 64.
    pub passed: u64,
    /// Captured time of the first refusal, in nanoseconds.
    pub first: u64,
    pub last: u64,
    /// The most refusals within a second.
    pub peak: u64,
    /// Captured time of that second.
    pub peak_at: u64,
    /// The source's class.
    pub class: u32,
    /// Under a level: the sources of the refused packets.
    pub senders: SourceSketch,
    /// Refusals since the start of [`RefusedSource::second`].
    in_second: u64,
    second: u64,
}

impl RefusedSource {
    fn add(&mut self, (packets, bytes): (u64, u64), class: u32, captured: u64) {
        if self.last == 0 {
            (self.first, self.second, self.class) = (captured, captured, class);
        }
        let since = std::mem::replace(&mut self.last, captured);
        self.packets += packets;
        self.bytes += bytes;
        if packets > 1 && since > 0 && since < captured {
            self.spread(packets, since, captured);
            return;
        }
        if captured.wrapping_sub(self.second) >= SECOND {
            (self.second, self.in_second) = (captured, 0);
        }
        self.add_in_second(packets);
    }

    /// Adds packets that are counted together at the last of them: they are spread over the time since the last count.
    fn spread(&mut self, packets: u64, since: u64, captured: u64) {
        let span = captured - since;
        let part = |time: u64| (u128::from(packets) * u128::from(time) / u128::from(span)) as u64;
        let (mut left, mut from) = (packets, since.max(self.second));
        while let Some(end) = self
            .second
            .checked_add(SECOND)
            .filter(|end| *end <= captured)
        {
            let within = part(end.saturating_sub(from)).min(left);
            self.add_in_second(within);
            left -= within;
            // Further whole seconds have as many as the first of them.
            let whole = (captured - end) / SECOND;
            let skipped = whole.saturating_sub(1);
            left -= part(skipped * SECOND).min(left);
            from = end + skipped * SECOND;
            (self.second, self.in_second) = (from, 0);
        }
        self.add_in_second(left);
    }

    const fn add_in_second(&mut self, packets: u64) {
        self.in_second += packets;
        if self.in_second > self.peak {
            (self.peak, self.peak_at) = (self.in_second, self.second);
        }
    }
}

/// The sources with the most refusals.
#[derive(Debug)]
pub struct Refused {
    sources: HashMap<SourceKey, RefusedSource, RandomState>,
    capacity: usize,
    missed: u64,
}

impl Refused {
    /// For a policy with this many sources.
    #[must_use]
    pub fn new(max_sources: u32) -> Self {
        Self {
            sources: HashMap::default(),
            capacity: (max_sources as usize).clamp(FEWEST, MOST),
            missed: 0,
        }
    }

    /// Adds refused packets with their bytes. Under a level, `sender` is the number of the packet's own source.
    pub fn add(
        &mut self,
        source: SourceKey,
        traffic: (u64, u64),
        class: u32,
        captured: u64,
        sender: Option<u64>,
    ) {
        if self.sources.len() >= self.capacity && !self.sources.contains_key(&source) {
            self.drop_half();
        }
        let refused = self.sources.entry(source).or_default();
        refused.add(traffic, class, captured);
        if let Some(sender) = sender {
            refused.senders.add(hash(SENDERS, sender));
        }
    }

    /// Adds passed packets of a source, if it is in the table.
    pub fn passed(&mut self, source: &SourceKey, packets: u64) {
        if let Some(source) = self.sources.get_mut(source) {
            source.passed += packets;
        }
    }

    fn drop_half(&mut self) {
        let mut counts: Vec<u64> = self.sources.values().map(|source| source.packets).collect();
        let middle = counts.len() / 2;
        let (_, median, _) = counts.select_nth_unstable(middle);
        let median = *median;
        self.missed += median;
        self.sources.retain(|_, source| source.packets > median);
    }

    /// The most refusals of any source that may be missing from its count.
    #[must_use]
    pub const fn missed(&self) -> u64 {
        self.missed
    }

    /// The sources with the most refusals, most first.
    #[must_use]
    pub fn top(&self, count: usize) -> Vec<(SourceKey, RefusedSource)> {
        let mut sources: Vec<_> = self
            .sources
            .iter()
            .map(|(key, source)| (*key, *source))
            .collect();
        let order = |(key, source): &(SourceKey, RefusedSource)| {
            (
                std::cmp::Reverse(source.packets),
                source.first,
                key.at,
                key.key.hi,
                key.key.lo,
                key.key.extra,
            )
        };
        sources.sort_unstable_by_key(order);
        sources.truncate(count);
        sources
    }

    /// The number of sources.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sources.len()
    }

    /// Whether there were no refusals.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }
}

impl SourceKey {
    /// The key under which the limit counted.
    #[must_use]
    pub const fn of(at: LimitAt, key: Key) -> Self {
        Self { key, at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(number: u64) -> SourceKey {
        SourceKey::of(
            LimitAt::default(),
            Key {
                lo: number,
                ..Key::default()
            },
        )
    }

    #[test]
    fn the_busiest_are_found_among_more_sources_than_there_is_room_for() {
        let mut refused = Refused::new(1);
        let mut counts = HashMap::new();
        for nth in 0..400_000u64 {
            // One in ten is from one of ten heavy sources; the others are from sources that occur once.
            let number = if nth % 10 == 0 {
                nth / 10 % 10
            } else {
                1_000 + nth
            };
            refused.add(source(number), (1, 100), 0, 1 + nth * 1_000, None);
            *counts.entry(number).or_insert(0u64) += 1;
        }
        assert!(refused.len() <= FEWEST);
        let top = refused.top(10);
        for (key, found) in &top {
            assert!(key.key.lo < 10, "{key:?}");
            let real = counts[&key.key.lo];
            assert!(
                found.packets <= real && real <= found.packets + refused.missed(),
                "{found:?} of {real}"
            );
        }
    }

    #[test]
    fn packets_that_are_counted_in_steps_are_spread_over_the_time_since_the_last_step() {
        let mut refused = Refused::new(1 << 20);
        // 70 packets a second for 20 s, of which every 64th is reported.
        refused.add(source(1), (0, 0), 0, SECOND, None);
        for step in 1..=21u64 {
            let at = SECOND + step * 64 * SECOND / 70;
            refused.add(source(1), (64, 64 * 60), 0, at, None);
        }
        let (_, found) = refused.top(1)[0];
        assert_eq!(found.packets, 21 * 64);
        assert!((65..=71).contains(&found.peak), "{found:?}");
        // After a pause of a minute, the step is spread over it.
        refused.add(source(1), (64, 64 * 60), 0, found.last + 60 * SECOND, None);
        assert_eq!(refused.top(1)[0].1.peak, found.peak);
        // 64 in a millisecond are in one second.
        refused.add(
            source(1),
            (64, 64 * 60),
            0,
            found.last + 60 * SECOND + 1_000_000,
            None,
        );
        assert!((64..=71).contains(&refused.top(1)[0].1.peak));
    }

    #[test]
    fn a_source_has_its_first_last_and_busiest_second() {
        let mut refused = Refused::new(1 << 20);
        for (at, count) in [(0, 3), (2_000, 9), (5_500, 4)] {
            for nth in 0..count {
                refused.add(source(1), (1, 60), 7, (1 + at + nth) * 1_000_000, None);
            }
        }
        let (_, found) = refused.top(1)[0];
        assert_eq!((found.packets, found.bytes, found.class), (16, 960, 7));
        assert_eq!((found.first, found.last), (1_000_000, 5_504_000_000));
        assert_eq!((found.peak, found.peak_at), (9, 2_001_000_000));
        assert_eq!(refused.missed(), 0);
    }
}
