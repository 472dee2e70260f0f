//! A validated limits.toml.

use super::{
    AgentConfig, BanList, Class, Cluster, CrowdSec, Decide, Geo, Limit, Multiplier, Notify, Service,
};
use crate::escalate::Escalate;
use crate::group::Group;

/// A validated limits.toml.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub agent: AgentConfig,
    /// `[geo]`.
    pub geo: Geo,
    /// `[[class]]`, in the file's order.
    pub classes: Vec<Class>,
    /// `[[ban_list]]`, in the file's order.
    pub ban_lists: Vec<BanList>,
    /// `[[limit]]` on packets, in the file's order.
    pub limits: Vec<Limit>,
    /// `[decide]`, with the limits on requests.
    pub decide: Decide,
    /// `[[group]]`, in the file's order: a process belongs to the first that matches.
    pub groups: Vec<Group>,
    /// `[cluster]`, if a limit has `cluster`.
    pub cluster: Option<Cluster>,
    /// `[[notify]]`, in the file's order.
    pub notify: Vec<Notify>,
    /// `[crowdsec]`.
    pub crowdsec: Option<CrowdSec>,
}

impl Config {
    /// The limits on packets that ban sources, by their indexes.
    pub fn bans(&self) -> impl Iterator<Item = (usize, Escalate)> + '_ {
        let limits = self.limits.iter().enumerate();
        let refusing = limits.filter(|(_, limit)| limit.refuses());
        refusing.filter_map(|(nth, limit)| Some((nth, limit.escalate?)))
    }

    /// The distinct multipliers of the classes; the first is 1, that of the default class.
    #[must_use]
    pub fn multipliers(&self) -> Vec<Multiplier> {
        let mut multipliers = vec![Multiplier::ONE];
        for class in &self.classes {
            if let Service::Multiplier(multiplier) = class.service()
                && !multipliers.contains(&multiplier)
            {
                multipliers.push(multiplier);
            }
        }
        multipliers
    }
}
