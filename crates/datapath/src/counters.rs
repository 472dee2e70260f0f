//! Reads the counters and sampled statistics of a policy in effect.

use std::collections::BTreeSet;
use std::os::fd::AsFd;

use aya::maps::{HashMap, PerCpuArray};
use common::counters::{BYPASS_ROWS, Counters, KeyStatistics, TableCounters, Traffic};
use common::key::Key;

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
        let map = PerCpuArray::<_, Counters>::try_from(map(&self.ebpf, "COUNTERS")?)?;
        (0..self.image.counters())
            .map(|row| {
                Ok(map
                    .get(&row, 0)?
                    .iter()
                    .fold(Counters::default(), |sum, cpu| sum.plus(*cpu)))
            })
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

    /// The sampled statistics of one key.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn sample(&self, key: &Key) -> Result<Option<KeyStatistics>, LoadError> {
        let map = HashMap::<_, Key, KeyStatistics>::try_from(map(&self.ebpf, "SAMPLES")?)?;
        match map.get(key, 0) {
            Ok(statistics) => Ok(Some(statistics)),
            Err(aya::maps::MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The (offered, refused) traffic of a limit, given by its index in the config. Offered is passed and refused.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn asked(&self, limit: usize) -> Result<(Traffic, Traffic), LoadError> {
        let map = PerCpuArray::<_, Counters>::try_from(map(&self.ebpf, "COUNTERS")?)?;
        let read = |row: u32| -> Result<Counters, LoadError> {
            Ok(map
                .get(&row, 0)?
                .iter()
                .fold(Counters::default(), |sum, cpu| sum.plus(*cpu)))
        };
        let (mut asked, mut refused) = (Traffic::default(), Traffic::default());
        let mut spans = BTreeSet::new();
        for (row, counted) in (BYPASS_ROWS..)
            .zip(&self.image.catalogue)
            .filter(|(_, counted)| counted.limit == limit)
        {
            refused = refused.plus(read(row)?.throttled);
            // Several rules of one span see the same packets.
            if spans.insert(counted.span) {
                asked = asked.plus(read(counted.span)?.passed);
            }
        }
        Ok((asked.plus(refused), refused))
    }

    /// The packets that a limit, given by its index in the config, has refused or would have refused.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn refused(&self, limit: usize) -> Result<u64, LoadError> {
        let map = PerCpuArray::<_, Counters>::try_from(map(&self.ebpf, "COUNTERS")?)?;
        let rows = (BYPASS_ROWS..)
            .zip(&self.image.catalogue)
            .filter(|(_, counted)| counted.limit == limit);
        rows.map(|(row, _)| {
            let refused = |cpu: &Counters| {
                cpu.throttled
                    .packets
                    .wrapping_add(cpu.would_throttle.packets)
            };
            Ok(map
                .get(&row, 0)?
                .iter()
                .map(refused)
                .fold(0, u64::wrapping_add))
        })
        .sum()
    }
}
