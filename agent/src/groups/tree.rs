//! Where cgroups are: each controller in the hierarchy that really has it, version 1 or 2, and Weir's own parent there.
//!
//! Written on plain files rather than on cgroups-rs: 0.5.1 takes a host as wholly v1 or wholly v2, looks for v2 at
//! /sys/fs/cgroup only, and so sees neither the v2 half of a hybrid host, to which cgroup_skb programs attach, nor a tree
//! that a test supplies.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::GroupsError;

/// What holds or counts one kind of resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Controller {
    /// CPU time; under v2 it counts, too.
    Cpu,
    /// Counts CPU time under v1.
    CpuAccounting,
    /// Memory and swap.
    Memory,
    /// Disks.
    Io,
    /// Processes and threads.
    Pids,
    /// Which CPUs.
    Cpuset,
    /// Freezes under v1; under v2 every cgroup can.
    Freezer,
}

impl Controller {
    const ALL: [Self; 7] =
        [Self::Cpu, Self::CpuAccounting, Self::Memory, Self::Io, Self::Pids, Self::Cpuset, Self::Freezer];

    /// What v1 calls it.
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

    /// What v2 calls it, if it is a controller there.
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

/// Which interface a controller has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A hierarchy of its own.
    V1,
    /// The unified hierarchy.
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

/// The unit that is shipped for hosts under systemd: it is delegated, so that systemd leaves what is in it alone.
const DELEGATED: &str = "system.slice/weir-groups.service";

impl Tree {
    /// Finds the hierarchies in `proc`/self/mountinfo. Groups will lie below `parent`, or below that in the delegated
    /// unit where it is running.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn detect(proc: &Path, parent: &str) -> Result<Self, GroupsError> {
        let path = proc.join("self/mountinfo");
        let mounts = fs::read_to_string(&path).map_err(|source| GroupsError::read(&path, source))?;
        let mut tree = Self { unified: None, v1: BTreeMap::new(), v2: BTreeSet::new(), parent: parent.to_owned() };
        for (kind, root, options) in mounts.lines().filter_map(mount) {
            match kind {
                "cgroup2" if tree.unified.is_none() => tree.unified = Some(root),
                "cgroup" => {
                    for controller in Controller::ALL {
                        if options.split(',').any(|option| option == controller.name_v1()) {
                            tree.v1.entry(controller).or_insert_with(|| root.clone());
                        }
                    }
                }
                _ => {}
            }
        }
        if let Some(root) = &tree.unified {
            let path = root.join("cgroup.controllers");
            let names = fs::read_to_string(&path).map_err(|source| GroupsError::read(&path, source))?;
            let has = |controller: &Controller| {
                controller.name_v2().is_some_and(|name| names.split_whitespace().any(|present| present == name))
            };
            tree.v2 = Controller::ALL.into_iter().filter(has).collect();
            if root.join(DELEGATED).is_dir() {
                tree.parent = format!("{DELEGATED}/{parent}");
            }
        }
        if tree.unified.is_none() && tree.v1.is_empty() {
            return Err(GroupsError::NotMounted);
        }
        Ok(tree)
    }

    /// The parent of the groups, from the root of each hierarchy.
    #[must_use]
    pub fn parent(&self) -> &str {
        &self.parent
    }

    /// Which interface a controller has here; `None` if it is nowhere.
    #[must_use]
    pub fn version(&self, controller: Controller) -> Option<Version> {
        if self.v1.contains_key(&controller) {
            Some(Version::V1)
        } else {
            self.v2.contains(&controller).then_some(Version::V2)
        }
    }

    /// Where a group has its files for a controller.
    #[must_use]
    pub fn directory(&self, group: &str, controller: Controller) -> Option<(Version, PathBuf)> {
        let version = self.version(controller)?;
        let root = match version {
            Version::V1 => self.v1.get(&controller)?,
            Version::V2 => self.unified.as_ref()?,
        };
        Some((version, root.join(&self.parent).join(group)))
    }

    /// The group's directory in the unified hierarchy, where there is one.
    #[must_use]
    pub fn unified(&self, group: &str) -> Option<PathBuf> {
        Some(self.unified.as_ref()?.join(&self.parent).join(group))
    }

    /// The roots of the hierarchies that a group lies in. Under v1 a cpuset needs CPUs before it takes processes, so
    /// that only groups that ask for CPUs lie there.
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

