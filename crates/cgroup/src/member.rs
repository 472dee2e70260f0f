//! One group of a config.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use config::group::{self, Group};
use config::policy::Mode;

use super::elastic::Elastic;
use super::error::GroupsError;
use super::network::{self, Network};
use super::tree::{Cpuset, Tree};

/// An enforced group.
pub struct Member {
    /// The group as configured.
    pub group: Group,
    /// The group as enforced: without limits on `observe`.
    pub held: Group,
    pub mode: Mode,
    pub elastic: Option<Elastic>,
    /// When the elastic share last changed.
    pub adjusted: Option<Instant>,
    pub throttled_seconds: f64,
    pub had_processes: bool,
    pub notes: BTreeSet<String>,
    pub network: Option<Arc<Mutex<Network>>>,
    /// Whether it has its own cgroup.
    pub has_own: bool,
}

impl Member {
    pub fn new(group: &Group, mode: Mode) -> Self {
        let elastic = group
            .cpu
            .max
            .filter(|_| group.cpu.elastic && mode == Mode::Enforce)
            .map(Elastic::new);
        Self {
            mode,
            held: if mode == Mode::Enforce {
                group.clone()
            } else {
                group.without_limits()
            },
            elastic,
            adjusted: None,
            throttled_seconds: 0.0,
            had_processes: false,
            notes: BTreeSet::new(),
            network: None,
            has_own: false,
            group: group.clone(),
        }
    }

    pub fn note(&mut self, problem: &GroupsError) {
        self.notes.insert(problem.to_string());
    }

    /// Loads the programs of its network; returns their IDs.
    pub fn load_network(&mut self, pins: &Path) -> Result<Vec<u32>, GroupsError> {
        let pins = network::pins_of(pins, &self.group.name);
        let network = match Network::load(&self.held.network, &pins) {
            // If it has no network limits, only the counters are missing.
            Err(_) if !self.limits_network() => {
                return network::release(&pins).map(|()| Vec::new());
            }
            loaded => loaded?,
        };
        let programs = network.programs();
        self.network = Some(Arc::new(Mutex::new(network)));
        Ok(programs)
    }

    /// Attaches its network programs to the cgroup at `path`.
    pub fn attach_network(&self, tree: &Tree, path: &str, tag: &str) -> Result<(), GroupsError> {
        let Some(network) = &self.network else {
            return Ok(());
        };
        let lacking = GroupsError::NoController {
            controller: "v2",
            what: "network",
        };
        let attached = tree.unified(path).ok_or(lacking).and_then(|directory| {
            // A panic elsewhere leaves the programs loaded.
            network
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .attach(&directory, tag)
        });
        if self.limits_network() {
            attached
        } else {
            Ok(())
        }
    }

    /// Whether its network is limited, not only counted.
    pub fn limits_network(&self) -> bool {
        self.held.network != group::Network::default()
    }

    pub fn cpuset(&self) -> Cpuset {
        if self.held.cpus.is_some() {
            Cpuset::Wanted
        } else {
            Cpuset::Any
        }
    }

    pub fn all_notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.notes.iter().cloned().collect();
        if self.mode == Mode::Observe {
            notes.push("mode is observe: its processes are counted, and not limited".to_owned());
        }
        if !self.had_processes {
            let matchers: Vec<String> = self
                .group
                .matchers()
                .iter()
                .map(ToString::to_string)
                .collect();
            notes.push(format!(
                "no process has matched yet ({})",
                matchers.join(", ")
            ));
        }
        notes
    }
}
