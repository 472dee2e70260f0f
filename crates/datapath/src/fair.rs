//! Fair limits of a policy in effect, for the controller of their levels.
//!
//! A handle has maps of its own, so that its thread waits for no change of the policy. It is of one policy: after a change, take
//! new ones. What an old one writes has no effect.

mod rows;

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use aya::maps::{Map, MapData, PerCpuArray};
use common::bank::Bank;
use common::counters::{Counters, Traffic};
use common::fair::{LIFE_NANOSECONDS, Level, Offered, Wider, Words};
use common::hot::CpuRow;
use common::key::HashSeed;
use common::packet::Address;
use common::rule::{Rule, Subject};
use common::time::{TickScale, Ticks};
use config::policy::{Config, Limit, Mode, Unit};
use host::clock;

use crate::compile::LimitAt;
use crate::datapath::Datapath;
use crate::error::LoadError;
use crate::maps::access::{array_of, map};
use crate::maps::offered::OfferedRing;
use crate::maps::rows::{Rows, Writings};
use rows::{CountedRows, FairRow, WIDER};

/// A fair limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FairLimit {
    pub name: String,
    /// Its index in [`Config::limits`].
    pub index: usize,
    pub unit: Unit,
}

/// The counts of a fair limit under its policy, in units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FairCounts {
    /// Passed by all rules.
    pub passed: u64,
    /// Refused by the levels of all keys.
    pub refused: u64,
    /// By those of networks, and of all sources together.
    pub refused_by_wider: [u64; WIDER],
    /// Refused by `at_most`.
    pub refused_by_most: u64,
}

/// The levels of all keys of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FairLevels {
    /// That of each source. `None`: nothing is refused.
    pub source: Option<FairLevel>,
    /// Those of each network, and of all sources together, if they have one.
    pub wider: [Option<FairLevel>; WIDER],
}

/// A level: what each key may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FairLevel {
    /// Units a second.
    pub rate: f64,
    /// Units that pass at once after a pause. A larger packet passes a full bucket, and leaves a debt.
    pub burst: f64,
}

/// A sampled packet, passed or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FairSample {
    /// First half of its key's address, in network byte order, as [`common::packet::Address`].
    pub hi: u64,
    /// Second half.
    pub lo: u64,
    /// The same of its network's key; 0 if the limit has no level of networks.
    pub network: (u64, u64),
    /// Its cost.
    pub units: u32,
    /// The one-in-so-many of its sample.
    pub one_in: u32,
}

/// A fair limit in effect.
pub struct FairHandle {
    limit: FairLimit,
    rows: Rows,
    /// The rows of its fair rules, of all classes, in the bank in effect.
    fair: Vec<FairRow>,
    /// The rule of its networks.
    networks: Option<Rule>,
    /// That bank, and the writing of it with these rules.
    bank: Bank,
    writing: u64,
    writings: Arc<Writings>,
    counters: PerCpuArray<MapData, CpuRow>,
    counted: CountedRows,
    ring: Arc<OfferedRing>,
    scale: TickScale,
    shift: u8,
    words: Words,
    /// The levels of wider keys.
    wider: [Level; WIDER],
}

impl Datapath {
    /// The fair limits of the policy in effect, which is that of `config`. None in mode `observe`, which refuses nothing.
    ///
    /// # Errors
    ///
    /// When a map cannot be opened once more.
    pub fn fair_handles(&self, config: &Config) -> Result<Vec<FairHandle>, LoadError> {
        if config.agent.mode == Mode::Observe {
            return Ok(Vec::new());
        }
        let limits = config.limits.iter().enumerate();
        let own =
            limits.filter(|(_, limit)| limit.is_fair() && limit.direction == self.direction());
        own.map(|(index, limit)| self.fair_handle(index, limit))
            .collect()
    }

    /// The words of fair rules in effect, by their rows in the image.
    #[must_use]
    pub fn fair_rows(&self) -> BTreeMap<usize, Words> {
        let first = self.rows.first_of(self.bank());
        let rules = self.image.rules.iter().enumerate();
        let fair = rules.filter(|(_, rule)| rule.is_fair());
        fair.map(|(row, _)| (row, self.rows.fair(first + row)))
            .collect()
    }

    /// The secret by which keys have their places, and networks their phases.
    #[must_use]
    pub const fn seed(&self) -> &HashSeed {
        &self.settings.seed
    }

