//! The group of a process: the first one with a matcher for it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use config::group::{Group, Matcher};

use super::containers::{self, Known};
use super::error::GroupsError;
use super::glob::fits;
use super::place::{below_slices, is_unit, prefixes};
use super::process::{Membership, Process};
use super::restrict::{is_trusted, owner_above};
use super::tree::Tree;

/// A matcher with resolved names.
#[derive(Clone, Debug)]
enum Resolved {
    Exe(Exe),
    User(u32),
    Command(String),
    Unit(String),
    Slice(String),
    Container(String),
    Cgroup(String),
    Pid(u32),
}

/// A program's path, and the file that it leads to: the kernel reports a process's program without symbolic links.
#[derive(Clone, Debug)]
struct Exe {
    path: PathBuf,
    /// `None` if there is no such file, as for a program of a container, or if a user could lead it elsewhere; and until
    /// [`Links`] has followed it.
    ///
    /// [`Links`]: super::links::Links
    target: Option<PathBuf>,
}

/// The most symbolic links, as in the kernel (path_resolution(7)).
const MOST_LINKS: usize = 40;

/// The file that a path leads to, if root or this user owns each link and directory on the way: another one's link would
/// put any program of the host into the group.
pub fn trusted_target(path: &Path) -> Option<PathBuf> {
    let is_ours = |part: &Path| fs::symlink_metadata(part).is_ok_and(|part| is_trusted(part.uid()));
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        if !path.ancestors().all(is_ours) {
            return None;
        }
        match fs::read_link(&path) {
            Ok(link) => path = path.parent()?.join(link),
            Err(_) => return fs::canonicalize(&path).ok(),
        }
    }
    None
}

impl Exe {
    fn is(&self, exe: &Path) -> bool {
        self.path == exe || self.target.as_deref() == Some(exe)
    }
}

/// The reason why a process belongs to a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// It is in this cgroup, which matches as a whole.
    Cgroup(String),
    /// The process itself matches.
    Itself,
}

/// All groups' matchers, in the order of the config.
#[derive(Clone, Debug, Default)]
pub struct Matchers {
    groups: Vec<Vec<Resolved>>,
    /// The users that do not exist yet, with the index of their group.
    unknown: Vec<(usize, String)>,
    /// The cgroups whose owners are checked.
    tree: Option<Tree>,
}

impl Matchers {
    /// Resolves names. Those that fail are returned with the index of their group, and match nothing.
    #[must_use]
    pub fn new(groups: &[Group]) -> (Self, Vec<(usize, GroupsError)>) {
        let (mut problems, mut unknown) = (Vec::new(), Vec::new());
        let mut resolve = |nth: usize, matcher: &Matcher| match matcher {
            Matcher::Exe(path) => Some(Resolved::Exe(Exe {
                path: path.clone(),
                target: None,
            })),
            Matcher::Command(glob) => Some(Resolved::Command(glob.clone())),
            Matcher::Unit(unit) => Some(Resolved::Unit(unit.clone())),
            Matcher::Slice(slice) => Some(Resolved::Slice(slice.clone())),
            Matcher::Container(pattern) => Some(Resolved::Container(pattern.clone())),
            Matcher::Cgroup(glob) => Some(Resolved::Cgroup(glob.clone())),
            Matcher::Pid(pid) => Some(Resolved::Pid(*pid)),
            Matcher::User(name) => match user(name) {
                Some(user) => Some(Resolved::User(user)),
                None => {
                    problems.push((nth, GroupsError::User(name.clone())));
                    unknown.push((nth, name.clone()));
                    None
                }
            },
        };
        let all = groups.iter().enumerate();
        let all = all
            .map(|(nth, group)| {
                group
                    .matchers()
                    .iter()
                    .filter_map(|one| resolve(nth, one))
                    .collect()
            })
            .collect();
        let matchers = Self {
            groups: all,
            unknown,
            tree: None,
        };
        (matchers, problems)
    }

