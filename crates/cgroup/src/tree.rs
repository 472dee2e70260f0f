//! The cgroup hierarchies: each controller's hierarchy, version 1 or 2, and Weir's parent there.
//!
//! Plain files instead of cgroups-rs: 0.5.1 treats a host as either v1 or v2, and looks for v2 only at /sys/fs/cgroup.
//! So it misses the v2 half of a hybrid host, to which cgroup_skb programs attach, and a tree that a test supplies.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::error::GroupsError;
use super::place::prefixes;

/// A controller of one kind of resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Controller {
    /// CPU time; in v2 it counts as well.
    Cpu,
    /// Counts CPU time in v1.
    CpuAccounting,
    /// Memory and swap.
    Memory,
    Io,
    /// Processes and threads.
    Pids,
    /// The usable CPUs.
    Cpuset,
    /// Freezes in v1; in v2 every cgroup can.
    Freezer,
}

impl Controller {
    const ALL: [Self; 7] = [
        Self::Cpu,
        Self::CpuAccounting,
        Self::Memory,
        Self::Io,
        Self::Pids,
        Self::Cpuset,
        Self::Freezer,
    ];

    /// The name in v1.
    #[must_use]
    pub const fn name_v1(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::CpuAccounting => "cpuacct",
            Self::Memory => "memory",
            Self::Io => "blkio",
            Self::Pids => "pids",
            Self::Cpuset => "cpuset",
            Self::Freezer => "freezer",
        }
    }

    /// The name in v2, if it is a controller there.
    #[must_use]
    pub const fn name_v2(self) -> Option<&'static str> {
        match self {
            Self::Cpu => Some("cpu"),
            Self::Memory => Some("memory"),
            Self::Io => Some("io"),
            Self::Pids => Some("pids"),
            Self::Cpuset => Some("cpuset"),
            Self::CpuAccounting | Self::Freezer => None,
        }
    }
}

/// The version of a controller's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

/// The hierarchies of a host, and the parent of Weir's groups in each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    unified: Option<PathBuf>,
    v1: BTreeMap<Controller, PathBuf>,
    v2: BTreeSet<Controller>,
    parent: String,
}

impl Tree {
    /// Finds the hierarchies in `proc`/self/mountinfo. Groups are created below `parent`.
    ///
    /// # Errors
    ///
    /// When the host has no cgroup hierarchy.
    pub fn detect(proc: &Path, parent: &str) -> Result<Self, GroupsError> {
        let path = proc.join("self/mountinfo");
        let mounts = host::mounts(&path).map_err(|source| GroupsError::read(&path, source))?;
        let mut tree = Self {
            unified: None,
            v1: BTreeMap::new(),
            v2: BTreeSet::new(),
            parent: parent.to_owned(),
        };
        for mount in mounts {
            match mount.kind.as_str() {
                "cgroup2" if tree.unified.is_none() => tree.unified = Some(mount.point),
                "cgroup" => {
                    for controller in Controller::ALL {
                        if mount.has_option(controller.name_v1()) {
                            tree.v1
                                .entry(controller)
                                .or_insert_with(|| mount.point.clone());
                        }
                    }
                }
                _ => {}
            }
        }
        if let Some(root) = &tree.unified {
            let path = root.join("cgroup.controllers");
            let names =
                fs::read_to_string(&path).map_err(|source| GroupsError::read(&path, source))?;
            let has = |controller: &Controller| {
                controller
                    .name_v2()
                    .is_some_and(|name| names.split_whitespace().any(|present| present == name))
            };
            tree.v2 = Controller::ALL.into_iter().filter(has).collect();
        }
        if tree.unified.is_none() && tree.v1.is_empty() {
            return Err(GroupsError::NotMounted);
        }
        Ok(tree)
    }

    /// The parent of the groups, relative to the root of each hierarchy.
    #[must_use]
    pub fn parent(&self) -> &str {
        &self.parent
    }

    /// The version of a controller on this host; `None` if it is not available.
    #[must_use]
    pub fn version(&self, controller: Controller) -> Option<Version> {
        if self.v1.contains_key(&controller) {
            Some(Version::V1)
        } else {
            self.v2.contains(&controller).then_some(Version::V2)
        }
    }

    /// The path of a group's own cgroup.
    #[must_use]
    pub fn own(&self, group: &str) -> String {
        format!("/{}/{group}", self.parent)
    }

    /// The directory of the cgroup at `path` with a controller's files.
    #[must_use]
    pub fn directory(&self, path: &str, controller: Controller) -> Option<(Version, PathBuf)> {
        let version = self.version(controller)?;
        let root = match version {
            Version::V1 => self.v1.get(&controller)?,
            Version::V2 => self.unified.as_ref()?,
        };
        Some((version, below(root, path)))
    }