    /// The level in effect of a fair rule, by its row in the image: of a wider key, only while the row of the source names it.
    pub(crate) fn fair_level(&self, row: usize, now: Ticks) -> Level {
        let first = self.rows.first_of(self.bank());
        let level = self.rows.fair(first + row).level_at(now);
        let Some(at) = self.image.at_of_row(row).filter(|at| at.level > 0) else {
            return level;
        };
        let own = LimitAt { level: 0, ..at };
        let is_source = |other: &usize| {
            self.image.rules[*other].is_fair() && self.image.at_of_row(*other) == Some(own)
        };
        let Some(source) = (0..row).rev().find(is_source) else {
            return Level::OFF;
        };
        let words = self.rows.fair(first + source);
        let distance = words.wider.distance(at.level as u32 - 1) as usize;
        if words.level_at(now).is_off() || distance != row - source {
            return Level::OFF;
        }
        level
    }

    fn fair_handle(&self, index: usize, limit: &Limit) -> Result<FairHandle, LoadError> {
        let first = self.rows.first_of(self.bank());
        let fair = FairRow::all(&self.image, index, first);
        let own = fair.first();
        let shift = own.map_or(0, |own| self.image.rules[own.row - first].shift);
        let networks = own.filter(|own| own.wider[0] > 0);
        let networks = networks.map(|own| own.row - first + usize::from(own.wider[0]));
        Ok(FairHandle {
            limit: FairLimit {
                name: limit.name.clone(),
                index,
                unit: limit.unit,
            },
            rows: Rows::map(array_of(&self.ebpf, "RULES")?, self.rows.of_bank())?,
            words: fair
                .first()
                .map_or(Words::default(), |own| self.rows.fair(own.row)),
            wider: [Level::OFF; WIDER],
            networks: networks.map(|row| self.image.rules[row]),
            fair,
            bank: self.bank(),
            writing: self.writings.of(self.bank()),
            writings: Arc::clone(&self.writings),
            counters: counters_of(self)?,
            counted: CountedRows::of(&self.image, index),
            ring: Arc::clone(&self.offered),
            scale: self.settings.scale,
            shift,
        })
    }
}

/// The map of counters, by another descriptor.
fn counters_of(datapath: &Datapath) -> Result<PerCpuArray<MapData, CpuRow>, LoadError> {
    let Map::PerCpuArray(data) = map(&datapath.ebpf, "COUNTERS")? else {
        return Err(LoadError::ForeignObject);
    };
    let descriptor = data.fd().as_fd().try_clone_to_owned();
    let descriptor = descriptor.map_err(LoadError::Mmap)?;
    Ok(PerCpuArray::try_from(Map::PerCpuArray(MapData::from_fd(
        descriptor,
    )?))?)
}

impl FairHandle {
    #[must_use]
    pub const fn limit(&self) -> &FairLimit {
        &self.limit
    }

