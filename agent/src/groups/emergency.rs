//! What an operator does to a group when nothing else helps.

use super::Groups;
use super::error::GroupsError;
use super::tree::{Controller, Version, write};

/// What can be done to a group in an emergency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Emergency {
    /// Its processes stop where they are.
    Freeze,
    /// They go on.
    Thaw,
    /// They are killed.
    Kill,
}

impl Groups {
    /// Freezes, thaws or kills a group.
    ///
    /// # Errors
    ///
    /// When there is no such group, or the kernel refuses.
    pub fn emergency(&self, group: &str, what: Emergency) -> Result<(), GroupsError> {
        if !self.members.iter().any(|member| member.group.name == group) {
            let names: Vec<&str> = self.members.iter().map(|member| member.group.name.as_str()).collect();
            let present = if names.is_empty() { "is none".to_owned() } else { format!("is {}", names.join(", ")) };
            return Err(GroupsError::NoGroup { name: group.to_owned(), present });
        }
        let unified = self.tree.unified(group);
        let freezer = self.tree.directory(group, Controller::Freezer);
        match (what, unified, freezer) {
            (Emergency::Kill, Some(directory), _) if directory.join("cgroup.kill").exists() => {
                write(&directory.join("cgroup.kill"), "1")
            }
            (Emergency::Kill, _, _) => {
                self.kill_each(group);
                Ok(())
            }
            (Emergency::Freeze, Some(directory), _) => write(&directory.join("cgroup.freeze"), "1"),
            (Emergency::Thaw, Some(directory), _) => write(&directory.join("cgroup.freeze"), "0"),
            (Emergency::Freeze, None, Some((Version::V1, directory))) => {
                write(&directory.join("freezer.state"), "FROZEN")
            }
            (Emergency::Thaw, None, Some((Version::V1, directory))) => {
                write(&directory.join("freezer.state"), "THAWED")
            }
            (_, None, _) => Err(GroupsError::NoController { controller: "freezer", what: "freeze" }),
        }
    }

    /// Before Linux 5.14 there is no cgroup.kill: until nobody is left, or forks outrun the agent.
    fn kill_each(&self, group: &str) {
        for _ in 0..100 {
            let pids = self.pids(group);
            if pids.is_empty() {
                return;
            }
            for pid in pids {
                // Gone already is as good as killed.
                let _ = nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(pid.cast_signed()),
                    nix::sys::signal::Signal::SIGKILL,
                );
            }
        }
    }
}
