//! Which group a process belongs in: the first one that has a matcher for it.

use std::path::PathBuf;

use super::error::GroupsError;
use super::process::{Membership, Process};
use crate::config::policy_group::{Group, Matcher};

/// A matcher with names resolved.
#[derive(Clone, Debug)]
enum Resolved {
    Exe(PathBuf),
    User(u32),
    Command(String),
    Unit(String),
    Cgroup(String),
    Pid(u32),
}

/// All groups' matchers, in the order of the config.
#[derive(Clone, Debug, Default)]
pub struct Matchers(Vec<Vec<Resolved>>);

impl Matchers {
    /// Resolves names. What cannot be is told with the number of its group, and matches nothing.
    #[must_use]
    pub fn new(groups: &[Group]) -> (Self, Vec<(usize, GroupsError)>) {
        let mut problems = Vec::new();
        let mut resolve = |nth: usize, matcher: &Matcher| match matcher {
            Matcher::Exe(path) => Some(Resolved::Exe(path.clone())),
            Matcher::Command(glob) => Some(Resolved::Command(glob.clone())),
            Matcher::Unit(unit) => Some(Resolved::Unit(unit.clone())),
            Matcher::Cgroup(glob) => Some(Resolved::Cgroup(glob.clone())),
            Matcher::Pid(pid) => Some(Resolved::Pid(*pid)),
            Matcher::User(name) => match user(name) {
                Some(user) => Some(Resolved::User(user)),
                None => {
                    problems.push((nth, GroupsError::User(name.clone())));
                    None
                }
            },
        };
        let all = groups.iter().enumerate();
        let all = all.map(|(nth, group)| group.matchers.iter().filter_map(|one| resolve(nth, one)).collect()).collect();
        (Self(all), problems)
    }

    /// The number of the first group that matches. `cgroups` are those that the process was in before Weir moved it.
    #[must_use]
    pub fn find(&self, process: &Process, cgroups: &[Membership]) -> Option<usize> {
        let mut facts = Facts { process, cgroups, exe: None, command: None };
        // The kernel's own threads are nobody's.
        facts.exe()?;
        self.0.iter().position(|matchers| matchers.iter().any(|matcher| facts.fits(matcher)))
    }
}

/// What is known of a process, read when it is first asked for.
struct Facts<'p> {
    process: &'p Process,
    cgroups: &'p [Membership],
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
            Resolved::Exe(path) => self.exe() == Some(path),
            Resolved::User(user) => self.process.user() == Some(*user),
            Resolved::Pid(pid) => self.process.pid == *pid,
            Resolved::Unit(unit) => self.cgroups.iter().any(|one| one.path.split('/').any(|part| part == unit)),
            Resolved::Cgroup(glob) => self.cgroups.iter().any(|one| fits(glob, &one.path)),
            Resolved::Command(glob) => {
                if self.command.is_none() {
                    self.command = self.process.command();
                }
                self.command.as_ref().is_some_and(|command| fits(glob, command))
            }
        }
    }
}

fn user(name: &str) -> Option<u32> {
    let by_name = nix::unistd::User::from_name(name).ok().flatten().map(|user| user.uid.as_raw());
    by_name.or_else(|| name.parse().ok())
}

/// Whether a text is as a pattern has it: `*` stands for any characters, slashes included, `?` for one.
#[must_use]
pub fn fits(glob: &str, text: &str) -> bool {
    let (glob, text): (Vec<char>, Vec<char>) = (glob.chars().collect(), text.chars().collect());
    let (mut in_glob, mut in_text) = (0, 0);
    let mut last_star: Option<(usize, usize)> = None;
    while in_text < text.len() {
        match glob.get(in_glob) {
            Some('*') => {
                last_star = Some((in_glob, in_text));
                in_glob += 1;
            }
            Some(c) if *c == '?' || *c == text[in_text] => {
                in_glob += 1;
                in_text += 1;
            }
            // The last star takes one character more: an earlier one need never be asked again.
            _ => match last_star {
                Some((star, taken)) => {
                    last_star = Some((star, taken + 1));
                    (in_glob, in_text) = (star + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    glob[in_glob..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn globs_reach_over_slashes() {
        for (glob, text, expected) in [
            ("/user.slice/*", "/user.slice/user-1000.slice/session-2.scope", true),
            ("/user.slice/*", "/system.slice/a.service", false),
            ("*encode*", "/usr/bin/ffmpeg -encode x", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-b-b", false),
            ("", "", true),
            ("*", "", true),
        ] {
            assert_eq!(fits(glob, text), expected, "{glob} {text}");
        }
    }

    proptest! {
        #[test]
        fn a_glob_is_what_its_recursive_definition_says(glob in "[ab*?]{0,8}", text in "[ab]{0,8}") {
            fn slow(glob: &[u8], text: &[u8]) -> bool {
                match (glob, text) {
                    ([], []) => true,
                    ([b'*', rest @ ..], _) => slow(rest, text) || (!text.is_empty() && slow(glob, &text[1..])),
                    ([b'?', rest @ ..], [_, text @ ..]) => slow(rest, text),
                    ([c, rest @ ..], [d, text @ ..]) => c == d && slow(rest, text),
                    _ => false,
                }
            }
            prop_assert_eq!(fits(&glob, &text), slow(glob.as_bytes(), text.as_bytes()));
        }
    }

    fn group(name: &str, matchers: &[Matcher]) -> Group {
        Group {
            name: name.to_owned(),
            matchers: matchers.to_vec(),
            cpu: Default::default(),
            memory: Default::default(),
            io: Vec::new(),
            pids: None,
            cpus: None,
            network: Default::default(),
        }
    }

    /// A made-up process; those without an executable are kernel threads.
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
            group("command", &[Matcher::Command("*nightly*".into()), Matcher::Pid(30)]),
            group("unit", &[Matcher::Unit("a.service".into())]),
            group("cgroup", &[Matcher::Cgroup("/user.slice/*".into()), Matcher::User("weir-has-no-such-user".into())]),
        ]);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].1.to_string().contains("weir-has-no-such-user"), "{}", problems[0].1);
        for (pid, exe, command, cgroup, expected) in [
            (10, Some("/usr/bin/ffmpeg"), "ffmpeg nightly", "/user.slice/a", Some(0)),
            (11, Some("/usr/bin/ffmpeg (deleted)"), "ffmpeg", "/", Some(0)),
            (12, Some("/bin/sh"), "sh -c nightly run", "/", Some(1)),
            (30, Some("/bin/sh"), "sh", "/", Some(1)),
            (13, Some("/bin/sh"), "sh", "/system.slice/a.service/sub", Some(2)),
            (14, Some("/bin/sh"), "sh", "/user.slice/a/b", Some(3)),
            (15, Some("/bin/sh"), "sh", "/", None),
            (16, None, "nightly", "/user.slice/a", None),
        ] {
            let process = process(proc, pid, exe, command, cgroup);
            assert_eq!(matchers.find(&process, &process.cgroups()), expected, "{pid}");
        }
        let (by_user, _) = Matchers::new(&[group("user", &[Matcher::User(own)])]);
        let process = process(proc, 20, Some("/bin/sh"), "sh", "/");
        assert_eq!(by_user.find(&process, &process.cgroups()), Some(0));
        // Gone in the meantime.
        assert_eq!(by_user.find(&Process::new(proc, 99), &[]), None);
    }
}
