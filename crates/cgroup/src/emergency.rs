//! Freezing, thawing and killing groups.

use api::group::Emergency;

use super::error::GroupsError;
use super::host_paths::Host;
use super::place::is_within;
use super::process::{Process, is_untouchable};
use super::tree::{Controller, Tree, Version, write};

/// Checks that freezing or killing these cgroups leaves the agent and the host's first process: nobody could thaw them.
///
/// # Errors
///
/// When one of the cgroups contains either.
pub fn check(tree: &Tree, host: &Host, paths: &[&str], what: Emergency) -> Result<(), GroupsError> {
    if what == Emergency::Thaw {
        return Ok(());
    }
    for path in paths {
        // The paths of the agent's cgroups may be those of a cgroup namespace, and its files those of the host.
        let listed = tree.pids(path).into_iter().find(|pid| is_untouchable(*pid));
        let above = [1, std::process::id()]
            .into_iter()
            .find(|pid| contains(path, &Process::new(&host.proc, *pid)));
        if let Some(pid) = above.or(listed) {
            let whom = if pid == 1 {
                "the host's first process"
            } else {
                "this agent"
            };
            return Err(GroupsError::Untouchable {
                path: (*path).to_owned(),
                whom,
                what,
            });
        }
    }
    Ok(())
}

/// Whether the cgroup at `path` contains the process, in any hierarchy.
fn contains(path: &str, process: &Process) -> bool {
    let path = path.trim_end_matches('/');
    let cgroups = process.cgroups();
    cgroups.iter().any(|one| is_within(&one.path, path))
}

/// Freezes, thaws or kills the cgroup at `path`.
///
/// # Errors
///
/// When the kernel refuses.
pub fn carry_out(tree: &Tree, path: &str, what: Emergency) -> Result<(), GroupsError> {
    let unified = tree.unified(path);
    let freezer = tree.directory(path, Controller::Freezer);
    match (what, unified, freezer) {
        (Emergency::Kill, Some(directory), _) if directory.join("cgroup.kill").exists() => {
            write(&directory.join("cgroup.kill"), "1")
        }
        (Emergency::Kill, _, _) => {
            kill_each(tree, path);
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
        (_, None, _) => Err(GroupsError::NoController {
            controller: "freezer",
            what: "freeze",
        }),
    }
}

/// Before Linux 5.14 there is no cgroup.kill. Repeats until the group is empty, or gives up if forks are faster.
fn kill_each(tree: &Tree, path: &str) {
    for _ in 0..100 {
        let pids = tree.pids(path);
        if pids.is_empty() {
            return;
        }
        for pid in pids {
            // It fails if the process has already ended.
            let _ = nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(pid.cast_signed()),
                nix::sys::signal::Signal::SIGKILL,
            );
        }
    }
}
