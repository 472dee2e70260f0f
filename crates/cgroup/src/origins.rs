//! The cgroups of processes before Weir moved them: `cgroup` and `unit` match by them, and processes are moved back
//! there.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use host::read_saved;
use host::replace::{Survives, replace};
use serde::{Deserialize, Serialize};

use super::error::GroupsError;
use super::process::{Membership, Process};
use super::tree::Tree;

/// The largest file that is read.
const LARGEST: u64 = 64 << 20;
/// The permissions of a new file.
const MODE: u32 = 0o600;
/// The depth to which parents are searched.
const GENERATIONS: usize = 64;
/// The time in which systemd creates a scope, whose cgroup does not exist until then.
const APPEARS: Duration = Duration::from_secs(60);
/// Two origins show that a process may be of either.
const MOST_HOMES: usize = 2;

/// The controllers and the path in each hierarchy.
type Cgroups = Vec<(String, String)>;

/// A process that was moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Origin {
    start: u64,
    cgroups: Cgroups,
}

/// All moved processes that may still run, saved in a file for the next agent. The file exists as long as there are
/// groups.
#[derive(Debug)]
pub struct Origins {
    path: PathBuf,
    by_pid: BTreeMap<u32, Origin>,
    /// The distinct origins of all processes that were moved into a cgroup of Weir, at most [`MOST_HOMES`]. A child whose
    /// parent has ended has the only one.
    homes: BTreeMap<String, Vec<Cgroups>>,
    /// When a process was last to be moved into them.
    noted: BTreeMap<String, Instant>,
    is_saved: bool,
}

impl Origins {
    /// Continues with the file of an earlier agent at `path`, if it exists. One that is damaged is an error beside empty
    /// records.
    #[must_use]
    pub fn open(path: &Path) -> (Self, Option<GroupsError>) {
        let saved = read_saved(path, LARGEST, |text| serde_json::from_slice(text));
        let is_saved = matches!(saved, Ok(Some(_)));
        let lost = "processes that an earlier agent moved stay where they are when their group ends, without its limits";
        let (by_pid, problem) = GroupsError::or_damaged(saved, lost);
        // Earlier versions have no such file.
        let homes = read_saved(&homes_path(path), LARGEST, |text| {
            serde_json::from_slice(text)
        });
        let (homes, other) = GroupsError::or_damaged(homes, lost);
        let origins = Self {
            path: path.to_owned(),
            by_pid,
            homes,
            noted: BTreeMap::new(),
            is_saved,
        };
        (origins, problem.or(other))
    }

    /// Records the cgroups of a process before it is moved into the cgroup `into`.
    pub fn note(&mut self, process: &Process, cgroups: &[Membership], into: &str, tree: &Tree) {
        let Some((_, start)) = process.parent_and_start() else {
            return;
        };
        let cgroups: Cgroups = cgroups
            .iter()
            .map(|one| (one.controllers.clone(), one.path.clone()))
            .collect();
        let homes = self.homes.entry(into.to_owned()).or_insert_with(|| {
            // Processes without a record came from anywhere.
            let others = (!tree.pids(into).is_empty()).then(Cgroups::new);
            others.into_iter().collect()
        });
        if homes.len() < MOST_HOMES && !homes.contains(&cgroups) {
            homes.push(cgroups.clone());
        }
        self.by_pid.insert(process.pid, Origin { start, cgroups });
        self.noted.insert(into.to_owned(), Instant::now());
        self.is_saved = false;
    }

    /// The origin of a process, or of its nearest ancestor with one.
    #[must_use]
    pub fn of(&self, proc: &Path, pid: u32) -> Option<Vec<Membership>> {
        let mut pid = pid;
        for _ in 0..GENERATIONS {
            let (parent, start) = Process::new(proc, pid).parent_and_start()?;
            if let Some(origin) = self.by_pid.get(&pid).filter(|origin| origin.start == start) {
                return Some(memberships(&origin.cgroups));
            }
            pid = parent;
        }
        None
    }

    /// The origin of every process that was moved into the cgroup at `path`, if all have the same.
    #[must_use]
    pub fn of_all_in(&self, path: &str) -> Option<Vec<Membership>> {
        match self.homes.get(path)?.as_slice() {
            [only] => Some(memberships(only)),
            _ => None,
        }
    }

