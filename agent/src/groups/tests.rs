//! Over a made-up host in a temporary directory: what is written where, and what is told when it cannot be.

use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use crate::config::parse;

/// A made-up host.
struct MadeUp {
    folder: tempfile::TempDir,
}

impl MadeUp {
    fn new(mounts: &[(&str, &str, &str)]) -> Self {
        let made_up = Self { folder: tempfile::tempdir().unwrap() };
        let mut table = "25 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n".to_owned();
        for (kind, point, options) in mounts {
            let root = made_up.path(point);
            fs::create_dir_all(&root).unwrap();
            table.push_str(&format!("30 25 0:26 / {} rw shared:9 - {kind} {kind} {options}\n", root.display()));
        }
        made_up.file("proc/self/mountinfo", &table);
        made_up
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn host(&self) -> Host {
        Host {
            proc: self.path("proc"),
            sys: self.path("sys"),
            pins: self.path("pins"),
            origins: self.path("origins.json"),
        }
    }

    /// A process with this command in these cgroups.
    fn process(&self, pid: u32, command: &str, cgroup: &str) {
        let folder = format!("proc/{pid}");
        self.file(&format!("{folder}/cmdline"), &command.replace(' ', "\0"));
        self.file(&format!("{folder}/cgroup"), cgroup);
        self.file(&format!("{folder}/stat"), &format!("{pid} (x) S 1 {}500 0\n", "0 ".repeat(17)));
        std::os::unix::fs::symlink("/bin/sh", self.path(&folder).join("exe")).unwrap();
    }

    fn start(&self, text: &str) -> Result<Groups, GroupsError> {
        Groups::start(&parse(Path::new("limits.toml"), text).unwrap().config, self.host())
    }
}

/// The unified hierarchy alone, with the files that a kernel would have put there.
fn unified() -> MadeUp {
    let host = MadeUp::new(&[("cgroup2", "cg", "rw")]);
    host.file("cg/cgroup.controllers", "cpuset cpu io memory pids\n");
    host.file("cg/cgroup.subtree_control", "memory\n");
    host.file("cg/weir/cgroup.subtree_control", "\n");
    for file in ["cgroup.procs", "cpu.max", "cpu.weight", "memory.high", "memory.max", "memory.swap.max", "pids.max"] {
        host.file(&format!("cg/weir/batch/{file}"), "");
    }
    host.file("cg/weir/batch/io.max", "9:9 rbps=5 wbps=max riops=max wiops=max\n");
    host.file("cg/weir/batch/cpuset.cpus", "");
    host
}

const BATCH: &str =
    "[[group]]\nname = \"batch\"\nmatch = [{ command = \"*nightly*\" }, { cgroup = \"/user.slice/*\" }]\n";

#[test]
fn limits_are_written_to_their_files_under_v2() {
    let host = unified();
    let limits =
        "cpu = { max = \"50%\", weight = 25 }\nmemory = { high = \"1MiB\", max = \"2MiB\" }\ncpus = \"0\"\npids = 9\n";
    let groups = host.start(&format!("{BATCH}{limits}")).unwrap();
    for (file, value) in [
        ("cpu.max", "50000 100000"),
        ("cpu.weight", "25"),
        ("memory.high", "1048576"),
        ("memory.max", "2097152"),
        ("memory.swap.max", "max"),
        ("cpuset.cpus", "0"),
        ("pids.max", "9"),
    ] {
        assert_eq!(host.text(&format!("cg/weir/batch/{file}")), value, "{file}");
    }
    // What an earlier config held a disk to is taken out. (A made-up file keeps the rest of what it held.)
    assert!(host.text("cg/weir/batch/io.max").starts_with("9:9 rbps=max wbps=max riops=max wiops=max"));
    assert!(groups.notes()[0].contains("no process has matched yet (command *nightly*"), "{:?}", groups.notes());
}

#[test]
fn processes_are_put_in_and_sent_back_where_they_came_from() {
    let host = unified();
    host.process(50, "sh nightly", "0::/home\n");
    host.process(51, "sh other", "0::/user.slice/a\n");
    host.process(52, "sh other", "0::/elsewhere\n");
    host.file("cg/home/cgroup.procs", "");
    let groups = host.start(&format!("{BATCH}pids = 9\n")).unwrap();
    // A made-up file holds what was written last; the kernel's holds every process.
    assert!(["50", "51"].contains(&host.text("cg/weir/batch/cgroup.procs").as_str()));
    assert!(groups.notes().is_empty(), "{:?}", groups.notes());
    assert_eq!(groups.statuses()[0].cgroup, "/weir/batch");
    drop(groups);
    // The next agent knows where they came from, and where else a process in the group may have been matched by.
    host.file("cg/weir/batch/cgroup.procs", "50\n");
    host.file("proc/50/cgroup", "0::/weir/batch\n");
    host.file("proc/51/cgroup", "0::/weir/batch\n");
    let groups = host.start(&format!("{BATCH}pids = 9\n")).unwrap();
    assert_eq!(host.text("cg/weir/batch/cgroup.procs"), "50\n", "nobody had to be moved again");
    groups.send_home(50);
    assert_eq!(host.text("cg/home/cgroup.procs"), "50");
}

#[test]
fn each_controller_is_found_where_it_is_on_a_hybrid_host() {
    let host = MadeUp::new(&[
        ("cgroup", "cg/cpu,cpuacct", "rw,cpu,cpuacct"),
        ("cgroup", "cg/memory", "rw,memory"),
        ("cgroup", "cg/blkio", "rw,blkio"),
        ("cgroup2", "cg/unified", "rw"),
    ]);
    host.file("cg/unified/cgroup.controllers", "pids\n");
    host.file("cg/unified/cgroup.subtree_control", "");
    host.file("cg/unified/weir/cgroup.subtree_control", "");
    for file in ["cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares", "cgroup.procs"] {
        host.file(&format!("cg/cpu,cpuacct/weir/batch/{file}"), "");
    }
    host.file("cg/memory/weir/batch/memory.limit_in_bytes", "");
    host.file("cg/unified/weir/batch/pids.max", "");
    let limits = "cpu = { max = \"150%\", weight = 200 }\nmemory = { high = \"1MiB\", max = \"2MiB\" }\ncpus = \"0\"\npids = 9\n";
    let groups = host.start(&format!("{BATCH}{limits}")).unwrap();
    assert_eq!(host.text("cg/cpu,cpuacct/weir/batch/cpu.cfs_quota_us"), "150000");
    assert_eq!(host.text("cg/cpu,cpuacct/weir/batch/cpu.shares"), "2048");
    assert_eq!(host.text("cg/memory/weir/batch/memory.limit_in_bytes"), "2097152");
    assert_eq!(host.text("cg/unified/weir/batch/pids.max"), "9");
    assert_eq!(host.text("cg/unified/weir/cgroup.subtree_control"), "+pids");
    let notes = groups.notes().join("\n");
    assert!(notes.contains("memory high is not held"), "{notes}");
    assert!(notes.contains("no cpuset controller in any cgroup hierarchy: cpus is not held"), "{notes}");
    // Two controllers that are mounted together are one hierarchy.
    assert_eq!(groups.tree.roots(Cpuset::Any).len(), 4);
}

#[test]
fn a_value_that_is_refused_is_told_with_its_file_and_the_other_limits_stand() {
    let host = unified();
    fs::remove_file(host.path("cg/weir/batch/memory.max")).unwrap();
    let limits = "memory = { max = \"2MiB\" }\npids = 9\nio = [{ device = \"/dev/weir-none\", read = \"1MB/s\" }]\n";
    let groups = host.start(&format!("{BATCH}{limits}cpu = {{ max = \"800000%\" }}\n")).unwrap();
    assert_eq!(host.text("cg/weir/batch/pids.max"), "9");
    let notes = groups.notes().join("\n");
    for part in [
        "writing \"2097152\" to",
        "memory.max failed: No such file",
        "/dev/weir-none cannot be found",
        "cpu max 800000%",
    ] {
        assert!(notes.contains(part), "{part} is missing from: {notes}");
    }
}

#[test]
fn another_config_changes_limits_without_moving_anybody_and_ends_groups_that_are_no_more() {
    let host = unified();
    host.file("cg/weir/gone/cgroup.freeze", "1");
    host.process(50, "sh nightly", "0::/weir/batch\n");
    host.start(&format!("{BATCH}pids = 9\n")).unwrap();
    assert_eq!(host.text("cg/weir/gone/cgroup.freeze"), "0", "a group that is no more is thawed");
    host.start(&format!("{BATCH}pids = 12\n")).unwrap();
    assert!(host.text("cg/weir/batch/pids.max").starts_with("12"));
    assert_eq!(host.text("cg/weir/batch/cgroup.procs"), "", "it was there already");
}

#[test]
fn observing_holds_a_group_to_nothing() {
    let host = unified();
    let groups =
        host.start(&format!("[agent]\nmode = \"observe\"\n{BATCH}pids = 9\ncpu = {{ max = \"5%\" }}\n")).unwrap();
    assert_eq!(host.text("cg/weir/batch/pids.max"), "max");
    assert_eq!(host.text("cg/weir/batch/cpu.max"), "max 100000");
    assert!(groups.notes().iter().any(|note| note.contains("mode is observe")), "{:?}", groups.notes());
    assert_eq!(groups.statuses()[0].limits, ["cpu 5%", "processes 9"]);
}

#[test]
fn a_host_without_cgroups_is_told_what_to_mount() {
    let host = MadeUp::new(&[]);
    let error = host.start(BATCH).err().unwrap().to_string();
    assert!(error.contains("mount -t cgroup2"), "{error}");
}

#[test]
fn a_delegated_unit_is_where_groups_go() {
    let host = unified();
    let parent = "cg/system.slice/weir-groups.service";
    host.file(&format!("{parent}/cgroup.subtree_control"), "cpu");
    host.file("cg/system.slice/cgroup.subtree_control", "cpu cpuset io memory pids");
    host.file(&format!("{parent}/weir/cgroup.subtree_control"), "");
    host.file(&format!("{parent}/weir/batch/pids.max"), "");
    let groups = host.start(&format!("{BATCH}pids = 7\n")).unwrap();
    assert_eq!(host.text(&format!("{parent}/weir/batch/pids.max")), "7");
    assert_eq!(groups.statuses()[0].cgroup, "/system.slice/weir-groups.service/weir/batch");
    assert_eq!(groups.tree.group_of("/system.slice/weir-groups.service/weir/batch/x"), Some("batch"));
    assert_eq!(groups.tree.group_of("/weirdo/batch"), None);
}

#[test]
fn usage_is_read_from_both_versions() {
    let host = unified();
    host.file("cg/weir/batch/cpu.stat", "usage_usec 2500000\nuser_usec 1\nthrottled_usec 500000\n");
    host.file("cg/weir/batch/memory.current", "4096\n");
    host.file("cg/weir/batch/memory.events", "low 0\noom 3\noom_kill 2\n");
    host.file("cg/weir/batch/io.stat", "254:0 rbytes=10 wbytes=20 rios=1 wios=2\n");
    host.file("cg/weir/batch/pids.current", "3\n");
    host.file("cg/weir/batch/cpu.pressure", "some avg10=1.50 avg60=0.00 avg300=0.00 total=1\n");
    let groups = host.start(&format!("{BATCH}cpu = {{ max = \"50%\" }}\n")).unwrap();
    let status = &groups.statuses()[0];
    assert_eq!((status.cpu.usage_seconds, status.cpu.throttled_seconds), (2.5, 0.5));
    assert_eq!(status.cpu.max_percent, Some(50.0));
    assert_eq!((status.memory.current_bytes, status.memory.oom_kills), (4096, 2));
    assert_eq!(groups.oom_kills(), [("batch".to_owned(), 2)]);
    assert_eq!((status.io[0].device.as_str(), status.io[0].read_bytes, status.io[0].write_bytes), ("254:0", 10, 20));
    assert_eq!((status.pids_current, status.pressure.cpu, status.frozen), (3, Some(1.5), false));
}

#[test]
fn an_emergency_is_one_write_and_a_wrong_name_is_told() {
    let host = unified();
    host.file("cg/weir/batch/cgroup.freeze", "0");
    host.file("cg/weir/batch/cgroup.kill", "");
    let groups = host.start(BATCH).unwrap();
    groups.emergency("batch", Emergency::Freeze).unwrap();
    assert!(groups.statuses()[0].frozen);
    groups.emergency("batch", Emergency::Thaw).unwrap();
    assert!(!groups.statuses()[0].frozen);
    groups.emergency("batch", Emergency::Kill).unwrap();
    assert_eq!(host.text("cg/weir/batch/cgroup.kill"), "1");
    let error = groups.emergency("bacth", Emergency::Kill).unwrap_err().to_string();
    assert!(error.contains("no group \"bacth\"; there is batch"), "{error}");
}