    /// The directory of the cgroup at `path` in the unified hierarchy, if there is one.
    #[must_use]
    pub fn unified(&self, path: &str) -> Option<PathBuf> {
        Some(below(self.unified.as_ref()?, path))
    }

    /// Whether all controllers are in the unified hierarchy.
    #[must_use]
    pub fn is_unified(&self) -> bool {
        self.unified.is_some() && self.v1.is_empty()
    }

    /// The directories of the cgroup at `path` in all hierarchies.
    #[must_use]
    pub fn directories(&self, path: &str) -> Vec<PathBuf> {
        let all = self
            .roots(Cpuset::Wanted)
            .into_iter()
            .map(|root| below(root, path));
        all.filter(|directory| directory.is_dir()).collect()
    }

    /// The inode of the cgroup at `path` in the first hierarchy that has it.
    #[must_use]
    pub fn inode(&self, path: &str) -> Option<u64> {
        let mut roots = self.roots(Cpuset::Wanted).into_iter();
        roots.find_map(|root| {
            let found = fs::metadata(below(root, path)).ok()?;
            found.is_dir().then(|| found.ino())
        })
    }

    /// The roots of a group's hierarchies. A v1 cpuset takes no processes before it has CPUs, so that only groups with
    /// `cpus` use it.
    #[must_use]
    pub fn roots(&self, cpuset: Cpuset) -> Vec<&Path> {
        let mut roots: Vec<&Path> = self.unified.iter().map(PathBuf::as_path).collect();
        for (controller, root) in &self.v1 {
            let is_wanted = *controller != Controller::Cpuset || cpuset == Cpuset::Wanted;
            if is_wanted && !roots.contains(&root.as_path()) {
                roots.push(root);
            }
        }
        roots
    }

    /// Creates a group's directories, and enables the controllers that it needs. Returns the failures: the other
    /// controllers are still enabled.
    #[must_use]
    pub fn make(&self, group: &str, needed: &BTreeSet<Controller>) -> Vec<GroupsError> {
        let cpuset = if needed.contains(&Controller::Cpuset) {
            Cpuset::Wanted
        } else {
            Cpuset::Any
        };
        let mut problems = Vec::new();
        for root in self.roots(cpuset) {
            if let Err(problem) = self.make_below(root, group, needed, &mut problems) {
                problems.push(problem);
            }
        }
        problems
    }

