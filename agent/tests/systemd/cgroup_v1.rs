//! Process groups on a host with cgroup v1, where systemd makes no scopes for Weir: `cargo xtask vm --systemd --cgroup-v1`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use testbed::tests;

use crate::Test;
use crate::guest::{json, run, systemctl, try_run, within};
use crate::service::{UNIT, start};

pub const TESTS: &[Test] = tests![a_groups_pids_are_limited_on_cgroup_v1];

const PIDS: &str = "/sys/fs/cgroup/pids";
const SERVICE: &str = "legacy.service";
const WORKER: &str = "/usr/local/bin/legacy-worker";
const DROP_IN: &str = "/run/systemd/system/weir.service.d/cgroup-v1.conf";
const PATIENCE: Duration = Duration::from_secs(120);

/// Whether this guest has cgroup v1.
pub fn is_there() -> bool {
    Path::new(PIDS).is_dir()
}

/// A worker of a service, which has systemd's default limit on tasks.
fn a_groups_pids_are_limited_on_cgroup_v1() {
    fs::create_dir_all(Path::new(DROP_IN).parent().unwrap()).unwrap();
    // As docs/SERVICE.md has it.
    let drop_in = "[Service]\nCapabilityBoundingSet=CAP_DAC_OVERRIDE CAP_KILL\n";
    fs::write(DROP_IN, drop_in).unwrap();
    systemctl(&["daemon-reload"]);
    fs::copy("/bin/sleep", WORKER).unwrap();
    let script = format!("{WORKER} 600 & exec sleep 600");
    run(
        "systemd-run",
        &[
            "--quiet",
            "--collect",
            "--unit",
            SERVICE,
            "/bin/sh",
            "-c",
            &script,
        ],
    );
    let pattern = format!("^{WORKER}");
    within(PATIENCE, "the worker runs", || {
        try_run("pgrep", &["-f", &pattern]).status.success()
    });
    let worker = run("pgrep", &["-f", &pattern]).trim().to_owned();
    let cgroup = || {
        let cgroups = fs::read_to_string(format!("/proc/{worker}/cgroup")).unwrap_or_default();
        let line = cgroups.lines().find_map(|line| line.split_once(":pids:"));
        line.map(|(_, path)| path.to_owned()).unwrap_or_default()
    };
    let home = format!("/system.slice/{SERVICE}");
    assert_eq!(cgroup(), home);
    start(&format!(
        "[agent]\non_exit = \"detach\"\n[[group]]\nname = \"g\"\nexe = {WORKER:?}\npids = 20\nmove = true\n"
    ));
    let is_enforced = || {
        let limit = fs::read_to_string(format!("{PIDS}{}/pids.max", cgroup()));
        cgroup() != home && limit.is_ok_and(|limit| limit.trim() == "20")
    };
    within(
        PATIENCE,
        "the worker is in its group, with its limit",
        is_enforced,
    );
    let group = json(&["groups"])[0].clone();
    assert_eq!(group["enforcement"], "full", "{group}");
    systemctl(&["stop", UNIT]);
    assert_eq!(cgroup(), home, "it did not come back");
    systemctl(&["stop", SERVICE]);
    fs::remove_file(DROP_IN).unwrap();
    systemctl(&["daemon-reload"]);
}