    /// Removes ended processes and cgroups without processes, and saves the rest.
    ///
    /// # Errors
    ///
    /// When a file cannot be written.
    pub fn save(&mut self, proc: &Path, tree: &Tree) -> io::Result<()> {
        let before = self.by_pid.len() + self.homes.len();
        self.noted.retain(|_, noted| noted.elapsed() < APPEARS);
        self.homes
            .retain(|path, _| self.noted.contains_key(path) || tree.is_populated(path));
        // A reused process ID is detected on use: reading the start of 20,000 processes takes 0.3 s.
        self.by_pid
            .retain(|pid, _| proc.join(pid.to_string()).exists());
        if self.is_saved && before == self.by_pid.len() + self.homes.len() {
            return Ok(());
        }
        for (path, text) in [
            (homes_path(&self.path), serde_json::to_vec(&self.homes)?),
            (self.path.clone(), serde_json::to_vec(&self.by_pid)?),
        ] {
            // In /run: a reboot ends the processes.
            replace(&path, MODE, Survives::Kill, |file| file.write_all(&text))?;
        }
        self.is_saved = true;
        Ok(())
    }

    /// Removes the files: no process is moved any more.
    pub fn forget(&mut self) {
        self.by_pid.clear();
        self.homes.clear();
        for path in [homes_path(&self.path), self.path.clone()] {
            // It may never have been written.
            let _ = fs::remove_file(path);
        }
    }
}

/// A file of its own: earlier versions read the other one.
fn homes_path(path: &Path) -> PathBuf {
    path.with_extension("homes.json")
}

fn memberships(cgroups: &[(String, String)]) -> Vec<Membership> {
    let member = |(controllers, path): &(String, String)| Membership {
        controllers: controllers.clone(),
        path: path.clone(),
    };
    cgroups.iter().map(member).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_outlives_the_agent_and_is_that_of_descendants_too() {
        let folder = tempfile::tempdir().unwrap();
        let (proc, file) = (
            folder.path().join("proc"),
            folder.path().join("origins.json"),
        );
        let root = folder.path().join("cg");
        let own = root.join("weir/g");
        fs::create_dir_all(&own).unwrap();
        fs::write(root.join("cgroup.controllers"), "").unwrap();
        fs::create_dir_all(proc.join("self")).unwrap();
        let mount = format!("30 25 0:26 / {} rw - cgroup2 cgroup2 rw\n", root.display());
        fs::write(proc.join("self/mountinfo"), mount).unwrap();
        let tree = Tree::detect(&proc, "weir").unwrap();
        let stat = |pid: u32, parent: u32, start: u64| {
            let path = proc.join(pid.to_string());
            fs::create_dir_all(&path).unwrap();
            let text = format!("{pid} (a) b) S {parent} {}{start} 0\n", "0 ".repeat(17));
            fs::write(path.join("stat"), text).unwrap();
        };
        stat(10, 1, 500);
        stat(11, 10, 600);
        let home = [Membership {
            controllers: String::new(),
            path: "/user.slice/a".to_owned(),
        }];
        let (mut origins, _) = Origins::open(&file);
        origins.note(&Process::new(&proc, 10), &home, "/weir/g", &tree);
        origins.save(&proc, &tree).unwrap();
        let (again, problem) = Origins::open(&file);
        assert!(problem.is_none());
        assert_eq!(again.of(&proc, 10).as_deref(), Some(home.as_slice()));
        assert_eq!(again.of(&proc, 11).as_deref(), Some(home.as_slice()));
        assert_eq!(again.of(&proc, 12), None);
        // The process ID was reused.
        stat(10, 1, 700);
        assert_eq!(again.of(&proc, 11), None);
        fs::remove_dir_all(proc.join("10")).unwrap();
        let mut again = again;
        again.save(&proc, &tree).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "{}");
        assert_eq!(again.of_all_in("/weir/g").as_deref(), Some(home.as_slice()));
        fs::write(own.join("cgroup.events"), "populated 0\nfrozen 0\n").unwrap();
        again.save(&proc, &tree).unwrap();
        assert_eq!(again.of_all_in("/weir/g"), None, "it has no processes");
        // systemd creates a scope some time after the request.
        let scope = "/system.slice/weir-g.a.service.1a2b.scope";
        stat(13, 1, 800);
        again.note(&Process::new(&proc, 13), &home, scope, &tree);
        again.save(&proc, &tree).unwrap();
        assert_eq!(again.of_all_in(scope).as_deref(), Some(home.as_slice()));
        again.noted.clear();
        again.save(&proc, &tree).unwrap();
        assert_eq!(again.of_all_in(scope), None, "it was not created");
        again.forget();
        assert!(!file.exists() && !homes_path(&file).exists());
    }

    #[test]
    fn a_damaged_file_is_set_aside_and_reported() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("origins.json");
        fs::write(&file, "{").unwrap();
        let (origins, problem) = Origins::open(&file);
        assert_eq!(origins.of(Path::new("/proc"), 1), None);
        let problem = problem.unwrap().to_string();
        assert!(problem.contains("origins.json.damaged"), "{problem}");
        assert!(!file.exists());
    }
}
