//! The additional memory of a change of the policy, and whether it is available.

use std::fmt;

use api::memory::{Footprint, Limit};
use common::settings::Settings;
use config::human;

use super::footprint::AGENT;
use super::kernel;
use super::room::Room;
use crate::compile::TableSpec;

const MIB: u64 = 1 << 20;

/// How long a policy is to stay in effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// Until another one replaces it.
    Indefinite,
    /// On trial: a rollback must fit into the remaining memory.
    Trial,
}

/// The most memory that stays free with the number of sources that an error suggests.
const MARGIN: u64 = 16 * MIB;

/// The additional memory of a change at its peak, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// The new table.
    pub table: u64,
    /// Copies of an old one.
    pub copy: u64,
    /// Programs, rules, prefixes, and loading them.
    pub rest: u64,
}

impl Demand {
    /// A change to a policy with a new table. `copy` is that of the previous policy if its table is replaced.
    #[must_use]
    pub fn of_table(footprint: &Footprint, copy: Option<u64>, lasting: Lasting) -> Self {
        // A rollback needs both tables again, and a copy of the new one.
        let back = if lasting == Lasting::Trial {
            footprint.copy
        } else {
            0
        };
        Self {
            table: footprint.table,
            copy: copy.map_or(0, |copy| copy.max(back)),
            ..Self::of_rules(footprint)
        }
    }

    /// A change to a policy that reuses the table.
    #[must_use]
    pub const fn of_rules(footprint: &Footprint) -> Self {
        let rest = footprint.policy + footprint.loading + footprint.agent.saturating_sub(AGENT);
        Self {
            table: 0,
            copy: 0,
            rest,
        }
    }

    /// The total.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.table + self.copy + self.rest
    }

    /// Adds the copies of the state that was saved before a reboot.
    #[must_use]
    pub const fn with_saved(self, bytes: u64) -> Self {
        Self {
            copy: self.copy + bytes,
            ..self
        }
    }

    /// Checks that it fits into the remaining memory.
    ///
    /// # Errors
    ///
    /// When it does not; the error suggests a number of sources.
    pub fn check(&self, room: &Room, settings: &Settings) -> Result<(), TooLarge> {
        let Some(limit) = room
            .tightest()
            .filter(|limit| self.bytes() > limit.left_bytes)
        else {
            return Ok(());
        };
        let spec = TableSpec::from(settings);
        let with = |sources| Settings {
            shape: spec.shape(sources),
            ..*settings
        };
        // Memory in use varies by some pages.
        let left = limit.left_bytes - (limit.left_bytes / 16).min(MARGIN);
        let fits = |sources| kernel::table(&with(sources)) + self.copy + self.rest <= left;
        // A different number would require a new table.
        let sources = (self.table > 0).then(|| spec.most(fits)).flatten();
        Err(TooLarge {
            demand: *self,
            limit: limit.clone(),
            sources,
        })
    }
}

/// A policy does not fit into the remaining memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooLarge {
    demand: Demand,
    limit: Limit,
    /// The most sources with which it fits.
    sources: Option<u32>,
}

impl std::error::Error for TooLarge {}

impl fmt::Display for TooLarge {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Demand { table, copy, rest } = self.demand;
        let (more, limit) = (self.demand.bytes(), &self.limit);
        write!(
            formatter,
            "not enough memory: putting the config in effect takes {} more at its peak",
            human::size(more)
        )?;
        let mut parts = Vec::new();
        for (part, what) in [
            (table, "for the table of sources"),
            (copy, "for a copy of the one before"),
            (rest, "to load"),
        ] {
            if part > 0 {
                parts.push(format!("{} {what}", human::size(part)));
            }
        }
        let peak = limit.used_bytes.saturating_add(more);
        write!(
            formatter,
            " ({}), {} in all; {limit}: ",
            parts.join(", "),
            human::size(peak)
        )?;
        if let Some(sources) = self.sources {
            write!(formatter, "lower [agent] max_sources to {sources}, or ")?;
        }
        // Memory in use may grow until then.
        let enough = human::size(peak.next_multiple_of(64 * MIB));
        match &limit.cgroup {
            Some(_) if limit.is_of_systemd() => {
                write!(formatter, "raise MemoryMax= of the unit to {enough}")
            }
            Some(_) => write!(formatter, "raise the cgroup's limit to {enough}"),
            None => write!(formatter, "free memory on this host"),
        }
    }
}
