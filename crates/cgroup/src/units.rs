//! The interface to a service manager.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::error::GroupsError;

/// systemd's "no limit", and "not set" of a weight.
pub const INFINITY: u64 = u64::MAX;

/// A property's value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A size, a time, a count or a weight; [`INFINITY`] for none.
    Number(u64),
    /// A set of CPUs, one bit each.
    Cpus(Vec<u8>),
    /// Limits by device.
    Devices(Vec<(String, u64)>),
}

/// The properties of one unit.
pub type Properties = BTreeMap<String, Value>;

/// The requests to a service manager; tests supply one without a bus.
pub trait Units: Send {
    /// The values of the named properties.
    ///
    /// # Errors
    ///
    /// When there is no such unit, or the manager does not reply.
    fn get(&self, unit: &str, names: &[&str]) -> Result<Properties, GroupsError>;
    /// Sets properties until the next boot.
    ///
    /// # Errors
    ///
    /// When the manager refuses the request.
    fn set(&self, unit: &str, properties: &Properties) -> Result<(), GroupsError>;
    /// The files of properties that are set until the next boot, as by `systemctl set-property --runtime`: the text of
    /// each.
    fn runtime_files(&self, unit: &str, names: &[&str]) -> BTreeMap<String, String>;
    /// Removes the persistent part of [`Units::set`] for these properties, which later starts of the unit would use.
    fn forget(&self, unit: &str, names: &[&str]);
    /// Moves processes into a transient scope, which is created if it is missing.
    ///
    /// # Errors
    ///
    /// When the manager refuses the request.
    fn scope(
        &self,
        scope: &Scope<'_>,
        pids: &[u32],
        properties: &Properties,
    ) -> Result<(), GroupsError>;
    /// Moves processes into a delegated unit, or the cgroup `below` it.
    ///
    /// # Errors
    ///
    /// When the manager refuses the request.
    fn attach(&self, unit: &str, below: &str, pids: &[u32]) -> Result<(), GroupsError>;
    /// Stops a unit.
    ///
    /// # Errors
    ///
    /// When the manager refuses the request.
    fn stop(&self, unit: &str) -> Result<(), GroupsError>;
    /// The state of a service.
    ///
    /// # Errors
    ///
    /// When the manager does not reply.
    fn service(&self, unit: &str) -> Result<Service, GroupsError>;
    /// Whether a unit has neither a file nor a process, as a scope that has ended.
    ///
    /// # Errors
    ///
    /// When the manager does not reply.
    fn is_gone(&self, unit: &str) -> Result<bool, GroupsError>;
    /// The manager's default limit on processes.
    fn default_tasks(&self) -> Option<u64>;
    /// Whether the connection failed, so that another one is needed.
    fn is_broken(&self) -> bool {
        false
    }
}

/// The service manager, unless its connection has failed: each request would wait for it in vain.
pub fn reachable(units: Option<&dyn Units>) -> Option<&dyn Units> {
    units.filter(|units| !units.is_broken())
}

/// A transient scope of Weir.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'s> {
    pub name: &'s str,
    pub slice: &'s str,
    /// The unit with which it is stopped.
    pub part_of: Option<&'s str>,
}

/// The state of a service that decides whether a process may leave it.
#[derive(Clone, Debug, Default)]
pub struct Service {
    /// The process by which systemd tracks the service; 0 for none.
    pub main: u32,
    pub control: u32,
    /// Whether it has not started yet.
    pub is_starting: bool,
    /// Whether it has ended.
    pub has_ended: bool,
    /// The first bytes of the ID of its current run.
    pub invocation: String,
    /// Whether its workers outlive it (`KillMode=process` or `none`).
    pub keeps_workers: bool,
}
