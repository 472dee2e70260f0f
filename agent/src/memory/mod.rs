//! What a policy takes in memory, known before anything is loaded: at rest, and at the peak of a change.
//!
//! A change has the old policy and the new one in the kernel side by side. Where the new one cannot go on with the old
//! one's table, as with any change of a limit, there are two tables as well, and the agent's copy of the states in use.

mod check;
mod kernel;
mod room;

pub use check::MemoryCheck;
pub use kernel::PAGE;
pub use room::{Limit, Room};

use std::fmt;

use common::settings::Settings;
use serde::{Deserialize, Serialize};

use crate::compile::{Plan, TableSpec};
use crate::config::policy::Config;
use crate::human;

const MIB: u64 = 1 << 20;

/// The agent itself, with the smallest config: its heap, stacks and page tables.
const AGENT: u64 = 10 * MIB;
/// The agent's memory for each limit, and for each prefix.
const PER_LIMIT: u64 = 4096;
const PER_PREFIX: u64 = 512;
/// While a policy is loaded: the object with its type information.
const LOADING: u64 = 20 * MIB;
/// … and what the kernel's verifier takes for each rule that a packet can be held to.
const VERIFYING: u64 = 4 * MIB;
/// While a config is read and compiled, so many times what it takes later on top of that.
const COMPILING: u64 = 1;

/// For how long a policy is put in effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// Until another one is.
    Indefinite,
    /// On trial: rolling back must not take more than is left.
    Trial,
}

/// What is left free, at most, with the number of sources that a refusal names.
const MARGIN: u64 = 16 * MIB;

/// What a policy takes at rest, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Footprint {
    /// The table of sources, with the rings of logs and what else goes with it.
    pub table: u64,
    /// Programs, rules, prefixes and counters of both directions.
    pub policy: u64,
    /// The agent's own memory.
    pub agent: u64,
    /// The most that a copy of what is in use of the table takes, while another one takes its place.
    pub copy: u64,
    /// What loading takes on top, until it is done.
    pub loading: u64,
}

impl Footprint {
    /// Of a policy on this host, which has so many CPUs.
    #[must_use]
    pub fn of(config: &Config, plan: &Plan, cpus: u64) -> Self {
        let prefixes = config.classes.iter().map(|class| class.sources.len()).sum::<usize>() as u64;
        let own =
            config.limits.len() as u64 * PER_LIMIT + (prefixes + config.agent.never_limit.len() as u64) * PER_PREFIX;
        let images = || std::iter::once(&plan.ingress).chain(&plan.egress);
        let most_rules = images().map(|image| u64::from(image.settings.most_rules)).max().unwrap_or(0);
        Self {
            table: kernel::table(&plan.ingress.settings),
            policy: images().map(|image| kernel::policy(image, cpus)).sum(),
            agent: AGENT + own,
            copy: copy(&plan.ingress.settings),
            loading: LOADING + VERIFYING * most_rules + COMPILING * own,
        }
    }

    /// The same for the CPUs of this host.
    #[must_use]
    pub fn of_this_host(config: &Config, plan: &Plan) -> Self {
        Self::of(config, plan, aya::util::nr_cpus().map_or(1, |cpus| cpus as u64))
    }

    /// In the kernel: what `bpftool map show` and `/proc/PID/fdinfo` add up to, but for bans.
    #[must_use]
    pub const fn kernel(&self) -> u64 {
        self.table + self.policy
    }

    /// In all.
    #[must_use]
    pub const fn at_rest(&self) -> u64 {
        self.kernel() + self.agent
    }

    /// At the peak of a start on a host that has nothing of Weir's.
    #[must_use]
    pub const fn start(&self) -> u64 {
        self.at_rest() + self.loading
    }

    /// At the peak of a reload from a policy of the same size whose table it cannot go on with.
    #[must_use]
    pub fn reload(&self) -> u64 {
        self.at_rest() + self.change(Some(self.copy), Lasting::Indefinite).bytes()
    }