    /// Makes a group's directories, and has the unified hierarchy's controllers reach it. The one file that is changed
    /// outside of Weir's parent is cgroup.subtree_control above it, where a controller is not enabled yet.
    ///
    /// # Errors
    ///
    /// When a directory cannot be made, or a controller cannot be enabled.
    pub fn make(&self, group: &str, cpuset: Cpuset) -> Result<(), GroupsError> {
        for root in self.roots(cpuset) {
            let parent = root.join(&self.parent);
            let made = fs::create_dir_all(&parent).map_err(|source| GroupsError::Make { path: parent.clone(), source });
            made?;
            if self.unified.as_deref() == Some(root) {
                self.enable(root, cpuset)?;
            }
            if self.v1.get(&Controller::Cpuset).map(PathBuf::as_path) == Some(root) {
                inherit_cpuset(root, &parent)?;
            }
            let path = parent.join(group);
            match fs::create_dir(&path) {
                Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(GroupsError::Make { path, source });
                }
                _ => {}
            }
            if self.v1.get(&Controller::Cpuset).map(PathBuf::as_path) == Some(root) {
                inherit_cpuset(&parent, &path)?;
            }
        }
        Ok(())
    }

    /// Controllers reach a cgroup only if every one above it passes them on. Where there is a cpuset, every allocation of
    /// memory on the host asks for it: that one is enabled only for a group that wants it.
    fn enable(&self, root: &Path, cpuset: Cpuset) -> Result<(), GroupsError> {
        let mut above = root.to_owned();
        let mut all = vec![above.clone()];
        for part in self.parent.split('/') {
            above.push(part);
            all.push(above.clone());
        }
        for directory in all {
            let path = directory.join("cgroup.subtree_control");
            let present = fs::read_to_string(&path).map_err(|source| GroupsError::read(&path, source))?;
            let is_wanted = |controller: &&Controller| {
                !self.v1.contains_key(controller) && (**controller != Controller::Cpuset || cpuset == Cpuset::Wanted)
            };
            for name in self.v2.iter().filter(is_wanted).filter_map(|controller| controller.name_v2()) {
                if !present.split_whitespace().any(|enabled| enabled == name) {
                    write(&path, &format!("+{name}"))?;
                }
            }
        }
        Ok(())
    }

    /// Removes a group's directories; what is not there is not missed.
    ///
    /// # Errors
    ///
    /// When one is still in use.
    pub fn remove(&self, group: &str) -> Result<(), GroupsError> {
        for root in self.roots(Cpuset::Wanted) {
            remove(&root.join(&self.parent).join(group))?;
        }
        Ok(())
    }

    /// Removes the parent where it is empty.
    pub fn remove_parent(&self) {
        for root in self.roots(Cpuset::Wanted) {
            // Other groups of an earlier config may still live there; they keep it.
            let _ = fs::remove_dir(root.join(&self.parent));
        }
    }

    /// Whether the hierarchy at `root` is the one that /proc/PID/cgroup lists with these controllers.
    #[must_use]
    pub fn is_hierarchy(&self, root: &Path, controllers: &str) -> bool {
        if controllers.is_empty() {
            return self.unified.as_deref() == Some(root);
        }
        let has = |controller: &Controller| controllers.split(',').any(|name| name == controller.name_v1());
        self.v1.iter().any(|(controller, own)| own == root && has(controller))
    }

    /// The group that a cgroup's path, from the root of its hierarchy, lies in.
    #[must_use]
    pub fn group_of<'p>(&self, path: &'p str) -> Option<&'p str> {
        let below = path.strip_prefix('/')?.strip_prefix(self.parent.as_str())?.strip_prefix('/')?;
        below.split('/').next()
    }

    /// The groups that there are, of this config or of an earlier one.
    #[must_use]
    pub fn present(&self) -> BTreeSet<String> {
        let parents = self.roots(Cpuset::Wanted).into_iter().map(|root| root.join(&self.parent));
        let entries = parents.filter_map(|parent| fs::read_dir(parent).ok()).flatten().flatten();
        entries
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }
}

/// Whether a group asks for CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cpuset {
    /// It does.
    Wanted,
    /// It runs on any.
    Any,
}

/// Writes a value to a file of a cgroup, in one piece as the kernel wants it.
pub(super) fn write(path: &Path, value: &str) -> Result<(), GroupsError> {
    let written = fs::OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()));
    written.map_err(|source| GroupsError::write(path, value, source))
}

/// Under v1 a new cpuset has neither CPUs nor memory nodes, and takes no process before it has both.
fn inherit_cpuset(from: &Path, to: &Path) -> Result<(), GroupsError> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let (from, to) = (from.join(file), to.join(file));
        let own = fs::read_to_string(&to).map_err(|source| GroupsError::read(&to, source))?;
        if own.trim().is_empty() {
            let all = fs::read_to_string(&from).map_err(|source| GroupsError::read(&from, source))?;
            write(&to, all.trim())?;
        }
    }
    Ok(())
}

fn remove(path: &Path) -> Result<(), GroupsError> {
    // A cgroup whose last process has ended is busy until the kernel has noticed.
    let mut tries = 50;
    loop {
        match fs::remove_dir(path) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && tries > 0 => {
                tries -= 1;
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(GroupsError::Remove { path: path.to_owned(), source });
            }
            _ => return Ok(()),
        }
    }
}

/// Kind, mount point and options of a line of mountinfo (proc(5)).
pub fn mount(line: &str) -> Option<(&str, PathBuf, &str)> {
    let (left, right) = line.split_once(" - ")?;
    let root = left.split(' ').nth(4)?;
    let mut right = right.split(' ');
    let kind = right.next()?;
    Some((kind, PathBuf::from(root.replace("\\040", " ")), right.nth(1)?))
}
