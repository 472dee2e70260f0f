//! The counters and sampled statistics of a policy in effect, and the sums of rows of counters by limit.

use std::collections::{BTreeMap, BTreeSet, HashMap as StdHashMap};
use std::convert::Infallible;
use std::os::fd::AsFd;

use aya::maps::{HashMap, MapData, PerCpuArray};
use common::counters::{BYPASS_ROWS, Counters, KeyStatistics, SampleKey, TableCounters, Traffic};
use common::hot::{CpuRow, HotKey};
use common::key::Key;
use common::rule::Rule;

use crate::compile::{Image, LimitAt};
use crate::datapath::Datapath;
use crate::error::LoadError;
use crate::maps::access::{map, map_mut};
use crate::maps::batch;
use crate::maps::size::SAMPLES;

impl Datapath {
    /// The counters of every row, summed over CPUs.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn counters(&self) -> Result<Vec<Counters>, LoadError> {
        let rows = Rows::of(self)?;
        (0..self.image.counters())
            .map(|row| rows.sum(row))
            .collect()
    }

    /// The counters of the table of sources, summed over CPUs.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn table_counters(&self) -> Result<TableCounters, LoadError> {
        let map = PerCpuArray::<_, TableCounters>::try_from(map(&self.ebpf, "TABLE_COUNTERS")?)?;
        Ok(map
            .get(&0, 0)?
            .iter()
            .fold(TableCounters::default(), |sum, cpu| sum.plus(*cpu)))
    }

    /// The sampled statistics of the busiest and of refused keys.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn samples(&self) -> Result<Vec<(Key, KeyStatistics)>, LoadError> {
        let map = map(&self.ebpf, "SAMPLES")?;
        let aya::maps::Map::LruHashMap(data) = map else {
            return Err(LoadError::ForeignObject);
        };
        if let Ok(entries) = batch::entries(data.fd().as_fd(), SAMPLES as usize) {
            return Ok(entries);
        }
        let map = HashMap::<_, Key, KeyStatistics>::try_from(map)?;
        // The walk ends early if a key is evicted; the entries read until then are valid.
        Ok(map.iter().map_while(Result::ok).collect())
    }

    /// The same, with what CPUs have not added to them yet. Both directions have the same map of samples, but counters of
    /// their own: `egress` is the other one, if there is one.
    ///
    /// A step that a CPU adds between the readings of both maps is missing until the next reading. Where a count that falls has
    /// consequences, read [`Datapath::samples`].
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn samples_with_rest(
        &self,
        egress: Option<&Self>,
    ) -> Result<Vec<(Key, KeyStatistics)>, LoadError> {
        let mut samples = self.samples()?;
        let mut hot = self.hot_keys(|_| true)?;
        if let Some(egress) = egress {
            hot.extend(egress.hot_keys(|_| true)?);
        }
        if hot.is_empty() {
            return Ok(samples);
        }
        let mut index: StdHashMap<Key, usize> = samples
            .iter()
            .enumerate()
            .map(|(nth, (key, _))| (*key, nth))
            .collect();
        for (key, refused, passed) in hot {
            let nth = *index.entry(key).or_insert_with(|| {
                samples.push((key, KeyStatistics::UNSEEN));
                samples.len() - 1
            });
            samples[nth].1.refused += refused;
            samples[nth].1.passed += passed;
        }
        Ok(samples)
    }

    /// Writes the sampled statistics of the previous policy.
    ///
    /// # Errors
    ///
    /// When the map cannot be written.
    pub fn take_over_samples(&mut self, samples: &[(Key, KeyStatistics)]) -> Result<(), LoadError> {
        let mut map =
            HashMap::<_, Key, KeyStatistics>::try_from(map_mut(&mut self.ebpf, "SAMPLES")?)?;
        samples
            .iter()
            .try_for_each(|(key, statistics)| Ok(map.insert(key, statistics, 0)?))
    }

    /// The sampled statistics of one key, with what CPUs have not added to them yet.
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn sample(
        &self,
        egress: Option<&Self>,
        key: &Key,
    ) -> Result<Option<KeyStatistics>, LoadError> {
        let entry = SampleKey(key.group);
        let is_wanted = |rule: &Rule| {
            u32::from(rule.group) == entry.group()
                && (rule.position == entry.position()
                    || SampleKey::passed(entry.group(), rule.closes_key) == entry)
        };
        let mut hot = self.hot_keys(is_wanted)?;
        if let Some(egress) = egress {
            hot.extend(egress.hot_keys(is_wanted)?);
        }
        let map = HashMap::<_, Key, KeyStatistics>::try_from(map(&self.ebpf, "SAMPLES")?)?;
        let mut sample = match map.get(key, 0) {
            Ok(statistics) => Some(statistics),
            Err(aya::maps::MapError::KeyNotFound) => None,
            Err(error) => return Err(error.into()),
        };
        for (_, refused, passed) in hot.iter().filter(|(of, ..)| of == key) {
            let sample = sample.get_or_insert(KeyStatistics::UNSEEN);
            sample.refused += refused;
            sample.passed += passed;
        }
        Ok(sample)
    }

    /// What CPUs have not added to the samples yet, under rules of which `is_wanted`: the sample's key, refused and passed
    /// packets.
    fn hot_keys(
        &self,
        is_wanted: impl Fn(&Rule) -> bool,
    ) -> Result<Vec<(Key, u64, u64)>, LoadError> {
        let rows = Rows::of(self)?;
        let mut counted = BTreeSet::new();
        let mut hot = Vec::new();
        for rule in self.image.rules.iter().filter(|rule| is_wanted(rule)) {
            if !counted.insert(rule.counter) {
                continue;
            }
            let group = u32::from(rule.group);
            for HotKey {
                key,
                refused,
                passed,
                ..
            } in rows.hot_keys(rule.counter)?
            {
                let sampled = |entry: SampleKey| Key {
                    group: entry.0,
                    ..key
                };
                if key.group != group {
                    continue;
                }
                if refused != 0 {
                    let entry = SampleKey::refused(group, rule.position);
                    hot.push((sampled(entry), u64::from(refused), 0));
                }
                if passed != 0 {
                    let entry = SampleKey::passed(group, rule.closes_key);
                    hot.push((sampled(entry), 0, u64::from(passed)));
                }
            }
        }
        Ok(hot)
    }

    /// The counters of a limit, given by its index in the config, at all its keys.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn counters_of(&self, limit: usize) -> Result<Counters, LoadError> {
        let rows = Rows::of(self)?;
        let rules = counted(&self.image).filter(|(at, ..)| at.limit == limit);
        let sums = sums(rules.map(|(at, row, span)| (at.limit, row, span)), |row| {
            rows.sum(row)
        })?;
        Ok(sums.get(&limit).copied().unwrap_or_default())
    }
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
fn sums<L: Copy + Ord, E>(
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

/// The counters of each limit at each of its keys, of these rows.
pub fn by_limit(image: &Image, rows: &[Counters]) -> impl Fn(LimitAt) -> Counters + use<> {
    let sums = sums_of_rows(counted(image), rows);
    move |at| sums.get(&at).copied().unwrap_or_default()
}

/// The rules of rows of counters: the limit, the row, and the row with the span's passed packets.
fn counted(image: &Image) -> impl Iterator<Item = (LimitAt, u32, u32)> {
    let rules = (BYPASS_ROWS..).zip(&image.catalogue);
    rules.map(|(row, rule)| (rule.at, row, rule.span))
}

/// The rows of counters.
struct Rows<'d>(PerCpuArray<&'d MapData, CpuRow>);

impl<'d> Rows<'d> {
    fn of(datapath: &'d Datapath) -> Result<Self, LoadError> {
        Ok(Self(PerCpuArray::try_from(map(
            &datapath.ebpf,
            "COUNTERS",
        )?)?))
    }

    /// A row, summed over CPUs.
    fn sum(&self, row: u32) -> Result<Counters, LoadError> {
        Ok(self
            .0
            .get(&row, 0)?
            .iter()
            .fold(Counters::default(), |sum, cpu| sum.plus(cpu.counters)))
    }

    /// The hot key of each CPU.
    fn hot_keys(&self, row: u32) -> Result<Vec<HotKey>, LoadError> {
        Ok(self.0.get(&row, 0)?.iter().map(|cpu| cpu.hot).collect())
    }
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
