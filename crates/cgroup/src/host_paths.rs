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

    /// Whether this process may see the programs of other users' processes.
    pub fn shows_programs(&self) -> bool {
        const CAP_SYS_PTRACE: u64 = 1 << 19;
        let status = std::fs::read_to_string(self.proc.join("self/status")).unwrap_or_default();
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let effective = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
        effective.is_none_or(|bits| bits & CAP_SYS_PTRACE != 0)
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

#[cfg(test)]
mod tests {
    use std::fs;

    use config::parse;

    use super::*;

    #[test]
    fn programs_are_hidden_without_the_capability() {
        let proc = tempfile::tempdir().unwrap();
        let text = "[[group]]\nname = \"a\"\npid = 7\n";
        let config = parse(Path::new("limits.toml"), text).unwrap().config;
        let mut host = Host::this(&config.agent);
        host.proc = proc.path().to_owned();
        fs::create_dir(proc.path().join("self")).unwrap();
        for (capabilities, expected) in [("000001ffffffffff", true), ("000000c000001000", false)] {
            let status = format!("Name:\ta\nCapEff:\t{capabilities}\nCapBnd:\t000001ffffffffff\n");
            fs::write(proc.path().join("self/status"), status).unwrap();
            assert_eq!(host.shows_programs(), expected, "{capabilities}");
        }
    }
}
