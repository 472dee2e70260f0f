//! Counts of each limit for one key: the samples of the kernel programs, plus the tallies in the key's slot.

use std::collections::HashMap;

use common::counters::{KeyStatistics, SampleKey};
use common::key::Key;
use common::rule::Rule;
use common::table::WIDEST_SLOT;
use datapath::Sources;
use datapath::compile::{Group, LimitAt};

use super::{Precision, source_count};

#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<(SampleKey, KeyStatistics)>);

/// The counts of one limit for a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitCounts {
    /// The limit's index in the config.
    pub limit: usize,
    /// 0: its own key; n: its nth level.
    pub level: usize,
    pub passed: u64,
    /// The precision of `passed`.
    pub precision: Precision,
    pub refused: u64,
    /// Packets that would have been refused.
    pub would_refuse: u64,
    /// The last refusal in nanoseconds of the monotonic clock; 0 if none.
    pub refused_at: u64,
    /// The last packet that would have been refused; 0 if none.
    pub would_refuse_at: u64,
    /// Under a level: an estimate of its refused sources; `None` if no refusal was sampled.
    pub sources: Option<u64>,
}

impl LimitCounts {
    /// The later of both; 0 if none.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.refused_at.max(self.would_refuse_at)
    }

    /// Whether there is anything to report.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        self.refused > 0
            || self.would_refuse > 0
            || (self.passed > 0 && !matches!(self.precision, Precision::AtMost))
    }
}

/// A sample's key without the part that distinguishes samples of one key.
fn base(key: &Key) -> Key {
    Key {
        group: SampleKey(key.group).group(),
        ..*key
    }
}

#[must_use]
pub fn by_key(samples: Vec<(Key, KeyStatistics)>) -> HashMap<Key, Samples> {
    let mut all: HashMap<Key, Samples> = HashMap::with_capacity(samples.len());
    for (key, statistics) in samples {
        all.entry(base(&key))
            .or_default()
            .0
            .push((SampleKey(key.group), statistics));
    }
    all
}

/// The sets of states that packets of each group may pass: see [`Rule::closes_key`].
#[derive(Clone, Debug, Default)]
pub struct Spans(HashMap<u32, Vec<u8>>);

impl Spans {
    /// From the rules of both directions.
    #[must_use]
    pub fn of<'r>(rules: impl IntoIterator<Item = &'r Rule>) -> Self {
        let mut spans: HashMap<u32, Vec<u8>> = HashMap::new();
        for rule in rules.into_iter().filter(|rule| rule.closes_key != 0) {
            let of_group = spans.entry(u32::from(rule.group)).or_default();
            if !of_group.contains(&rule.closes_key) {
                of_group.push(rule.closes_key);
            }
        }
        Self(spans)
    }

    fn of_group(&self, group: u32) -> &[u8] {
        self.0.get(&group).map_or(&[], Vec::as_slice)
    }
}

impl Samples {
    /// The samples of one key; `look_up` reads each.
    ///
    /// # Errors
    ///
    /// When `look_up` fails.
    pub fn of_key<E>(
        key: &Key,
        spans: &Spans,
        mut look_up: impl FnMut(&Key) -> Result<Option<KeyStatistics>, E>,
    ) -> Result<Self, E> {
        let refused =
            (1..WIDEST_SLOT as u8).map(|position| SampleKey::refused(key.group, position));
        let passed = spans
            .of_group(key.group)
            .iter()
            .map(|states| SampleKey::passed(key.group, *states));
        let mut samples = Vec::new();
        for entry in refused.chain(passed) {
            if let Some(statistics) = look_up(&Key {
                group: entry.0,
                ..*key
            })? {
                samples.push((entry, statistics));
            }
        }
        Ok(Self(samples))
    }

    /// Whether the key was sampled since an instant of the monotonic clock, or has not been sampled by itself yet.
    #[must_use]
    pub fn are_since(&self, instant: u64) -> bool {
        let mut seen = self.0.iter().map(|(_, statistics)| statistics.seen_at);
        seen.any(|seen_at| seen_at == 0 || seen_at >= instant)
    }

    /// The counts of each limit in the key's group, in the order of the config. `observes` returns whether a limit is
    /// on `observe`.
    #[must_use]
    pub fn counts(
        &self,
        key: &Key,
        (group, spans): (&Group, &Spans),
        sources: &Sources,
        observes: impl Fn(usize) -> bool,
    ) -> Vec<LimitCounts> {
        let slot = sources.find(key);
        let rest = slot.as_ref().map_or(0, |slot| u64::from(slot.passed));
        let tallies = slot.map_or([0; WIDEST_SLOT as usize], |slot| sources.refused(&slot));
        let mut limits: Vec<LimitCounts> = Vec::new();
        for (LimitAt { limit, level }, rule) in &group.states {
            let found = limits.iter_mut().find(|counts| counts.limit == *limit);
            let counts = match found {
                Some(counts) => counts,
                None => {
                    let (passed, precision) =
                        self.passed(*limit, (group, spans.of_group(key.group)), rest);
                    let new = LimitCounts {
                        limit: *limit,
                        level: *level,
                        passed,
                        precision,
                        ..LimitCounts::default()
                    };
                    limits.push(new);
                    let Some(counts) = limits.last_mut() else {
                        continue;
                    };
                    counts
                }
            };
            let sample = self
                .0
                .iter()
                .find(|(entry, _)| entry.position() == rule.position)
                .map(|(_, statistics)| statistics);
            let tally = u64::from(tallies[usize::from(rule.position)]);
            let is_observed = match sample {
                Some(statistics) => statistics.would_refuse_at > statistics.refused_at,
                None => observes(*limit),
            };
            if let Some(statistics) = sample {
                counts.refused += statistics.refused;
                counts.would_refuse += statistics.would_refuse;
                counts.refused_at = counts.refused_at.max(statistics.refused_at);
                counts.would_refuse_at = counts.would_refuse_at.max(statistics.would_refuse_at);
                counts.sources = counts
                    .sources
                    .max(source_count::estimate(&statistics.sources));
            }
            *(if is_observed {
                &mut counts.would_refuse
            } else {
                &mut counts.refused
            }) += tally;
        }
        for counts in limits
            .iter_mut()
            .filter(|counts| counts.precision == Precision::Sampled)
        {
            // Packets that a limit on `observe` would refuse have passed.
            counts.passed = counts.passed.max(counts.would_refuse);
        }
        limits.sort_unstable_by_key(|counts| counts.limit);
        limits
    }

