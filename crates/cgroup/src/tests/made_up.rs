//! A fake host.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use config::parse;

use super::services::Noted;
use crate::error::GroupsError;
use crate::groups::Groups;
use crate::host_paths::Host;
use crate::place::Manager;
use crate::tree::Tree;

/// A fake host.
pub struct MadeUp {
    folder: tempfile::TempDir,
}

impl MadeUp {
    pub fn new(mounts: &[(&str, &str, &str)]) -> Self {
        let made_up = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        let mut table = "25 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n".to_owned();
        for (kind, point, options) in mounts {
            let root = made_up.path(point);
            fs::create_dir_all(&root).unwrap();
            table.push_str(&format!(
                "30 25 0:26 / {} rw shared:9 - {kind} {kind} {options}\n",
                root.display()
            ));
        }
        made_up.file("proc/self/mountinfo", &table);
        made_up
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    pub fn file(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn text(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    pub fn host(&self) -> Host {
        Host {
            proc: self.path("proc"),
            sys: self.path("sys"),
            pins: self.path("pins"),
            origins: self.path("origins.json"),
            locks: self.path("locks"),
            containers: vec![self.path("docker.sock")],
            manager: Manager::None,
        }
    }

    /// Adds a process with this command in these cgroups.
    pub fn process(&self, pid: u32, command: &str, cgroup: &str) {
        let folder = format!("proc/{pid}");
        self.file(&format!("{folder}/cmdline"), &command.replace(' ', "\0"));
        self.file(&format!("{folder}/cgroup"), cgroup);
        self.file(
            &format!("{folder}/stat"),
            &format!("{pid} (x) S 1 {}500 0\n", "0 ".repeat(17)),
        );
        std::os::unix::fs::symlink("/bin/sh", self.path(&folder).join("exe")).unwrap();
    }

    pub fn start(&self, text: &str) -> Result<Groups, GroupsError> {
        Groups::start(
            &parse(Path::new("limits.toml"), text).unwrap().config,
            self.host(),
            None,
        )
    }

    /// Starts with a service manager that records its requests.
    pub fn start_with(&self, text: &str, units: &Arc<Noted>) -> Groups {
        let config = parse(Path::new("limits.toml"), text).unwrap().config;
        let host = Host {
            manager: Manager::Systemd,
            ..self.host()
        };
        let tree = Tree::detect(&host.proc, &config.agent.cgroup).unwrap();
        let mut groups = Groups::new(&config.groups, config.agent.mode, host, tree);
        groups.units = Some(Box::new(Arc::clone(units)));
        groups.begin();
        groups
    }
}

/// Only the unified hierarchy, with the files that a kernel would create.
pub fn unified() -> MadeUp {
    let host = MadeUp::new(&[("cgroup2", "cg", "rw")]);
    host.file("cg/cgroup.controllers", "cpuset cpu io memory pids\n");
    host.file("cg/cgroup.subtree_control", "memory\n");
    host.file("cg/weir/cgroup.subtree_control", "\n");
    for file in [
        "cgroup.procs",
        "cpu.max",
        "cpu.weight",
        "memory.high",
        "memory.max",
        "memory.swap.max",
        "pids.max",
    ] {
        host.file(&format!("cg/weir/batch/{file}"), "");
    }
    host.file(
        "cg/weir/batch/io.max",
        "9:9 rbps=5 wbps=max riops=max wiops=max\n",
    );
    host.file("cg/weir/batch/cpuset.cpus", "");
    host
}

/// The same before Weir created anything.
pub fn untouched() -> MadeUp {
    let host = unified();
    fs::remove_dir_all(host.path("cg/weir")).unwrap();
    host
}

/// Waits until the threads of a start have replied: a busy host may run them after the start has stopped waiting.
pub fn wait_for_threads(groups: &mut Groups) {
    const STEP: Duration = Duration::from_millis(10);
    while groups.resolution.links.threads() > 0 || groups.listing.is_some() {
        groups.follow_links(STEP);
        if groups.listing.is_some() {
            groups.list_containers(STEP);
        }
    }
}

pub const BATCH: &str = "[[group]]\nname = \"batch\"\nmatch = [{ command = \"*nightly*\" }, { cgroup = \"/user.slice/*\" }]\n";
