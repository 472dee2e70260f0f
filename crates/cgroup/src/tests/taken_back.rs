//! The end of a group: limits in place, and processes that go back.

use std::fs;

use config::group::CpuShare;

use super::made_up::{BATCH, unified, untouched};
use crate::account::Enforcement;

#[test]
fn limits_in_place_are_put_back_unless_somebody_else_wrote_there() {
    let host = untouched();
    let group = "[[group]]\nname = \"batch\"\ncgroup = \"/user.slice/*\"\n";
    for (path, file, content) in [
        ("a", "pids.max", "max\n"),
        ("a", "memory.max", "4096\n"),
        ("b", "pids.max", "max\n"),
        ("b", "memory.max", "99999999\n"),
        ("b/inner", "pids.max", "max\n"),
    ] {
        host.file(&format!("cg/user.slice/{path}/{file}"), content);
    }
    host.file("cg/user.slice/cgroup.subtree_control", "memory\n");
    let mut groups = host
        .start(&format!("{group}pids = 9\nmemory = {{ max = \"2MiB\" }}\n"))
        .unwrap();
    for path in ["a", "b"] {
        assert_eq!(
            host.text(&format!("cg/user.slice/{path}/pids.max"))
                .trim_end(),
            "9",
            "{path}"
        );
    }
    assert_eq!(
        host.text("cg/user.slice/b/inner/pids.max"),
        "max\n",
        "the outermost is limited"
    );
    assert_eq!(
        host.text("cg/user.slice/cgroup.subtree_control"),
        "+pids",
        "only what is needed, and not there yet"
    );
    assert_eq!(
        host.text("cg/user.slice/a/memory.max"),
        "4096\n",
        "lower already"
    );
    assert_eq!(
        host.text("cg/user.slice/b/memory.max"),
        "99999999\n",
        "somebody else's"
    );
    let notes = groups.view().notes().join("\n");
    assert!(
        notes.contains("/user.slice/b: memory.max is 99999999 already, set by another program"),
        "{notes}"
    );
    assert!(!notes.contains("/user.slice/a"), "{notes}");
    assert_eq!(
        groups.view().statuses()[0].enforcement,
        Enforcement::Partial
    );
    // The next agent has the record of Weir's limits.
    drop(groups);
    groups = host.start(&format!("{group}pids = 12\n")).unwrap();
    assert_eq!(host.text("cg/user.slice/a/pids.max").trim_end(), "12");
    host.file("cg/user.slice/b/pids.max", "3\n");
    assert!(groups.give_back().is_empty());
    assert_eq!(host.text("cg/user.slice/a/pids.max"), "max");
    assert_eq!(
        host.text("cg/user.slice/b/pids.max"),
        "3\n",
        "somebody else wrote there since"
    );
    assert!(!host.path("origins.limits.json").exists());
}

/// The agent is killed between its writes: the next one has the record that was there by then.
#[test]
fn a_limit_in_place_is_recorded_before_it_is_written() {
    const RECORD: &str = "origins.limits.json";
    let host = untouched();
    let group = "[[group]]\nname = \"g\"\ncgroup = \"/a\"\nmemory = { max = \"2MB\" }\npids = 9\n";
    let pipe = host.path("cg/a/memory.max");
    host.file("cg/a/pids.max", "max\n");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // Each open of the pipe waits for the other side.
    let _guard = super::without_new_processes();
    let (record, value) = std::thread::scope(|scope| {
        let agent = scope.spawn(|| drop(host.start(group).unwrap()));
        fs::write(&pipe, "max\n").unwrap();
        let mut written = fs::File::open(&pipe).unwrap();
        let record = fs::read_to_string(host.path(RECORD));
        let mut value = String::new();
        std::io::Read::read_to_string(&mut written, &mut value).unwrap();
        drop(written);
        // In whole pages.
        fs::write(&pipe, "1998848\n").unwrap();
        agent.join().unwrap();
        (record, value)
    });
    assert_eq!(value, "2000000");
    let record = record.expect("no record while the first limit is written");
    fs::remove_file(&pipe).unwrap();
    for pids in ["9\n", "max\n"] {
        host.file(RECORD, &record);
        host.file("cg/a/memory.max", "1998848\n");
        host.file("cg/a/pids.max", pids);
        let mut groups = host.start(group).unwrap();
        let notes = groups.view().notes().join("\n");
        assert!(!notes.contains("set by another program"), "{notes}");
        assert_eq!(host.text("cg/a/memory.max").lines().next(), Some("2000000"));
        assert!(groups.give_back().is_empty());
        for file in ["memory.max", "pids.max"] {
            let now = host.text(&format!("cg/a/{file}"));
            assert_eq!(now.lines().next(), Some("max"), "{file}");
        }
        // Nor does a kill leave them for a config without these limits.
        drop(groups);
        host.file(RECORD, &record);
        host.file("cg/a/memory.max", "1998848\n");
        drop(host.start(&group.replace("/a", "/b")).unwrap());
        assert_eq!(host.text("cg/a/memory.max"), "max");
    }
}

