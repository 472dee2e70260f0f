//! Limits and processes in the files of cgroups.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use config::parse;

use super::made_up::{BATCH, MadeUp, unified, untouched, wait_for_threads};
use crate::Emergency;
use crate::groups::Groups;
use crate::links::Links;
use crate::properties;
use crate::tree::Cpuset;
use crate::units::Value;

#[test]
fn limits_are_written_to_their_files_under_v2() {
    let host = unified();
    let limits = "cpu = { max = \"50%\", weight = 25 }\nmemory = { high = \"1MiB\", max = \"2MiB\" }\ncpus = \"0\"\npids = 9\n";
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
    // The disk limit of an earlier config is removed. (A fake file keeps its other lines.)
    assert!(
        host.text("cg/weir/batch/io.max")
            .starts_with("9:9 rbps=max wbps=max riops=max wiops=max")
    );
    assert!(
        groups.view().notes()[0].contains("no process has matched yet (command *nightly*"),
        "{:?}",
        groups.view().notes()
    );
}

#[test]
fn a_user_that_does_not_exist_at_the_start_matches_later() {
    let host = unified();
    host.process(50, "sh", "0::/home\n");
    let text = "[[group]]\nname = \"batch\"\nuser = \"weir-has-no-such-user\"\npids = 9\n";
    let mut groups = host.start(text).unwrap();
    let is_noted = |groups: &Groups| {
        let notes = groups.view().notes().join("\n");
        notes.contains("unknown user \"weir-has-no-such-user\"")
    };
    assert!(is_noted(&groups));
    for (look_up, is_known) in [
        ((|_| None) as fn(&str) -> Option<u32>, false),
        (|_| Some(nix::unistd::geteuid().as_raw()), true),
    ] {
        groups.resolution.look_up = look_up;
        groups.look_up_users();
        while groups.take_users() {
            std::thread::yield_now();
        }
        groups.scan();
        assert_eq!(is_noted(&groups), !is_known);
        let members = if is_known { "50" } else { "" };
        assert_eq!(host.text("cg/weir/batch/cgroup.procs"), members);
        let limit = if is_known { "9" } else { "" };
        assert_eq!(host.text("cg/weir/batch/pids.max"), limit);
    }
    assert!(groups.matchers.unknown_users().is_empty());
}

/// As on NFS without its server.
#[test]
fn a_path_that_does_not_respond_blocks_neither_the_start_nor_other_paths() {
    static GATE: Mutex<()> = Mutex::new(());
    let gate = GATE.lock().unwrap();
    let host = unified();
    host.process(50, "x", "0::/home\n");
    let text = "[[group]]\nname = \"batch\"\nmatch = [{ exe = \"/dead/x\" }, { exe = \"/link/sh\" }]\npids = 9\n";
    let mut groups = host.start(text).unwrap();
    groups.resolution.links = Links::default();
    groups.resolution.links.follow = |path| {
        if path.starts_with("/dead") {
            drop(GATE.lock());
        }
        Some("/bin/sh".into())
    };
    let members = || host.text("cg/weir/batch/cgroup.procs");
    groups.follow_links(Duration::from_millis(10));
    groups.scan();
    assert_eq!(members(), "", "the thread waits for the first path");
    // Intervals pass.
    while members() != "50" || groups.resolution.links.threads() > 1 {
        groups.resolution.links.age(Duration::from_secs(5));
        groups.follow_links(Duration::from_millis(10));
        groups.scan();
    }
    let note = "the file system of exe /dead/x does not respond";
    let notes = |groups: &Groups| groups.view().notes().join("\n");
    assert!(notes(&groups).contains(note), "{}", notes(&groups));
    drop(gate);
    while groups.resolution.links.threads() > 0 {
        groups.follow_links(Duration::from_millis(10));
    }
    assert_eq!(notes(&groups), "");
}