    /// The same for this host's cgroups: containers match only below cgroups of root.
    #[must_use]
    pub fn on(self, tree: &Tree) -> Self {
        Self {
            tree: Some(tree.clone()),
            ..self
        }
    }

    /// The names of users that do not exist yet.
    pub fn unknown_users(&self) -> Vec<String> {
        self.unknown.iter().map(|(_, name)| name.clone()).collect()
    }

    /// Matches by a user that exists now. Returns the indices of the groups.
    pub fn know_user(&mut self, name: &str, user: u32) -> Vec<usize> {
        let is_it = |(_, unknown): &mut (usize, String)| unknown == name;
        let groups: Vec<usize> = self
            .unknown
            .extract_if(.., is_it)
            .map(|(group, _)| group)
            .collect();
        for group in &groups {
            self.groups[*group].push(Resolved::User(user));
        }
        groups
    }

    /// The paths of programs, and the indices of their groups.
    pub fn programs(&self) -> impl Iterator<Item = (usize, &Path)> {
        self.groups.iter().enumerate().flat_map(|(nth, matchers)| {
            matchers.iter().filter_map(move |matcher| match matcher {
                Resolved::Exe(exe) => Some((nth, exe.path.as_path())),
                _ => None,
            })
        })
    }

    /// Matches by the file that a program's path leads to now: an update may have changed it.
    pub fn lead(&mut self, path: &Path, target: Option<&Path>) {
        for matcher in self.groups.iter_mut().flatten() {
            if let Resolved::Exe(exe) = matcher
                && exe.path == path
            {
                exe.target = target.map(Path::to_owned);
            }
        }
    }

    /// The index of the first group that matches, and the reason. `cgroups` are those of the process before Weir moved
    /// it.
    #[must_use]
    pub fn find(
        &self,
        process: &Process,
        cgroups: &[Membership],
        known: &Known,
    ) -> Option<(usize, By)> {
        let mut facts = Facts {
            process,
            exe: None,
            command: None,
        };
        // Kernel threads belong to no group.
        facts.exe()?;
        self.groups.iter().enumerate().find_map(|(nth, matchers)| {
            let outermost = cgroups
                .iter()
                .find_map(|one| self.outermost(matchers, &one.path, known));
            let by = outermost.map(|path| By::Cgroup(path.to_owned()));
            let itself = || {
                matchers
                    .iter()
                    .any(|matcher| facts.fits(matcher))
                    .then_some(By::Itself)
            };
            Some((nth, by.or_else(itself)?))
        })
    }

    /// The index of the first group that matches the cgroup at `path` or one above it, and the outermost of these.
    #[must_use]
    pub fn find_cgroup<'p>(&self, path: &'p str, known: &Known) -> Option<(usize, &'p str)> {
        let mut all = self.groups.iter().enumerate();
        all.find_map(|(nth, matchers)| Some((nth, self.outermost(matchers, path, known)?)))
    }

    /// The outermost cgroup above or at `path` that a matcher matches.
    fn outermost<'p>(
        &self,
        matchers: &[Resolved],
        path: &'p str,
        known: &Known,
    ) -> Option<&'p str> {
        let tree = self.tree.as_ref();
        prefixes(path).find(|prefix| {
            matchers
                .iter()
                .any(|matcher| matcher.means(prefix, known, tree))
        })
    }

    /// Whether the group matches by processes.
    #[must_use]
    pub fn moves(&self, group: usize) -> bool {
        self.groups[group]
            .iter()
            .any(|matcher| !matcher.is_of_cgroups())
    }

    /// Whether any group matches by cgroups, units or containers.
    #[must_use]
    pub fn has_cgroups(&self) -> bool {
        self.groups.iter().flatten().any(Resolved::is_of_cgroups)
    }

    /// Whether any group matches by containers.
    #[must_use]
    pub fn has_containers(&self) -> bool {
        (0..self.groups.len()).any(|group| self.is_of_containers(group))
    }

    /// Whether a group matches by containers.
    pub fn is_of_containers(&self, group: usize) -> bool {
        let mut matchers = self.groups.get(group).into_iter().flatten();
        matchers.any(|matcher| matches!(matcher, Resolved::Container(_)))
    }

    /// The units that are named in full: they are limited before they start.
    pub fn units(&self) -> impl Iterator<Item = (usize, &str)> {
        self.groups.iter().enumerate().flat_map(|(nth, matchers)| {
            matchers.iter().filter_map(move |matcher| match matcher {
                Resolved::Unit(name) | Resolved::Slice(name) if !name.contains(['*', '?']) => {
                    Some((nth, name.as_str()))
                }
                _ => None,
            })
        })
    }
}