    fn make_below(
        &self,
        root: &Path,
        group: &str,
        needed: &BTreeSet<Controller>,
        problems: &mut Vec<GroupsError>,
    ) -> Result<(), GroupsError> {
        let parent = root.join(&self.parent);
        fs::create_dir_all(&parent).map_err(|source| GroupsError::Make {
            path: parent.clone(),
            source,
        })?;
        let has_cpuset = self.v1.get(&Controller::Cpuset).map(PathBuf::as_path) == Some(root);
        if self.unified.as_deref() == Some(root) {
            problems.extend(self.enable(&format!("/{}/{group}", self.parent), needed));
        }
        if has_cpuset {
            inherit_cpuset(root, &parent)?;
        }
        let path = parent.join(group);
        match fs::create_dir(&path) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                return Err(GroupsError::Make { path, source });
            }
            _ => {}
        }
        if has_cpuset {
            inherit_cpuset(&parent, &path)
        } else {
            Ok(())
        }
    }

    /// Enables controllers of the unified hierarchy for the cgroup at `path`, in cgroup.subtree_control of each cgroup
    /// above it. Only missing ones: every controller costs all processes of the host some time.
    #[must_use]
    pub fn enable(&self, path: &str, needed: &BTreeSet<Controller>) -> Vec<GroupsError> {
        let Some(root) = &self.unified else {
            return Vec::new();
        };
        let above = std::iter::once("").chain(prefixes(path).filter(|prefix| *prefix != path));
        let above: Vec<PathBuf> = above
            .map(|prefix| below(root, prefix).join("cgroup.subtree_control"))
            .collect();
        let mut problems = Vec::new();
        for name in needed
            .intersection(&self.v2)
            .filter_map(|controller| controller.name_v2())
        {
            let enabled = above.iter().try_for_each(|path| {
                let present =
                    fs::read_to_string(path).map_err(|source| GroupsError::read(path, source))?;
                let is_there = present.split_whitespace().any(|enabled| enabled == name);
                if is_there {
                    Ok(())
                } else {
                    write(path, &format!("+{name}"))
                }
            });
            problems.extend(enabled.err());
        }
        problems
    }

    /// Removes a group's directories; missing ones are no error.
    ///
    /// # Errors
    ///
    /// When a directory is in use.
    pub fn remove(&self, group: &str) -> Result<(), GroupsError> {
        for root in self.roots(Cpuset::Wanted) {
            remove(&root.join(&self.parent).join(group))?;
        }
        Ok(())
    }

    /// Removes the parent if it is empty.
    pub fn remove_parent(&self) {
        for root in self.roots(Cpuset::Wanted) {
            // Fails if groups of an earlier config are still there.
            let _ = fs::remove_dir(root.join(&self.parent));
        }
    }

    /// Whether /proc/PID/cgroup lists the hierarchy at `root` with these controllers.
    #[must_use]
    pub fn is_hierarchy(&self, root: &Path, controllers: &str) -> bool {
        if controllers.is_empty() {
            return self.unified.as_deref() == Some(root);
        }
        let has = |controller: &Controller| {
            controllers
                .split(',')
                .any(|name| name == controller.name_v1())
        };
        self.v1
            .iter()
            .any(|(controller, own)| own == root && has(controller))
    }

    /// The group that contains the cgroup at `path`, relative to the root of its hierarchy.
    #[must_use]
    pub fn group_of<'p>(&self, path: &'p str) -> Option<&'p str> {
        let below = path
            .strip_prefix('/')?
            .strip_prefix(self.parent.as_str())?
            .strip_prefix('/')?;
        below.split('/').next()
    }

    /// The processes in the cgroup at `path` and below it, in any hierarchy.
    #[must_use]
    pub fn pids(&self, path: &str) -> BTreeSet<u32> {
        let mut pids = BTreeSet::new();
        let mut folders: Vec<PathBuf> = self
            .roots(Cpuset::Any)
            .into_iter()
            .map(|root| below(root, path))
            .collect();
        while let Some(folder) = folders.pop() {
            let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            pids.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
            folders.extend(children(&folder));
        }
        pids
    }

    /// Whether the cgroup at `path` may contain processes. cgroup v1 does not report it.
    #[must_use]
    pub fn is_populated(&self, path: &str) -> bool {
        let is_empty = |directory: &PathBuf| {
            let events = fs::read_to_string(directory.join("cgroup.events"));
            events.is_ok_and(|events| events.lines().any(|line| line == "populated 0"))
        };
        !self.directories(path).iter().all(is_empty)
    }

    /// The paths of all cgroups, in any hierarchy.
    #[must_use]
    pub fn paths(&self) -> BTreeSet<String> {
        let mut paths = BTreeSet::new();
        for root in self.roots(Cpuset::Wanted) {
            let mut folders = children(root);
            while let Some(folder) = folders.pop() {
                folders.extend(children(&folder));
                let path = folder.strip_prefix(root).ok().and_then(Path::to_str);
                paths.extend(path.map(|path| format!("/{path}")));
            }
        }
        paths
    }

    /// The existing groups, of this config or an earlier one.
    #[must_use]
    pub fn present(&self) -> BTreeSet<String> {
        let parents = self
            .roots(Cpuset::Wanted)
            .into_iter()
            .map(|root| root.join(&self.parent));
        let entries = parents
            .filter_map(|parent| fs::read_dir(parent).ok())
            .flatten()
            .flatten();
        entries
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }
}

/// The directory of the cgroup at `path` below a hierarchy's root.
fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn children(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// Whether a group has `cpus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cpuset {
    Wanted,
    Any,
}

/// Writes a value to a cgroup's file in one call, as the kernel requires.
pub(super) fn write(path: &Path, value: &str) -> Result<(), GroupsError> {
    let written = fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(path)
        .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()));
    written.map_err(|source| GroupsError::write(path, value, source))
}

/// A new v1 cpuset has no CPUs and memory nodes, and takes no process before it has both.
fn inherit_cpuset(from: &Path, to: &Path) -> Result<(), GroupsError> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let (from, to) = (from.join(file), to.join(file));
        let own = fs::read_to_string(&to).map_err(|source| GroupsError::read(&to, source))?;
        if own.trim().is_empty() {
            let all =
                fs::read_to_string(&from).map_err(|source| GroupsError::read(&from, source))?;
            write(&to, all.trim())?;
        }
    }
    Ok(())
}

fn remove(path: &Path) -> Result<(), GroupsError> {
    // After its last process has ended, a cgroup stays busy for a moment.
    let mut tries = 50;
    loop {
        match fs::remove_dir(path) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && tries > 0 => {
                tries -= 1;
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(GroupsError::Remove {
                    path: path.to_owned(),
                    source,
                });
            }
            _ => return Ok(()),
        }
    }
}