#[test]
fn a_process_under_limits_stays_unless_it_is_forced() {
    let host = unified();
    host.process(50, "sh nightly", "0::/home\n");
    host.file("cg/home/cgroup.procs", "");
    host.file("cg/home/memory.max", "67108864\n");
    for moving in ["false", "true"] {
        let groups = host
            .start(&format!("{BATCH}pids = 9\nmove = {moving}\n"))
            .unwrap();
        assert_eq!(host.text("cg/weir/batch/cgroup.procs"), "", "{moving}");
        let status = &groups.view().statuses()[0];
        let [stay] = status.not_enforced.as_slice() else {
            panic!("{status:?}")
        };
        assert_eq!(
            (stay.pids.as_slice(), stay.cgroup.as_str()),
            ([50].as_slice(), "/home")
        );
        assert!(
            stay.reason.contains("memory.max 67108864"),
            "{}",
            stay.reason
        );
        assert!(
            groups
                .view()
                .notes()
                .iter()
                .any(|note| note.contains("partly enforced: 1 process"))
        );
    }
    let groups = host
        .start(&format!("{BATCH}pids = 9\nmove = \"force\"\n"))
        .unwrap();
    assert_eq!(host.text("cg/weir/batch/cgroup.procs"), "50");
    drop(groups);
    // Its cgroup no longer exists; the one above it does.
    fs::remove_dir_all(host.path("cg/home")).unwrap();
    host.file("cg/cgroup.procs", "");
    host.file("proc/50/cgroup", "0::/weir/batch\n");
    let groups = host
        .start(&format!("{BATCH}pids = 9\nmove = \"force\"\n"))
        .unwrap();
    groups.send_home(50).unwrap();
    assert_eq!(host.text("cg/cgroup.procs"), "50");
}

#[test]
fn two_agents_do_not_share_a_parent() {
    let host = unified();
    let first = host.start(BATCH).unwrap();
    let error = host.start(BATCH).err().unwrap().to_string();
    assert!(
        error.contains("another agent") && error.contains("[agent] cgroup"),
        "{error}"
    );
    drop(first);
    host.start(BATCH).unwrap();
}

#[test]
fn a_controller_that_fails_spoils_neither_the_others_nor_other_groups() {
    let host = unified();
    // Not writable: the memory controller is never enabled.
    fs::remove_file(host.path("cg/weir/cgroup.subtree_control")).unwrap();
    fs::create_dir(host.path("cg/weir/cgroup.subtree_control")).unwrap();
    let groups = host
        .start(&format!("{BATCH}pids = 9\nmemory = {{ max = \"2MiB\" }}\n"))
        .unwrap();
    assert_eq!(host.text("cg/weir/batch/pids.max"), "9");
    assert_eq!(host.text("cg/weir/batch/memory.max"), "2097152");
    let notes = groups.view().notes().join("\n");
    assert!(notes.contains("cgroup.subtree_control"), "{notes}");
}

#[test]
fn a_runtime_that_fails_is_a_note_of_groups_of_containers_only() {
    let host = unified();
    // A socket that nobody listens on.
    host.file("docker.sock", "");
    let mut groups = host
        .start(
            "[[group]]\nname = \"web\"\ncontainer = \"web-*\"\npids = 9\n\
             [[group]]\nname = \"batch\"\nslice = \"batch.slice\"\npids = 9\n",
        )
        .unwrap();
    wait_for_threads(&mut groups);
    let notes = groups.view().notes();
    let of = |group: &str| {
        let start = format!("group {group}: listing the containers");
        notes.iter().filter(|note| note.starts_with(&start)).count()
    };
    assert_eq!((of("web"), of("batch")), (1, 0), "{notes:?}");
}

