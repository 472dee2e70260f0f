//! Process groups and Weir's unit: whatever is done to it, no member ends.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use testbed::tests;

use crate::Test;
use crate::guest::{configure, json, make_network, property, run, systemctl, within};
use crate::package::{install, remove};

pub const TESTS: &[Test] = tests![groups_lose_no_member_in_an_upgrade_or_a_removal];
pub const THOROUGH: &[Test] =
    tests![groups_lose_no_member_when_the_agent_stops_restarts_or_is_killed];

const UNIT: &str = "weir.service";
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
        configure(&format!(
            "[[group]]\nname = \"held\"\nmatch = [{{ exe = {WORKER:?} }}]\npids = 50\n"
        ));
        systemctl(&["restart", UNIT]);
        member.is_enforced();
        member
    }

    fn cgroup(&self) -> String {
        fs::read_to_string(format!("/proc/{}/cgroup", self.0.id()))
            .unwrap()
            .trim_start_matches("0::")
            .trim()
            .to_owned()
    }

    /// Waits until it is in its group, with the group's limit.
    fn is_enforced(&self) {
        within(
            PATIENCE,
            "the process is in its group, with its limit",
            || self.is_limited(),
        );
        let pids = || json(&["groups"])[0]["pids"].clone();
        within(PATIENCE, "the agent lists the process", || {
            pids()
                .as_array()
                .unwrap()
                .iter()
                .any(|pid| *pid == self.0.id())
        });
    }

    fn is_limited(&self) -> bool {
        let limit = fs::read_to_string(format!("/sys/fs/cgroup{}/pids.max", self.cgroup()));
        self.cgroup() == "/weir-held.root.scope" && limit.is_ok_and(|limit| limit.trim() == "50")
    }

    fn assert_alive(&mut self, after: &str) {
        assert!(
            self.0.try_wait().unwrap().is_none(),
            "the member ended: {after}"
        );
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = fs::remove_dir(ORIGIN);
    }
}

fn groups_lose_no_member_when_the_agent_stops_restarts_or_is_killed() {
    let mut member = Member::new();
    systemctl(&["stop", UNIT]);
    member.assert_alive("the unit was stopped");
    assert!(
        member.is_limited(),
        "nobody is there, and its limit is gone"
    );
    systemctl(&["start", UNIT]);
    member.is_enforced();
    run("kill", &["-KILL", &property(UNIT, "MainPID")]);
    member.assert_alive("the agent was killed");
    within(PATIENCE, "another agent has started", || {
        property(UNIT, "NRestarts") != "0" && property(UNIT, "ActiveState") == "active"
    });
    member.is_enforced();
    systemctl(&["restart", UNIT]);
    member.assert_alive("the restart");
    member.is_enforced();
    systemctl(&["daemon-reload"]);
    assert!(member.is_limited(), "systemd forgot the limit");
}

fn groups_lose_no_member_in_an_upgrade_or_a_removal() {
    let mut member = Member::new();
    install("weir-next.deb");
    member.assert_alive("the upgrade");
    member.is_enforced();
    run("dpkg", &["--remove", "weir"]);
    member.assert_alive("the removal");
    assert_eq!(member.cgroup(), "/weir-test");
    remove();
}
