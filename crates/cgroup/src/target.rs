//! The cgroups on which a group's limits are set.

use super::account::MemberStatus;
use super::place::managed_unit;

/// The kind of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Unit,
    Container,
    Cgroup,
    Scope,
}

/// A cgroup that has a group's limits.
#[derive(Clone, Debug)]
pub struct Target {
    pub group: usize,
    pub kind: Kind,
    pub name: String,
    /// The unit or the cgroup's path: its key in [`super::in_place::InPlace`].
    pub key: String,
    /// The cgroup's inode, which changes when it is created again; 0 if no limit could be set yet.
    pub inode: u64,
    /// Whether it appeared while its group was in effect, so that its whole usage is the group's.
    pub is_new: bool,
    /// Whether the group's network programs are attached. They share one budget, which no user may use up.
    pub has_network: bool,
    /// The error of attaching them.
    pub network_problem: Option<String>,
    /// Limits that are not enforced.
    pub problems: Vec<String>,
}

impl Target {
    /// Whether its limits are set through systemd.
    pub fn is_of_systemd(&self) -> bool {
        self.kind == Kind::Scope || managed_unit(&self.key).is_some() || !self.key.starts_with('/')
    }

    /// The element of `weir groups`.
    pub fn status(&self, path: &str) -> MemberStatus {
        let (kind, how) = match (self.kind, self.is_of_systemd()) {
            (Kind::Unit, _) => ("unit", "in place: its properties are set through systemd"),
            (Kind::Container, true) => (
                "container",
                "in place: the properties of its scope are set through systemd",
            ),
            (Kind::Container, false) => ("container", "in place: limits are set on its cgroup"),
            (Kind::Cgroup, _) => ("cgroup", "in place: limits are set on the cgroup"),
            (Kind::Scope, _) => (
                "scope",
                "its processes are moved into a scope in their slice",
            ),
        };
        MemberStatus {
            kind: kind.to_owned(),
            name: self.name.clone(),
            cgroup: path.to_owned(),
            processes: 0,
            how: how.to_owned(),
            problems: self
                .problems
                .iter()
                .chain(&self.network_problem)
                .cloned()
                .collect(),
        }
    }
}

/// The name of a link in bpffs for a cgroup: names there have no dots.
pub fn link_tag(inode: u64) -> String {
    format!("-{inode}")
}