#[test]
fn containers_are_limited_as_they_come_and_forgotten_as_they_go() {
    let host = untouched();
    let id = "0123456789abcdef".repeat(4);
    let listener = std::os::unix::net::UnixListener::bind(host.path("docker.sock")).unwrap();
    let body = format!(r#"[{{"Id":"{id}","Names":["/web1"],"Labels":{{}}}}]"#);
    std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        for mut client in listener.incoming().flatten() {
            let _ = client.read(&mut [0; 1024]);
            let _ = client.write_all(
                format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                )
                .as_bytes(),
            );
        }
    });
    let mut groups = host
        .start("[[group]]\nname = \"g\"\ncontainer = \"web*\"\npids = 7\n")
        .unwrap();
    wait_for_threads(&mut groups);
    assert!(groups.view().statuses()[0].members.is_empty());
    host.file("cg/docker/cgroup.subtree_control", "pids\n");
    host.file(&format!("cg/docker/{id}/pids.max"), "max\n");
    host.process(70, "sh x", &format!("0::/docker/{id}\n"));
    groups.started(&common::group::Started {
        process: 70,
        parent: 0,
    });
    assert_eq!(
        host.text(&format!("cg/docker/{id}/pids.max")).trim_end(),
        "7"
    );
    let status = &groups.view().statuses()[0];
    assert_eq!(
        (
            status.members[0].kind.as_str(),
            status.members[0].name.as_str()
        ),
        ("container", "web1")
    );
    fs::remove_dir_all(host.path(&format!("cg/docker/{id}"))).unwrap();
    groups.tick(Duration::from_millis(1));
    assert!(groups.view().statuses()[0].members.is_empty());
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
    for file in [
        "cpu.cfs_quota_us",
        "cpu.cfs_period_us",
        "cpu.shares",
        "cgroup.procs",
    ] {
        host.file(&format!("cg/cpu,cpuacct/weir/batch/{file}"), "");
    }
    host.file("cg/memory/weir/batch/memory.limit_in_bytes", "");
    host.file("cg/unified/weir/batch/pids.max", "");
    let limits = "cpu = { max = \"150%\", weight = 200 }\nmemory = { high = \"1MiB\", max = \"2MiB\" }\ncpus = \"0\"\npids = 9\n";
    let groups = host.start(&format!("{BATCH}{limits}")).unwrap();
    assert_eq!(
        host.text("cg/cpu,cpuacct/weir/batch/cpu.cfs_quota_us"),
        "150000"
    );
    assert_eq!(host.text("cg/cpu,cpuacct/weir/batch/cpu.shares"), "2048");
    assert_eq!(
        host.text("cg/memory/weir/batch/memory.limit_in_bytes"),
        "2097152"
    );
    assert_eq!(host.text("cg/unified/weir/batch/pids.max"), "9");
    assert_eq!(host.text("cg/unified/weir/cgroup.subtree_control"), "+pids");
    let notes = groups.view().notes().join("\n");
    assert!(notes.contains("memory high is not enforced"), "{notes}");
    assert!(
        notes.contains("no cpuset controller in any cgroup hierarchy: cpus is not enforced"),
        "{notes}"
    );
    // Two controllers that are mounted together are one hierarchy.
    assert_eq!(groups.tree.roots(Cpuset::Any).len(), 4);
}

