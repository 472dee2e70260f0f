//! Rates of sources, from sampled units.

use std::collections::BTreeMap;

use crate::parameters::{FEWEST_SAMPLES, TICK};
use crate::reading::Source;

/// The shares that the window of two seconds, and the count of recent samples, keep in a tick.
const WINDOW_KEEPS: f64 = 0.95;
const RECENT_KEEPS: f64 = 0.9;
/// Ticks after which a source without samples is forgotten: less than a hundredth of it is left in the window.
const FORGOTTEN: f64 = 100.0;
/// The sources above a level that are named.
pub const HEAVIEST: usize = 5;

/// The sources that send more than their share of a level. Those with too few samples for a rate of their own are left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Above<K> {
    pub sources: usize,
    /// The heaviest of them, the heaviest first.
    pub heaviest: [Option<Heavy<K>>; HEAVIEST],
}

/// A source above a level, in units a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heavy<K> {
    pub key: K,
    /// Its own.
    pub rate: f64,
    /// Its share of the level.
    pub share: f64,
}

impl<K: Copy> Default for Above<K> {
    fn default() -> Self {
        Self {
            sources: 0,
            heaviest: [None; HEAVIEST],
        }
    }
}

impl<K: Copy> Above<K> {
    fn add(&mut self, heavy: Heavy<K>) {
        self.sources += 1;
        let mut next = Some(heavy);
        for place in &mut self.heaviest {
            let is_lighter = |at: &Heavy<K>| at.rate < heavy.rate;
            if next.is_some() && place.as_ref().is_none_or(is_lighter) {
                std::mem::swap(place, &mut next);
            }
        }
    }
}

/// Sampled sources by key, in an order that sums do not depend on. Of more than fit, new ones are left out until others are
/// forgotten.
#[derive(Debug)]
pub struct Samples<K> {
    sources: BTreeMap<K, Seen>,
    most: usize,
    /// Ticks since the onset.
    ticks: f64,
}

#[derive(Debug, Default)]
struct Seen {
    source: Source,
    /// Units since the last reading, and their samples.
    units: f64,
    samples: f64,
    idle_ticks: f64,
}

impl<K: Ord> Samples<K> {
    /// Room for so many sources.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            sources: BTreeMap::new(),
            most,
            ticks: 0.0,
        }
    }

    /// Adds a sample that stands for `units`: its own, times one in how many was sampled.
    pub fn add(&mut self, key: K, weight: f64, network: u64, units: f64) {
        if self.sources.len() >= self.most && !self.sources.contains_key(&key) {
            return;
        }
        let seen = self.sources.entry(key).or_default();
        seen.source.weight = weight;
        seen.source.network = network;
        seen.units += units;
        seen.samples += 1.0;
    }

    /// The sources, after `elapsed` seconds since the last reading. What was sampled before an onset does not count as since
    /// the onset.
    pub fn read(&mut self, elapsed: f64, is_off: bool) -> Vec<Source> {
        let ticks = elapsed / TICK;
        self.ticks = if is_off { ticks } else { self.ticks + ticks };
        let (window, recent) = (WINDOW_KEEPS.powf(ticks), RECENT_KEEPS.powf(ticks));
        self.sources.retain(|_, seen| {
            seen.idle_ticks = if seen.samples > 0.0 {
                0.0
            } else {
                seen.idle_ticks + ticks
            };
            seen.idle_ticks < FORGOTTEN
        });
        let sources = self.sources.values_mut().map(|seen| {
            let source = &mut seen.source;
            if is_off {
                source.since_onset = 0.0;
            }
            source.since_onset += seen.units;
            source.rate = source.rate * window + (1.0 - window) * seen.units / elapsed;
            source.samples = source.samples * recent + seen.samples;
            (seen.units, seen.samples) = (0.0, 0.0);
            *source
        });
        sources.collect()
    }

    /// The sources above a level, by the rates of the last reading.
    #[must_use]
    pub fn above(&self, level: f64) -> Above<K>
    where
        K: Copy,
    {
        let mut above = Above::default();
        // The means began at 0 at the onset.
        let whole = 1.0 - WINDOW_KEEPS.powf(self.ticks);
        for (key, Seen { source, .. }) in &self.sources {
            let (rate, share) = (source.rate / whole, level * source.weight);
            if rate > share && source.samples >= FEWEST_SAMPLES {
                above.add(Heavy {
                    key: *key,
                    rate,
                    share,
                });
            }
        }
        above
    }

    /// Forgets all sources.
    pub fn clear(&mut self) {
        self.sources.clear();
        self.ticks = 0.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_approaches_the_rate() {
        let mut samples = Samples::new(10);
        let mut read = Vec::new();
        for _ in 0..100 {
            for _ in 0..4 {
                samples.add(7, 2.0, 1, 25.0);
            }
            read = samples.read(0.1, false);
        }
        assert!((read[0].rate - 1000.0).abs() < 10.0, "{}", read[0].rate);
        assert!((read[0].samples - 40.0).abs() < 0.1, "{}", read[0].samples);
        assert!((read[0].since_onset - 10_000.0).abs() < 1e-6);
    }

    #[test]
    fn nothing_before_the_onset_counts_as_since_the_onset() {
        let mut samples = Samples::new(10);
        samples.add(7, 1.0, 1, 5.0);
        samples.read(0.05, true);
        samples.add(7, 1.0, 1, 3.0);
        assert!((samples.read(0.05, true)[0].since_onset - 3.0).abs() < 1e-9);
    }

    #[test]
    fn the_heaviest_sources_above_a_level_come_first() {
        let mut samples = Samples::new(100);
        for _ in 0..40 {
            for key in 1..=8_u32 {
                // The fourth has a larger share than it sends.
                let weight = if key == 4 { 10.0 } else { 1.0 };
                (0..5).for_each(|_| samples.add(key, weight, 0, f64::from(key)));
            }
            samples.read(0.1, false);
        }
        // One sample is no rate.
        samples.add(100, 1.0, 0, 1e6);
        samples.read(0.1, false);
        let level = 120.0;
        let above = samples.above(level);
        assert_eq!(above.sources, 5);
        let keys = above.heaviest.map(|heavy| heavy.map(|heavy| heavy.key));
        assert_eq!(keys, [8, 7, 6, 5, 3].map(Some));
        let all = above.heaviest.into_iter().flatten();
        assert!(
            all.clone()
                .all(|heavy| heavy.rate > level && heavy.share <= level)
        );
        assert_eq!(samples.above(1e9), Above::default());
    }

    #[test]
    fn a_steady_source_has_its_rate_from_the_onset_on() {
        let mut samples = Samples::new(10);
        for nth in 0..30 {
            (0..10).for_each(|_| samples.add(7, 1.0, 0, 10.0));
            samples.read(0.1, nth == 0);
            let rate = samples.above(500.0).heaviest[0].unwrap().rate;
            assert!((rate - 1_000.0).abs() < 1e-6, "{rate} after {nth} readings");
        }
    }

    #[test]
    fn made_up_sources_take_no_more_room_than_is_given() {
        let mut samples = Samples::new(10);
        for key in 0..1000 {
            samples.add(key, 1.0, 0, 1.0);
        }
        assert_eq!(samples.read(0.1, false).len(), 10);
        assert_eq!(samples.read(10.1, false).len(), 0);
        samples.add(2000, 1.0, 0, 1.0);
        assert_eq!(samples.read(0.1, false).len(), 1);
    }
}
