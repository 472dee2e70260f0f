//! A short-lived cache of the units and containers of matching processes.

use std::collections::HashMap;
use std::time::Instant;

use super::plan::Others;
use super::units::Service;

/// A cache of units and containers.
#[derive(Debug, Default)]
pub struct Domains {
    /// By cgroup and group.
    pub others: HashMap<(String, usize), (Others, Instant)>,
    pub services: HashMap<String, (Service, Instant)>,
}

impl Domains {
    /// The cached value, unless it is outdated.
    pub fn get(&self, cgroup: &str, group: usize) -> Option<Others> {
        let (others, until) = self.others.get(&(cgroup.to_owned(), group))?;
        (Instant::now() < *until).then_some(*others)
    }

    /// Removes outdated values.
    pub fn forget_old(&mut self) {
        let now = Instant::now();
        self.others.retain(|_, (_, until)| now < *until);
        self.services.retain(|_, (_, until)| now < *until);
    }
}
