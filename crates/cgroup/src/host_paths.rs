//! Paths on the host.

use std::path::{Path, PathBuf};

use config::policy::AgentConfig;

use super::place::Manager;

/// The host's directories that groups use; tests supply their own.
#[derive(Clone, Debug)]
pub struct Host {
    pub proc: PathBuf,
    pub sys: PathBuf,
    /// The directory of pins, in a BPF file system.
    pub pins: PathBuf,
    /// The file with the original cgroups of moved processes.
    pub origins: PathBuf,
    /// The directory of locks that are not on cgroups.
    pub locks: PathBuf,
    /// The sockets of container runtimes.
    pub containers: Vec<PathBuf>,
    /// The manager of cgroups.
    pub manager: Manager,
}

impl Host {
    /// The paths of this host. The file of origins is beside the control socket.
    #[must_use]
    pub fn this(agent: &AgentConfig) -> Self {
        Self {
            proc: "/proc".into(),
            sys: "/sys".into(),
            pins: agent.pins.clone(),
            origins: agent.control.with_extension("origins.json"),
            locks: "/run/weir".into(),
            containers: agent.container_sockets.clone(),
            manager: if is_running() {
                Manager::Systemd
            } else {
                Manager::None
            },
        }
    }

    /// Whether an agent has recorded moved processes or limits in place.
    pub fn has_notes(&self) -> bool {
        self.origins.exists() || self.in_place().exists()
    }

    /// The file with the limits that were set in place.
    pub fn in_place(&self) -> PathBuf {
        self.origins.with_extension("limits.json")
    }
}

/// Whether systemd is this host's first process.
fn is_running() -> bool {
    Path::new("/run/systemd/system").is_dir()
}
