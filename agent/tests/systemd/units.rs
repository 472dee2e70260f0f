//! Process groups and the units that hold them: whatever is done to Weir's units, no member ends.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use crate::Test;
use crate::guest::{configure, json, make_network, property, run, systemctl, try_run, within};
use crate::package::{install, remove};

pub const TESTS: &[Test] = &[
    ("stopping_the_units_in_either_order_ends_no_member", stop),
    ("a_restart_of_the_groups_unit_enforces_their_limits_again", restart),
    ("an_upgrade_and_a_removal_end_no_member", upgrade_and_removal),
];

const GROUPS: &str = "weir-groups.service";
const WORKER: &str = "/usr/local/bin/worker";
/// A cgroup that no manager has.
const ORIGIN: &str = "/sys/fs/cgroup/weir-test";
const PATIENCE: Duration = Duration::from_secs(120);

/// A member process.
struct Member(Child);

impl Member {
    /// A process of nobody's, in the group of the service's config, once it is enforced.
    fn new() -> Self {
        if !Path::new("/usr/bin/agent").exists() {
            install("weir.deb");
        }
        make_network();
        fs::copy("/usr/bin/sleep", WORKER).unwrap();
        fs::create_dir_all(ORIGIN).unwrap();
        // In its cgroup before it is a worker: an agent may still run and take it from where it is then.
        let script = format!("echo $$ > {ORIGIN}/cgroup.procs && exec {WORKER} 3600");
        let member = Self(Command::new("sh").args(["-c", &script]).spawn().unwrap());
        configure(&format!("[[group]]\nname = \"held\"\nmatch = [{{ exe = {WORKER:?} }}]\npids = 50\n"));
        systemctl(&["restart", GROUPS, "weir.service"]);
        member.is_enforced();
        member
    }

    fn cgroup(&self) -> String {
        fs::read_to_string(format!("/proc/{}/cgroup", self.0.id())).unwrap().trim_start_matches("0::").trim().to_owned()
    }

    /// Waits until it is in its group, with the group's limit.
    fn is_enforced(&self) {
        within(PATIENCE, "the process is in its group, with its limit", || {
            let limit = fs::read_to_string(format!("/sys/fs/cgroup{}/pids.max", self.cgroup()));
            self.cgroup().ends_with("/held") && limit.is_ok_and(|limit| limit.trim() == "50")
        });
        let pids = json(&["groups"])[0]["pids"].clone();
        assert!(pids.as_array().unwrap().iter().any(|pid| *pid == self.0.id()), "{pids}");
    }

    fn assert_alive(&mut self, after: &str) {
        assert!(self.0.try_wait().unwrap().is_none(), "the member ended: {after}");
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = fs::remove_dir(ORIGIN);
    }
}

fn stop() {
    let mut member = Member::new();
    assert_eq!(property(GROUPS, "TasksMax"), "infinity");
    for order in [["weir.service", GROUPS], [GROUPS, "weir.service"]] {
        for unit in order {
            systemctl(&["stop", unit]);
            member.assert_alive(unit);
        }
        systemctl(&["start", "weir.service"]);
        member.is_enforced();
    }
}

fn restart() {
    let mut member = Member::new();
    systemctl(&["restart", GROUPS]);
    member.assert_alive("the restart");
    assert_eq!(property(GROUPS, "ActiveState"), "active");
    member.is_enforced();
    // Its process killed.
    run("kill", &["-KILL", &property(GROUPS, "MainPID")]);
    within(PATIENCE, "the unit is up again", || property(GROUPS, "NRestarts") != "0");
    within(PATIENCE, "the unit is active", || property(GROUPS, "ActiveState") == "active");
    member.assert_alive("the unit's process was killed");
    member.is_enforced();
}

fn upgrade_and_removal() {
    let mut member = Member::new();
    install("weir-next.deb");
    member.assert_alive("the upgrade");
    member.is_enforced();
    run("dpkg", &["--remove", "weir"]);
    member.assert_alive("the removal");
    assert_eq!(member.cgroup(), "/weir-test");
    remove();
    let left = try_run("systemctl", &["is-active", GROUPS]);
    assert!(!left.status.success());
}