impl Resolved {
    const fn is_of_cgroups(&self) -> bool {
        matches!(
            self,
            Self::Unit(_) | Self::Slice(_) | Self::Container(_) | Self::Cgroup(_)
        )
    }

    /// Whether it matches the cgroup at `path` as a whole. Users and containers choose the names of cgroups below theirs:
    /// a cgroup there is neither a unit nor a container of the host.
    fn means(&self, path: &str, known: &Known, tree: Option<&Tree>) -> bool {
        match self {
            Self::Cgroup(glob) => fits(glob, path),
            Self::Unit(glob) => below_slices(path)
                .is_some_and(|name| fits(glob, name) && (is_unit(name) || glob == name)),
            Self::Slice(glob) => {
                below_slices(path).is_some_and(|name| name.ends_with(".slice") && fits(glob, name))
            }
            Self::Container(pattern) => {
                containers::is_meant(pattern, path, known)
                    && !containers::is_inside(path, known)
                    && tree.is_none_or(|tree| owner_above(tree, path).is_none())
            }
            Self::Exe(_) | Self::User(_) | Self::Command(_) | Self::Pid(_) => false,
        }
    }
}

/// The properties of a process, read on first use.
struct Facts<'p> {
    process: &'p Process,
    exe: Option<PathBuf>,
    command: Option<String>,
}

impl Facts<'_> {
    fn exe(&mut self) -> Option<&PathBuf> {
        if self.exe.is_none() {
            self.exe = self.process.exe();
        }
        self.exe.as_ref()
    }

    fn fits(&mut self, matcher: &Resolved) -> bool {
        match matcher {
            Resolved::Exe(wanted) => self.exe().is_some_and(|exe| wanted.is(exe)),
            Resolved::User(user) => self.process.user() == Some(*user),
            Resolved::Pid(pid) => self.process.pid == *pid,
            Resolved::Unit(_)
            | Resolved::Slice(_)
            | Resolved::Container(_)
            | Resolved::Cgroup(_) => false,
            Resolved::Command(glob) => {
                if self.command.is_none() {
                    self.command = self.process.command();
                }
                self.command
                    .as_ref()
                    .is_some_and(|command| fits(glob, command))
            }
        }
    }
}