    /// What a change to this policy takes on top of what is in use. `copy` is that of the policy before if its table is
    /// replaced.
    #[must_use]
    pub fn change(&self, copy: Option<u64>, lasting: Lasting) -> Demand {
        // To roll back, there are both tables again, and what is copied is the new one's.
        let back = if lasting == Lasting::Trial { self.copy } else { 0 };
        Demand { table: self.table, copy: copy.map_or(0, |copy| copy.max(back)), rest: self.rest() }
    }

    /// What a change to this policy takes that goes on with the table in use.
    #[must_use]
    pub const fn change_of_rules(&self) -> Demand {
        Demand { table: 0, copy: 0, rest: self.rest() }
    }

    const fn rest(&self) -> u64 {
        self.policy + self.loading + self.agent.saturating_sub(AGENT)
    }
}

/// The most that a copy of what is in use of a table takes.
#[must_use]
pub fn copy(table: &Settings) -> u64 {
    let words = u64::from(table.shape.slot_words + table.ring_words);
    (table.shape.capacity() * words * 8).next_multiple_of(PAGE)
}

/// What a change takes on top of what is in use, at its peak, in bytes.
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
    /// In all.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.table + self.copy + self.rest
    }

    /// With copies of what was saved before a reboot.
    #[must_use]
    pub const fn with_saved(self, bytes: u64) -> Self {
        Self { copy: self.copy + bytes, ..self }
    }

    /// Checks that it fits into what is left.
    ///
    /// # Errors
    ///
    /// When it does not, with the number of sources for which it would.
    pub fn check(&self, room: &Room, settings: &Settings) -> Result<(), TooLarge> {
        let Some(limit) = room.tightest().filter(|limit| self.bytes() > limit.left_bytes) else { return Ok(()) };
        let spec = TableSpec::from(settings);
        let with = |sources| Settings { shape: spec.shape(sources), ..*settings };
        // What is in use moves up and down by some pages.
        let left = limit.left_bytes - (limit.left_bytes / 16).min(MARGIN);
        let fits = |sources| kernel::table(&with(sources)) + self.copy + self.rest <= left;
        // Whoever goes on with a table would have to make a new one for another number.
        let sources = (self.table > 0).then(|| spec.most(fits)).flatten();
        Err(TooLarge { demand: *self, limit: limit.clone(), sources })
    }
}

/// A policy does not fit into what is left of the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooLarge {
    demand: Demand,
    limit: Limit,
    /// The most sources with which it would fit.
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
        for (part, what) in
            [(table, "for the table of sources"), (copy, "for a copy of the one before"), (rest, "to load")]
        {
            if part > 0 {
                parts.push(format!("{} {what}", human::size(part)));
            }
        }
        let peak = limit.used_bytes.saturating_add(more);
        write!(formatter, " ({}), {} in all; {limit}: ", parts.join(", "), human::size(peak))?;
        if let Some(sources) = self.sources {
            write!(formatter, "lower [agent] max_sources to {sources}, or ")?;
        }
        // What is in use may grow until then.
        let enough = human::size(peak.next_multiple_of(64 * MIB));
        match &limit.cgroup {
            Some(_) if limit.is_of_systemd() => write!(formatter, "raise MemoryMax= of the unit to {enough}"),
            Some(_) => write!(formatter, "raise the cgroup's limit to {enough}"),
            None => write!(formatter, "free memory on this host"),
        }
    }
}

/// What the agent reports of its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// What the policy in effect takes, in bytes.
    pub in_effect: Footprint,
    /// Of the limits on the agent's memory, the one that leaves the least; `null` where none can be read.
    pub limit: Option<Limit>,
}

/// Has the allocator hand freed memory back at once. It would otherwise keep, for each thread, as much as the largest
/// block that was ever freed: loading a policy takes some 16 MiB for a moment.
pub fn keep_little() {
    #[cfg(target_env = "gnu")]
    for (parameter, bytes) in [(libc::M_MMAP_THRESHOLD, 128 << 10), (libc::M_TRIM_THRESHOLD, 256 << 10)] {
        // SAFETY: the allocator's own function, called before there are other threads.
        unsafe { libc::mallopt(parameter, bytes) };
    }
}

/// Hands freed memory back to the system: reading a config and loading a policy take many times what stays.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the allocator's own function, which takes its locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
