//! Groups that limit cgroups where they are, and what two agents do to each other.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use testbed::groups::{Host, Worker, agent, cgroups_of, hierarchies};

/// A cgroup that the test made in the unified hierarchy; its processes go back to the root at the end.
struct Made(PathBuf);

impl Made {
    fn new(host: &Host) -> Self {
        let root = hierarchies()
            .into_iter()
            .find(|root| root.join("cgroup.controllers").exists())
            .unwrap();
        let path = root.join(format!("{}-place", host.cgroup("").trim_matches('/')));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn path(&self) -> String {
        format!("/{}", self.0.file_name().unwrap().to_str().unwrap())
    }

    fn put(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let pids = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        for pid in pids.lines() {
            let _ = fs::write(self.0.parent().unwrap().join("cgroup.procs"), pid);
        }
        let _ = fs::remove_dir(&self.0);
    }
}

/// A config of one group with these lines, and no other.
fn start(host: &mut Host, agent: &str, group: &str) {
    let config = host.config(agent, "");
    let text = fs::read_to_string(&config).unwrap();
    let text = text.split("[[group]]").next().unwrap();
    fs::write(&config, format!("{text}[[group]]\nname = \"g\"\n{group}\n")).unwrap();
    host.launch(&config);
}

pub fn a_cgroup_is_limited_where_it_is() {
    let mut host = Host::new();
    let made = Made::new(&host);
    let worker = Worker::spawn(&host.worker(), &["sleep"]);
    made.put(worker.id());
    let before = cgroups_of(worker.id());
    start(
        &mut host,
        "on_exit = \"detach\"",
        &format!(
            "cgroup = \"{}\"\nnetwork = {{ egress = \"40Mbit/s\" }}",
            made.path()
        ),
    );
    assert_eq!(cgroups_of(worker.id()), before, "it was moved");
    let group = host.group();
    assert_eq!(group["pids"], serde_json::json!([worker.id()]));
    assert_eq!(
        (&group["members"][0]["kind"], &group["members"][0]["cgroup"]),
        (&"cgroup".into(), &made.path().into())
    );
    assert_eq!(group["enforcement"], "full", "{group}");
    host.stop(Signal::SIGTERM);
    assert_eq!(cgroups_of(worker.id()), before);
    assert!(!host.has_remains(), "{}", host.said());
}

pub fn a_delegated_cgroup_keeps_its_processes_unless_forced() {
    let mut host = Host::new();
    let made = Made::new(&host);
    // Somebody else's: a delegated cgroup.
    std::os::unix::fs::chown(&made.0, Some(65_534), None).unwrap();
    let worker = Worker::spawn(&host.worker(), &["sleep"]);
    made.put(worker.id());
    let before = cgroups_of(worker.id());
    host.start("", "pids = 20\nmove = true");
    assert_eq!(
        cgroups_of(worker.id()),
        before,
        "it was moved out of a delegated cgroup"
    );
    let group = host.group();
    assert_eq!(
        group["not_enforced"][0]["pids"],
        serde_json::json!([worker.id()])
    );
    assert!(
        group["not_enforced"][0]["reason"]
            .as_str()
            .unwrap()
            .contains("user 65534"),
        "{group}"
    );
    assert!(
        host.json(&["status"])["notes"]
            .to_string()
            .contains("partly enforced"),
        "{}",
        host.json(&["status"])
    );
    let checked = Command::new(agent().unwrap())
        .arg("check")
        .arg(host.path("limits.toml"))
        .output()
        .unwrap();
    assert!(
        String::from_utf8_lossy(&checked.stderr).contains("user 65534"),
        "{checked:?}"
    );
    host.stop(Signal::SIGTERM);
    // Forced, it goes, and comes back where it was, over a reload of a config without the group, too.
    host.start("", "pids = 20\nmove = \"force\"");
    assert_ne!(cgroups_of(worker.id()), before);
    host.stop(Signal::SIGTERM);
    host.start_without_groups();
    assert_eq!(cgroups_of(worker.id()), before, "{}", host.said());
}

pub fn a_second_agent_evicts_no_source() {
    let mut host = Host::new();
    host.start("", "pids = 20");
    let worker = host.spawn(&["sleep"]);
    let before = cgroups_of(worker.id());
    // A second agent with a control socket of its own, below the same parent.
    let text = fs::read_to_string(host.path("limits.toml")).unwrap();
    let text = text
        .replace("control.sock", "second.sock")
        .replace("name = \"g\"", "name = \"h\"");
    let text = text
        .replace("/state\"", "/state2\"")
        .replace("pins = \"/sys/fs/bpf/", "pins = \"/sys/fs/bpf/second-");
    fs::write(host.path("second.toml"), text).unwrap();
    let mut second = Command::new(agent().unwrap());
    let second = second
        .arg("--config")
        .arg(host.path("second.toml"))
        .stderr(fs::File::create(host.path("said")).unwrap());
    let mut second = crate::Guarded(second.spawn().unwrap());
    let deadline = Instant::now() + Duration::from_secs(300);
    while !fs::read_to_string(host.path("said"))
        .unwrap()
        .contains("another agent enforces process groups")
    {
        assert!(
            Instant::now() < deadline && second.0.try_wait().unwrap().is_none(),
            "{:?}",
            fs::read_to_string(host.path("said"))
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(
        cgroups_of(worker.id()),
        before,
        "the second agent evicted the first one's process"
    );
    let detached = host.command_of("detach", "second.toml");
    assert_eq!(detached.status.code(), Some(1), "{detached:?}");
    assert_eq!(cgroups_of(worker.id()), before);
}
