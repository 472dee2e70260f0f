//! What `agent check` reports of a config's memory.

use std::fmt;

use serde::Serialize;

use super::{Footprint, Lasting, Limit, MemoryStatus, Room};
use crate::compile::Plan;
use crate::config::policy::Config;
use crate::human;

/// `memory` of `agent check --json`.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryCheck {
    /// How many sources the table is made for.
    pub max_sources: u32,
    /// What the kernel takes for the policy at rest; bans and keys of requests take more as they come.
    pub kernel_bytes: u64,
    /// The same with the agent's own memory.
    pub at_rest_bytes: u64,
    /// At the peak of a start where nothing of Weir's is in the kernel.
    pub start_bytes: u64,
    /// At the peak of a reload that replaces a table of the same size.
    pub peak_bytes: u64,
    /// What an agent needs on top of what is in use, at the peak: the one that runs, or one that starts.
    pub needs_bytes: u64,
    /// Of a running agent, or else of the host, the limit that leaves the least.
    pub limit: Option<Limit>,
    /// Whether an agent's limit is meant, and not that of a start.
    pub of_running_agent: bool,
    /// Why the agent would refuse the config; `null` if it would not.
    pub refused: Option<String>,
}

impl MemoryCheck {
    /// Of a config; `running` is what an agent on the config's control socket reports.
    #[must_use]
    pub fn of(config: &Config, plan: &Plan, running: Option<&MemoryStatus>) -> Self {
        let footprint = Footprint::of_this_host(config, plan);
        let settings = &plan.ingress.settings;
        let room = match running {
            Some(running) => Room { limits: running.limit.iter().cloned().collect(), ..Room::default() },
            None => Room::of_host(),
        };
        let before = running.map(|running| running.in_effect.copy);
        let demand = footprint.change(before, Lasting::Indefinite);
        Self {
            max_sources: plan.ingress.max_sources,
            kernel_bytes: footprint.kernel(),
            at_rest_bytes: footprint.at_rest(),
            start_bytes: footprint.start(),
            peak_bytes: footprint.reload(),
            needs_bytes: demand.bytes(),
            limit: room.tightest().cloned(),
            of_running_agent: running.is_some(),
            refused: demand.check(&room, settings).err().map(|error| error.to_string()),
        }
    }
}

impl fmt::Display for MemoryCheck {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "memory: {} at rest, {} while it starts, {} at the peak of a reload that replaces a table of the same size",
            human::size(self.at_rest_bytes),
            human::size(self.start_bytes),
            human::size(self.peak_bytes)
        )?;
        match (&self.limit, self.of_running_agent) {
            (Some(limit), true) => write!(formatter, "; of the running agent, {limit}"),
            (Some(limit), false) => write!(formatter, "; no agent is running, {limit}"),
            (None, _) => Ok(()),
        }
    }
}