/// Run with a service manager that records its requests.
#[test]
fn an_elastic_limit_in_place_is_taken_over_from_an_agent_that_was_killed() {
    let host = untouched();
    let file = "cg/user.slice/a/cpu.max";
    host.file(file, "max 100000\n");
    host.file("cg/user.slice/cgroup.subtree_control", "cpu\n");
    let group = "[[group]]\nname = \"g\"\ncgroup = \"/user.slice/*\"\ncpu = { max = \"50%\", elastic = true }\n";
    let mut groups = host.start(group).unwrap();
    groups.set_cpu_max(0, CpuShare::from_percent(175.0));
    assert_eq!(host.text(file), "175000 100000");
    drop(groups);
    let mut groups = host.start(group).unwrap();
    assert!(
        host.text(file).starts_with("50000 100000"),
        "{}",
        host.text(file)
    );
    let notes = groups.view().notes().join("\n");
    assert!(!notes.contains("set by another program"), "{notes}");
    assert!(groups.give_back().is_empty());
    assert!(
        host.text(file).starts_with("max 100000"),
        "{}",
        host.text(file)
    );
}

#[test]
fn processes_are_put_in_and_sent_back_where_they_came_from() {
    let host = unified();
    host.process(50, "sh nightly", "0::/home\n");
    host.process(51, "sh other", "0::/user.slice/a\n");
    host.process(52, "sh other", "0::/elsewhere\n");
    host.file("cg/home/cgroup.procs", "");
    host.file("cg/user.slice/a/pids.max", "max\n");
    host.file("cg/user.slice/cgroup.subtree_control", "pids\n");
    let groups = host.start(&format!("{BATCH}pids = 9\n")).unwrap();
    assert_eq!(host.text("cg/weir/batch/cgroup.procs"), "50");
    assert_eq!(
        host.text("cg/user.slice/a/pids.max"),
        "9",
        "it is limited where it is"
    );
    assert!(
        groups.view().notes().is_empty(),
        "{:?}",
        groups.view().notes()
    );
    let status = &groups.view().statuses()[0];
    assert_eq!(
        (status.cgroup.as_str(), status.enforcement),
        ("/weir/batch", Enforcement::Full)
    );
    assert_eq!(status.members[1].cgroup, "/user.slice/a");
    drop(groups);
    // The next agent has the origins, by which processes in the group match.
    host.file("cg/weir/batch/cgroup.procs", "50\n");
    host.file("proc/50/cgroup", "0::/weir/batch\n");
    let groups = host.start(&format!("{BATCH}pids = 9\n")).unwrap();
    assert_eq!(
        host.text("cg/weir/batch/cgroup.procs"),
        "50\n",
        "nobody had to be moved again"
    );
    groups.send_home(50).unwrap();
    assert_eq!(host.text("cg/home/cgroup.procs"), "50");
}

#[test]
fn a_child_whose_parent_has_ended_goes_back_only_if_its_origin_is_certain() {
    for (others, earlier) in [("/home", ""), ("/elsewhere", ""), ("/home", "51\n")] {
        let host = unified();
        for cgroup in ["home", "elsewhere", ""] {
            host.file(&format!("cg/{cgroup}/cgroup.procs"), "");
        }
        host.process(50, "sh nightly", "0::/home\n");
        host.process(60, "sh nightly", &format!("0::{others}\n"));
        host.file("cg/weir/batch/cgroup.procs", earlier);
        drop(host.start(&format!("{BATCH}pids = 9\n")).unwrap());
        for pid in [50, 60] {
            fs::remove_dir_all(host.path(&format!("proc/{pid}"))).unwrap();
        }
        host.process(51, "sh other", "0::/weir/batch\n");
        host.file("cg/weir/batch/cgroup.procs", "51\n");
        let groups = host
            .start("[[group]]\nname = \"g\"\ncommand = \"*daily*\"\npids = 9\n")
            .unwrap();
        assert_eq!(host.text("cg/cgroup.procs"), "", "the root has no limits");
        let notes = groups.view().notes().join("\n");
        let stays = notes.contains("process 51 stays in /weir/batch, without limits");
        if others == "/home" && earlier.is_empty() {
            assert_eq!(host.text("cg/home/cgroup.procs"), "51");
            assert!(!stays, "{notes}");
        } else {
            assert_eq!(host.text("cg/home/cgroup.procs"), "");
            assert!(stays, "{notes}");
        }
    }
}