#[test]
fn a_refused_value_is_reported_with_its_file_and_others_apply() {
    let host = unified();
    fs::remove_file(host.path("cg/weir/batch/memory.max")).unwrap();
    let limits = "memory = { max = \"2MiB\" }\npids = 9\nio = [{ device = \"/dev/weir-none\", read = \"1MB/s\" }]\n";
    let groups = host
        .start(&format!("{BATCH}{limits}cpu = {{ max = \"800000%\" }}\n"))
        .unwrap();
    assert_eq!(host.text("cg/weir/batch/pids.max"), "9");
    let notes = groups.view().notes().join("\n");
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
fn two_paths_on_one_disk_have_the_lower_limit_of_both() {
    let host = unified();
    for path in ["a", "b"] {
        fs::create_dir(host.path(path)).unwrap();
    }
    let device = fs::metadata(host.path("a")).unwrap().dev();
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    host.file(&format!("sys/dev/block/{major}:{minor}/dev"), "254:0\n");
    let (a, b) = (host.path("a"), host.path("b"));
    let text = format!(
        "{BATCH}io = [{{ device = {a:?}, read = \"5MB/s\", write = \"7MB/s\" }}, \
         {{ device = {b:?}, read = \"9MB/s\", write = \"3MB/s\", read_ops = \"80/s\" }}]\n"
    );
    host.start(&text).unwrap();
    // A fake file keeps its other lines.
    assert_eq!(
        host.text("cg/weir/batch/io.max").lines().next(),
        Some("254:0 rbps=5000000 wbps=3000000 riops=80 wiops=max")
    );
    let config = parse(Path::new("limits.toml"), &text).unwrap().config;
    let (properties, problems) = properties::properties(&host.host(), &config.groups[0]);
    assert!(problems.is_empty(), "{problems:?}");
    for (name, limit) in [
        ("IOReadBandwidthMax", 5_000_000),
        ("IOWriteBandwidthMax", 3_000_000),
        ("IOReadIOPSMax", 80),
    ] {
        let device = ("/dev/block/254:0".to_owned(), limit);
        assert_eq!(properties[name], Value::Devices(vec![device]), "{name}");
    }
}

#[test]
fn another_config_changes_limits_without_moving_anybody_and_ends_groups_that_are_no_more() {
    let host = unified();
    host.file("cg/weir/gone/cgroup.freeze", "1");
    host.process(50, "sh nightly", "0::/weir/batch\n");
    host.start(&format!("{BATCH}pids = 9\n")).unwrap();
    assert_eq!(
        host.text("cg/weir/gone/cgroup.freeze"),
        "0",
        "a group that is no more is thawed"
    );
    host.start(&format!("{BATCH}pids = 12\n")).unwrap();
    assert!(host.text("cg/weir/batch/pids.max").starts_with("12"));
    assert_eq!(
        host.text("cg/weir/batch/cgroup.procs"),
        "",
        "it was there already"
    );
}

#[test]
fn observing_holds_a_group_to_nothing() {
    let host = unified();
    let groups = host
        .start(&format!(
            "[agent]\nmode = \"observe\"\n{BATCH}pids = 9\ncpu = {{ max = \"5%\" }}\n"
        ))
        .unwrap();
    assert_eq!(host.text("cg/weir/batch/pids.max"), "max");
    assert_eq!(host.text("cg/weir/batch/cpu.max"), "max 100000");
    assert!(
        groups
            .view()
            .notes()
            .iter()
            .any(|note| note.contains("mode is observe")),
        "{:?}",
        groups.view().notes()
    );
    assert_eq!(
        groups.view().statuses()[0].limits,
        ["cpu 5%", "processes 9"]
    );
}

#[test]
fn a_host_without_cgroups_is_an_error_with_the_mount_command() {
    let host = MadeUp::new(&[]);
    let error = host.start(BATCH).err().unwrap().to_string();
    assert!(error.contains("mount -t cgroup2"), "{error}");
}

#[test]
fn usage_is_read_from_both_versions() {
    let host = unified();
    host.file(
        "cg/weir/batch/cpu.stat",
        "usage_usec 2500000\nuser_usec 1\nthrottled_usec 500000\n",
    );
    host.file("cg/weir/batch/memory.current", "4096\n");
    host.file("cg/weir/batch/memory.events", "low 0\noom 3\noom_kill 2\n");
    host.file(
        "cg/weir/batch/io.stat",
        "254:0 rbytes=10 wbytes=20 rios=1 wios=2\n",
    );
    host.file("cg/weir/batch/pids.current", "3\n");
    host.file("cg/weir/batch/pids.events", "max 7\n");
    host.file(
        "cg/weir/batch/cpu.pressure",
        "some avg10=1.50 avg60=0.00 avg300=0.00 total=1\n",
    );
    let groups = host
        .start(&format!("{BATCH}pids = 5\ncpu = {{ max = \"50%\" }}\n"))
        .unwrap();
    let status = &groups.view().statuses()[0];
    assert_eq!(
        (status.cpu.usage_seconds, status.cpu.throttled_seconds),
        (2.5, 0.5)
    );
    assert_eq!(status.cpu.max_percent, Some(50.0));
    assert_eq!(
        (status.memory.current_bytes, status.memory.oom_kills),
        (4096, 2)
    );
    assert_eq!(groups.view().oom_kills(), [("batch".to_owned(), 2)]);
    assert_eq!(groups.view().pids_refused(), [("batch".to_owned(), 7)]);
    assert_eq!(
        (
            status.io[0].device.as_str(),
            status.io[0].read_bytes,
            status.io[0].write_bytes
        ),
        ("254:0", 10, 20)
    );
    assert_eq!((status.pids_current, status.pids_refused), (3, 7));
    assert_eq!((status.pressure.cpu, status.frozen), (Some(1.5), false));
}

#[test]
fn an_emergency_is_one_write_and_a_wrong_name_is_an_error() {
    let host = unified();
    host.file("cg/weir/batch/cgroup.freeze", "0");
    host.file("cg/weir/batch/cgroup.kill", "");
    let groups = host.start(BATCH).unwrap();
    groups.view().emergency("batch", Emergency::Freeze).unwrap();
    assert!(groups.view().statuses()[0].frozen);
    groups.view().emergency("batch", Emergency::Thaw).unwrap();
    assert!(!groups.view().statuses()[0].frozen);
    groups.view().emergency("batch", Emergency::Kill).unwrap();
    assert_eq!(host.text("cg/weir/batch/cgroup.kill"), "1");
    let error = groups
        .view()
        .emergency("bacth", Emergency::Kill)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("unknown group \"bacth\" (available: batch)"),
        "{error}"
    );
}