    /// The packets that passed one limit. `rest` are those of all limits that are not sampled yet.
    fn passed(&self, limit: usize, (group, spans): (&Group, &[u8]), rest: u64) -> (u64, Precision) {
        let positions = || {
            group
                .states
                .iter()
                .filter(|(of, _)| of.limit == limit)
                .map(|(_, rule)| rule.position)
        };
        let all: u64 = self.0.iter().map(|(_, statistics)| statistics.passed).sum();
        if spans
            .iter()
            .all(|states| positions().any(|position| states >> position & 1 != 0))
        {
            return (all + rest, Precision::Exact);
        }
        let own = self
            .0
            .iter()
            .filter(|(entry, _)| positions().any(|position| entry.has_passed(position)));
        let own: u64 = own.map(|(_, statistics)| statistics.passed).sum();
        match (all, rest) {
            (0, 0) => (0, Precision::Exact),
            (0, _) => (rest, Precision::AtMost),
            // Unsampled packets are assumed to be distributed like the sampled ones.
            _ => (
                own + (u128::from(rest) * u128::from(own) / u128::from(all)) as u64,
                Precision::Sampled,
            ),
        }
    }
}

/// Converts the samples of one policy to the next, whose states are at other words of a slot; `name` returns a limit's
/// name. Counts in the slots beyond the samples are added, since the next policy's slots start without them.
#[must_use]
pub fn moved<'n>(
    samples: &[(Key, KeyStatistics)],
    table: &Sources,
    (old, old_name): (&[Group], &dyn Fn(usize) -> Option<&'n str>),
    (new, new_name): (&[Group], &dyn Fn(usize) -> Option<&'n str>),
) -> Vec<(Key, KeyStatistics)> {
    let mut positions: HashMap<(u32, u8), u8> = HashMap::new();
    for ((number, old), new) in (0u32..).zip(old).zip(new) {
        // The nth state of a limit stays the nth.
        let parts = |group: &Group, name: &dyn Fn(usize) -> Option<&'n str>| {
            let mut count: HashMap<LimitAt, usize> = HashMap::new();
            let part = |(at, rule): &(LimitAt, Rule)| {
                let nth = count.entry(*at).or_default();
                *nth += 1;
                (name(at.limit), *nth, rule.position)
            };
            group.states.iter().map(part).collect::<Vec<_>>()
        };
        let new_parts = parts(new, new_name);
        for (name, nth, position) in parts(old, old_name) {
            let same = new_parts.iter().find(|(new_name, new_nth, _)| {
                name.is_some() && (*new_name, *new_nth) == (name, nth)
            });
            if let Some((_, _, to)) = same {
                positions.insert((number, position), *to);
            }
        }
    }
    let to = |group: u32, position: u8| positions.get(&(group, position)).copied();
    let moved = samples.iter().filter_map(|(key, statistics)| {
        let entry = SampleKey(key.group);
        let group = entry.group();
        if entry.position() == 0 {
            let states = (1..WIDEST_SLOT as u8).filter(|position| entry.has_passed(*position));
            let states = states
                .filter_map(|position| to(group, position))
                .fold(0, |states, to| states | 1 << to);
            let entry = SampleKey::passed(group, states);
            return (states != 0).then_some((
                Key {
                    group: entry.0,
                    ..*key
                },
                *statistics,
            ));
        }
        let slot = table.find(&base(key));
        let tally = slot.map_or(0, |slot| {
            u64::from(table.refused(&slot)[usize::from(entry.position())])
        });
        let mut statistics = *statistics;
        *(if statistics.would_refuse_at > statistics.refused_at {
            &mut statistics.would_refuse
        } else {
            &mut statistics.refused
        }) += tally;
        let entry = SampleKey::refused(group, to(group, entry.position())?);
        Some((
            Key {
                group: entry.0,
                ..*key
            },
            statistics,
        ))
    });
    moved.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_since_an_instant_by_its_last_sample() {
        let samples = |seen: &[u64]| {
            let sample = |seen_at: &u64| {
                let statistics = KeyStatistics {
                    seen_at: *seen_at,
                    ..KeyStatistics::UNSEEN
                };
                (SampleKey(0), statistics)
            };
            Samples(seen.iter().map(sample).collect())
        };
        for (seen, expected) in [
            (&[99][..], false),
            (&[5, 100], true),
            (&[0], true),
            (&[], false),
        ] {
            assert_eq!(samples(seen).are_since(100), expected, "{seen:?}");
        }
    }
}
