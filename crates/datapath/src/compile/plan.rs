//! A policy's two directions.

use common::packet::Direction;
use config::policy::{Config, DEFAULT_SOURCES, Limit};

use super::direction::compile_after;
use super::error::CompileError;
use super::groups::largest;
use super::image::Image;
use super::layout::Layout;

/// The compiled policy.
#[derive(Clone, Debug)]
pub struct Plan {
    /// For ingress. Always present, since it enforces bans.
    pub ingress: Image,
    /// For egress, if a limit is on egress.
    pub egress: Option<Image>,
    /// The layout of the table whose state it reuses.
    pub after: Layout,
}

impl Plan {
    /// A note for the operator if a default is lower than documented, or a multiplier does not apply to sliding logs.
    #[must_use]
    pub fn note(&self, config: &Config) -> Option<String> {
        let sources = self.ingress.max_sources;
        let fewer = (config.agent.max_sources.is_none() && sources < DEFAULT_SOURCES).then(|| {
            format!(
                "max_sources defaults to {sources}, since sliding logs of more sources take too much memory; set [agent] \
                 max_sources to change it"
            )
        });
        let notes: Vec<String> = [fewer, self.note_on_logs(config)]
            .into_iter()
            .flatten()
            .collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }

    /// A note if a multiplier does not apply to sliding logs.
    #[must_use]
    pub fn note_on_logs(&self, config: &Config) -> Option<String> {
        let is_log = |limit: &Limit| limit.rates.algorithm.has_ring();
        let limit = config.limits.iter().find(|limit| is_log(limit))?;
        let largest = largest(&config.multipliers());
        let logs = self.ingress.logs;
        (logs != largest).then(|| {
            format!(
                "the multiplier {} counts as {} for sliding logs such as limit {:?}: larger logs of {} sources take too much memory; \
                 set a lower [agent] max_sources, or another algorithm",
                largest.factor(),
                logs.factor(),
                limit.name,
                self.ingress.max_sources
            )
        })
    }
}

/// Compiles both directions.
///
/// # Errors
///
/// As [`compile`](super::compile).
pub fn plan(config: &Config) -> Result<Plan, CompileError> {
    plan_after(config, &Layout::default())
}

/// Compiles both directions, and reuses as much state as possible of the previous policy's table.
///
/// # Errors
///
/// As [`compile`](super::compile).
pub fn plan_after(config: &Config, before: &Layout) -> Result<Plan, CompileError> {
    let has_egress = config
        .limits
        .iter()
        .any(|limit| limit.direction == Direction::Egress);
    Ok(Plan {
        ingress: compile_after(config, Direction::Ingress, before)?,
        egress: has_egress
            .then(|| compile_after(config, Direction::Egress, before))
            .transpose()?,
        after: before.clone(),
    })
}
