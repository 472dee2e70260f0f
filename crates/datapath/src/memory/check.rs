//! The memory of a config, for `weir check`.

use std::fmt;

use api::memory::{Limit, MemoryStatus};
use config::human;
use config::policy::Config;
use serde::Serialize;

use super::demand::{Demand, Lasting};
use super::footprint::footprint;
use super::room::Room;
use crate::compile::Plan;

/// `memory` of `weir check --json`.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryCheck {
    /// The table's capacity in sources.
    pub max_sources: u32,
    /// The kernel memory of the policy at rest; bans and keys of requests add to it.
    pub kernel_bytes: u64,
    /// The same with the agent's memory.
    pub at_rest_bytes: u64,
    /// The peak of a start without pinned state.
    pub start_bytes: u64,
    /// The peak of a reload that replaces a table of the same size.
    pub peak_bytes: u64,
    /// The peak of additional memory: of the running agent's reload, or of a start.
    pub needs_bytes: u64,
    /// The tightest limit of the running agent, or else of weir.service and the host.
    pub limit: Option<Limit>,
    /// Whether `limit` is that of a running agent.
    pub of_running_agent: bool,
    /// Why the agent would reject the config; `null` if it would not.
    pub refused: Option<String>,
}

impl MemoryCheck {
    /// Checks a config; `running` is the status of the agent on the config's control socket.
    #[must_use]
    pub fn of(config: &Config, plan: &Plan, running: Option<&MemoryStatus>) -> Self {
        let footprint = footprint(config, plan);
        let settings = &plan.ingress.settings;
        let room = match running {
            Some(running) => Room {
                limits: running.limit.iter().cloned().collect(),
                ..Room::default()
            },
            None => Room::of_service(),
        };
        let before = running.map(|running| running.in_effect.copy);
        let demand = Demand::of_table(&footprint, before, Lasting::Indefinite);
        let reload = Demand::of_table(&footprint, Some(footprint.copy), Lasting::Indefinite);
        Self {
            max_sources: plan.ingress.max_sources,
            kernel_bytes: footprint.kernel(),
            at_rest_bytes: footprint.at_rest(),
            start_bytes: footprint.start(),
            peak_bytes: footprint.at_rest() + reload.bytes(),
            needs_bytes: demand.bytes(),
            limit: room.tightest().cloned(),
            of_running_agent: running.is_some(),
            refused: demand
                .check(&room, settings)
                .err()
                .map(|error| error.to_string()),
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