/// The ID of a user, by name or number.
pub fn user(name: &str) -> Option<u32> {
    let by_name = nix::unistd::User::from_name(name)
        .ok()
        .flatten()
        .map(|user| user.uid.as_raw());
    by_name.or_else(|| name.parse().ok())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn group(name: &str, matchers: &[Matcher]) -> Group {
        Group {
            name: name.to_owned(),
            matches: matchers.to_vec(),
            ..Group::default()
        }
    }

    /// A fake process; one without an executable is a kernel thread.
    fn process(proc: &Path, pid: u32, exe: Option<&str>, command: &str, cgroup: &str) -> Process {
        let folder = proc.join(pid.to_string());
        fs::create_dir_all(&folder).unwrap();
        if let Some(exe) = exe {
            symlink(exe, folder.join("exe")).unwrap();
        }
        fs::write(folder.join("cmdline"), command.replace(' ', "\0")).unwrap();
        fs::write(folder.join("cgroup"), format!("3:memory:/\n0::{cgroup}\n")).unwrap();
        Process::new(proc, pid)
    }

    #[test]
    fn the_first_group_that_matches_has_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let proc = folder.path();
        let own = nix::unistd::geteuid().as_raw().to_string();
        let (matchers, problems) = Matchers::new(&[
            group("exe", &[Matcher::Exe("/usr/bin/ffmpeg".into())]),
            group(
                "command",
                &[Matcher::Command("*nightly*".into()), Matcher::Pid(30)],
            ),
            group("unit", &[Matcher::Unit("a.service".into())]),
            group(
                "cgroup",
                &[
                    Matcher::Cgroup("/user.slice/*".into()),
                    Matcher::User("weir-has-no-such-user".into()),
                ],
            ),
        ]);
        assert_eq!(problems.len(), 1);
        assert!(
            problems[0].1.to_string().contains("weir-has-no-such-user"),
            "{}",
            problems[0].1
        );
        let in_cgroup = |group, path: &str| Some((group, By::Cgroup(path.to_owned())));
        let known = Known::new();
        for (pid, exe, command, cgroup, expected) in [
            (
                10,
                Some("/usr/bin/ffmpeg"),
                "ffmpeg nightly",
                "/user.slice/a",
                Some((0, By::Itself)),
            ),
            (
                11,
                Some("/usr/bin/ffmpeg (deleted)"),
                "ffmpeg",
                "/",
                Some((0, By::Itself)),
            ),
            (
                12,
                Some("/bin/sh"),
                "sh -c nightly run",
                "/",
                Some((1, By::Itself)),
            ),
            (30, Some("/bin/sh"), "sh", "/", Some((1, By::Itself))),
            (
                13,
                Some("/bin/sh"),
                "sh",
                "/system.slice/a.service/sub",
                in_cgroup(2, "/system.slice/a.service"),
            ),
            // The outermost matching cgroup covers those below it.
            (
                14,
                Some("/bin/sh"),
                "sh",
                "/user.slice/a/b",
                in_cgroup(3, "/user.slice/a"),
            ),
            (15, Some("/bin/sh"), "sh", "/", None),
            (16, None, "nightly", "/user.slice/a", None),
        ] {
            let process = process(proc, pid, exe, command, cgroup);
            assert_eq!(
                matchers.find(&process, &process.cgroups(), &known),
                expected,
                "{pid}"
            );
        }
        let (by_user, _) = Matchers::new(&[group("user", &[Matcher::User(own)])]);
        let process = process(proc, 20, Some("/bin/sh"), "sh", "/");
        assert_eq!(
            by_user.find(&process, &process.cgroups(), &known),
            Some((0, By::Itself))
        );
        // The process has ended.
        assert_eq!(by_user.find(&Process::new(proc, 99), &[], &known), None);
    }

    #[test]
    fn a_program_matches_by_a_symbolic_link_to_it() {
        let temporary = tempfile::tempdir().unwrap();
        // It may be behind a link itself.
        let folder = fs::canonicalize(temporary.path()).unwrap();
        let (link, proc) = (folder.join("python"), folder.join("proc"));
        let programs = ["python3.1", "python3.2"].map(|name| folder.join(name));
        for (pid, program) in (10..).zip(&programs) {
            fs::write(program, "").unwrap();
            process(&proc, pid, program.to_str(), "x", "/");
        }
        symlink(&programs[0], &link).unwrap();
        let (mut matchers, _) = Matchers::new(&[group("g", &[Matcher::Exe(link.clone())])]);
        let follow = |matchers: &mut Matchers| {
            matchers.lead(&link, trusted_target(&link).as_deref());
        };
        follow(&mut matchers);
        let found = |matchers: &Matchers| {
            [10, 11].map(|pid| {
                let process = Process::new(&proc, pid);
                matchers.find(&process, &[], &Known::new()).is_some()
            })
        };
        assert_eq!(found(&matchers), [true, false]);
        // An update.
        fs::remove_file(&link).unwrap();
        symlink(&programs[1], &link).unwrap();
        follow(&mut matchers);
        assert_eq!(found(&matchers), [false, true]);
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::lchown(&link, Some(1234), None).unwrap();
            follow(&mut matchers);
            assert_eq!(found(&matchers), [false, false], "a user owns the link");
        }
    }
}