#[test]
fn an_emergency_spares_the_agent_and_the_first_process() {
    const PLACES: [&str; 2] = ["/system.slice", "/init.scope"];
    let host = untouched();
    for (pid, own) in [(std::process::id(), "/weir.service"), (1, "")] {
        let place = PLACES[usize::from(pid == 1)];
        host.process(pid, "x", &format!("0::{place}{own}\n"));
        for file in ["cgroup.freeze", "cgroup.kill"] {
            host.file(&format!("cg{place}/{file}"), "");
            host.file(&format!("cg/a/{file}"), "");
        }
    }
    for (place, whom) in PLACES
        .into_iter()
        .zip(["this agent", "the host's first process"])
    {
        // `/a` comes first, and is not frozen either.
        let matchers = format!("match = [{{ cgroup = \"/a\" }}, {{ cgroup = {place:?} }}]");
        let groups = host
            .start(&format!("[[group]]\nname = \"g\"\n{matchers}\npids = 9\n"))
            .unwrap();
        let view = groups.view();
        assert_eq!(view.groups[0].members.len(), 2);
        for what in [Emergency::Freeze, Emergency::Kill] {
            let error = view.emergency("g", what).unwrap_err().to_string();
            let contains = format!(" {place} is not supported: it contains {whom};");
            assert!(error.contains(&contains), "{error}");
        }
        for file in ["cgroup.freeze", "cgroup.kill"] {
            assert_eq!(host.text(&format!("cg{place}/{file}")), "");
            assert_eq!(host.text(&format!("cg/a/{file}")), "");
        }
        view.emergency("g", Emergency::Thaw).unwrap();
        assert_eq!(host.text(&format!("cg{place}/cgroup.freeze")), "0");
        host.file(&format!("cg{place}/cgroup.freeze"), "");
        host.file("cg/a/cgroup.freeze", "");
    }
}

#[test]
fn a_damaged_record_is_an_error_of_the_end() {
    let made_up = untouched();
    made_up.file("origins.limits.json", "{");
    let text = "[[group]]\nname = \"g\"\ncommand = \"none\"\npids = 9\n";
    let mut groups = made_up.start(text).unwrap();
    let problems: Vec<String> = groups.give_back().iter().map(ToString::to_string).collect();
    assert!(
        problems
            .iter()
            .any(|problem| problem.contains("origins.limits.json.damaged")),
        "{problems:?}"
    );
}