    /// The counts since the policy was put in effect.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn counts(&self) -> Result<FairCounts, LoadError> {
        let sum = |rows: &[u32], of: fn(&Counters) -> Traffic| {
            rows.iter().try_fold(0, |sum: u64, row| {
                let cpus = self.counters.get(row, 0)?;
                let units = cpus.iter().map(|cpu| self.units(of(&cpu.counters)));
                Ok::<_, LoadError>(units.fold(sum, u64::wrapping_add))
            })
        };
        let mut refused_by_wider = [0; WIDER];
        for (refused, rows) in refused_by_wider.iter_mut().zip(&self.counted.wider) {
            *refused = sum(rows, |row| row.throttled)?;
        }
        let by_wider = refused_by_wider.iter().sum::<u64>();
        Ok(FairCounts {
            passed: sum(&self.counted.spans, |row| row.passed)?,
            refused: sum(&self.counted.fair, |row| row.throttled)?.wrapping_add(by_wider),
            refused_by_wider,
            refused_by_most: sum(&self.counted.most, |row| row.throttled)?,
        })
    }

    const fn units(&self, traffic: Traffic) -> u64 {
        match self.limit.unit {
            Unit::Bytes => traffic.bytes,
            _ => traffic.packets,
        }
    }

    /// Puts a level in effect for two seconds from now; `None` refuses nothing.
    pub fn set(&mut self, level: Option<FairLevel>) {
        self.set_at(level, clock::monotonic_nanoseconds());
    }

    /// The same from an instant of the monotonic clock.
    pub fn set_at(&mut self, level: Option<FairLevel>, nanoseconds: u64) {
        let levels = FairLevels {
            source: level,
            ..FairLevels::default()
        };
        self.set_levels_at(levels, nanoseconds);
    }

    /// Puts levels in effect for two seconds from now. Those of keys that the limit does not have are left out.
    pub fn set_levels(&mut self, levels: FairLevels) {
        self.set_levels_at(levels, clock::monotonic_nanoseconds());
    }

    /// The same from an instant of the monotonic clock.
    pub fn set_levels_at(&mut self, levels: FairLevels, nanoseconds: u64) {
        let word = |level: Option<FairLevel>| level.map_or(Level::OFF, |level| self.level(level));
        // Without a level of sources, the program looks at none.
        let wider = levels
            .wider
            .map(|level| level.filter(|_| levels.source.is_some()));
        (self.words.level, self.wider) = (word(levels.source), wider.map(word));
        self.write(nanoseconds);
    }

    /// Samples one packet in so many, for two seconds from now; 0: none.
    pub fn sample(&mut self, one_in: u32) {
        self.sample_at(one_in, clock::monotonic_nanoseconds());
    }

    /// The same from an instant of the monotonic clock.
    pub fn sample_at(&mut self, one_in: u32, nanoseconds: u64) {
        self.words.one_in = one_in;
        self.write(nanoseconds);
    }

    /// Takes the packets that were sampled since the last call.
    pub fn samples(&mut self, each: &mut dyn FnMut(FairSample)) {
        self.ring.drain(&self.counted.fair, |offered| {
            let Offered {
                hi,
                lo,
                units,
                one_in,
                ..
            } = offered;
            each(FairSample {
                hi,
                lo,
                network: self.networks.map_or((0, 0), |rule| key_at(&rule, hi, lo)),
                units,
                one_in,
            });
        });
    }

    fn write(&mut self, nanoseconds: u64) {
        let until = self.scale.ticks(nanoseconds + LIFE_NANOSECONDS);
        self.words.until = until;
        self.writings.within(self.bank, self.writing, || {
            for own in &self.fair {
                let mut named = [0; WIDER];
                for ((named, distance), level) in named.iter_mut().zip(own.wider).zip(self.wider) {
                    if distance == 0 || level.is_off() {
                        continue;
                    }
                    *named = distance;
                    let words = Words {
                        until,
                        level,
                        ..Words::default()
                    };
                    // Before the row that names it. One that is no longer named ends by itself.
                    self.rows.set_fair(own.row + usize::from(distance), words);
                }
                let words = Words {
                    wider: Wider::new(named),
                    ..self.words
                };
                self.rows.set_fair(own.row, words);
            }
        });
    }

    fn level(&self, level: FairLevel) -> Level {
        level_of(level, self.shift, self.scale)
    }
}

/// The key of an address under a rule.
fn key_at(rule: &Rule, hi: u64, lo: u64) -> (u64, u64) {
    let is_ipv4 = u32::from(Address { hi, lo }.is_ipv4());
    let key = rule.key_of(&Subject {
        hi,
        lo,
        is_ipv4,
        ..Subject::default()
    });
    (key.hi, key.lo)
}

/// A level in the words of a rule: the interval rounded up, the burst down to a part of a unit.
fn level_of(level: FairLevel, shift: u8, scale: TickScale) -> Level {
    // Exact: powers of two.
    let ticks_a_second = 1e9 * 2f64.powi(scale.left as i32 - scale.right as i32);
    let interval = ticks_a_second * 2f64.powi(shift.into()) / level.rate.max(0.0);
    // A conversion of infinity, as of all that is too large, is the largest number.
    let burst = level.burst * Level::parts(shift) as f64;
    Level::new(interval.ceil() as u64, burst as u64, shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_has_the_interval_of_its_rate_and_no_shorter_one() {
        let level =
            |rate, burst, shift| level_of(FairLevel { rate, burst }, shift, TickScale::FINEST);
        let second = 32_000_000_000;
        let bucket = level(1_000.0, 50.0, 0).bucket(0);
        assert_eq!(
            (bucket.charge(1_000), bucket.tolerance()),
            (second, second / 20)
        );
        // Three packets in a second, by a rounded interval.
        assert_eq!(
            level(3.0, 2.9, 0),
            Level::new(second.div_ceil(3), 2 * 64 + 57, 0)
        );
        let bucket = level(1e6, 3_000.0, 12).bucket(12);
        assert_eq!(bucket.charge(1_000_000), second);
        assert_eq!(bucket.charge(3_000), bucket.tolerance());
        // No level is without a burst.
        assert_eq!(level(1e6, 0.0, 12), level(1e6, 1.0, 12));
        // A rate that no word holds is the slowest level, and never one that refuses nothing.
        for rate in [0.0, -1.0, f64::NAN, 1e-9] {
            assert_eq!(
                level(rate, 5.0, 0),
                Level::new(Level::LONGEST_INTERVAL, 5 * 64, 0),
                "{rate}"
            );
        }
        assert_eq!(level(f64::INFINITY, 5.0, 0), Level::new(1, 5 * 64, 0));
    }
}
