//! Limits of cgroups that are limited in place, and of Weir's own.

use std::fs;
use std::time::{Duration, Instant};

use super::{notes, reports};
use crate::account::Enforcement;
use crate::error::GroupsError;
use crate::tests::made_up::{MadeUp, unified, untouched};

#[test]
fn a_lifted_limit_of_a_cgroup_is_set_again_and_the_newer_value_restored() {
    for (lifted, restored) in [("max", "max"), ("4194304", "4194304")] {
        let host = untouched();
        let file = "cg/user.slice/a/memory.max";
        host.file(file, "max\n");
        host.file("cg/user.slice/cgroup.subtree_control", "memory\n");
        let group =
            "[[group]]\nname = \"g\"\ncgroup = \"/user.slice/*\"\nmemory = { max = \"2MiB\" }\n";
        let mut groups = host.start(group).unwrap();
        groups.check_limits(Instant::now());
        host.file(file, &format!("{lifted}\n"));
        groups.check_limits(Instant::now());
        assert_eq!(host.text(file), "2097152");
        assert_eq!(reports(&mut groups).len(), 1);
        assert_eq!(groups.view().statuses()[0].enforcement, Enforcement::Full);
        // The next agent has the record.
        drop(groups);
        let mut groups = host.start(group).unwrap();
        groups.check_limits(Instant::now());
        assert_eq!(notes(&groups), "");
        host.file(file, "1048576\n");
        groups.check_limits(Instant::now());
        assert_eq!(host.text(file), "1048576\n", "a lower value stays");
        host.file(file, &format!("{lifted}\n"));
        groups.check_limits(Instant::now());
        assert_eq!(host.text(file), "2097152");
        assert!(groups.give_back().is_empty());
        assert_eq!(host.text(file), restored);
    }
}

#[test]
fn a_limit_of_another_program_that_was_enough_is_reported_once_it_is_raised() {
    let host = untouched();
    let file = "cg/user.slice/a/memory.max";
    host.file(file, "1048576\n");
    host.file("cg/user.slice/cgroup.subtree_control", "memory\n");
    let group =
        "[[group]]\nname = \"g\"\ncgroup = \"/user.slice/*\"\nmemory = { max = \"2MiB\" }\n";
    let mut groups = host.start(group).unwrap();
    groups.check_limits(Instant::now());
    assert_eq!(groups.view().statuses()[0].enforcement, Enforcement::Full);
    host.file(file, "4194304\n");
    groups.check_limits(Instant::now());
    assert_eq!(host.text(file), "4194304\n");
    assert_eq!(
        groups.view().statuses()[0].enforcement,
        Enforcement::Partial
    );
    let notes = notes(&groups);
    assert!(
        notes.contains("memory.max is 4194304 already, set by another program"),
        "{notes}"
    );
    host.file(file, "1048576\n");
    groups.check_limits(Instant::now());
    assert_eq!(groups.view().statuses()[0].enforcement, Enforcement::Full);
    host.file(file, "4194304\n");
    assert!(groups.give_back().is_empty());
    assert_eq!(host.text(file), "4194304\n");
}

#[test]
fn a_limit_of_weirs_own_cgroup_is_set_again() {
    let host = unified();
    host.process(50, "sh nightly", "0::/home\n");
    host.file("cg/home/cgroup.procs", "");
    let group =
        "[[group]]\nname = \"batch\"\ncommand = \"*nightly*\"\npids = 9\ncpu = { max = \"50%\" }\n";
    let mut groups = host.start(group).unwrap();
    groups.check_limits(Instant::now());
    host.file("cg/weir/batch/pids.max", "max\n");
    host.file("cg/weir/batch/cpu.max", "20000 100000\n");
    groups.check_limits(Instant::now());
    assert_eq!(host.text("cg/weir/batch/pids.max"), "9");
    assert_eq!(
        host.text("cg/weir/batch/cpu.max"),
        "20000 100000\n",
        "a lower value stays"
    );
    let found = reports(&mut groups);
    assert!(
        found.len() == 1 && found[0].starts_with("batch: cgroup /weir/batch pids.max"),
        "{found:?}"
    );
}

/// The kernel refuses the write, as for lack of memory.
#[test]
fn a_limit_that_could_not_be_written_is_set_once_it_can() {
    let host = untouched();
    let file = "cg/a/pids.max";
    host.file(file, "max\n");
    let group = "[[group]]\nname = \"g\"\ncgroup = \"/a\"\npids = 9\n";
    let mut groups = host.start(group).unwrap();
    let mut now = Instant::now();
    groups.check_limits(now);
    // A file of the kernel that root cannot write.
    fs::remove_file(host.path(file)).unwrap();
    std::os::unix::fs::symlink("/proc/sys/kernel/ngroups_max", host.path(file)).unwrap();
    let held = groups.members[0].held.clone();
    for _ in 0..2 {
        let (tree, host) = (&groups.tree, &groups.host);
        let problems = groups.in_place.set_cgroup(tree, host, "/a", &held);
        assert!(
            matches!(problems[..], [GroupsError::Write { .. }]),
            "{problems:?}"
        );
    }
    for _ in 0..2 {
        groups.check_limits(now);
        now += Duration::from_secs(60);
        let notes = notes(&groups);
        assert!(notes.contains("writing \"9\" to"), "{notes}");
        assert!(!notes.contains("set by another program"), "{notes}");
    }
    fs::remove_file(host.path(file)).unwrap();
    host.file(file, "65536\n");
    groups.check_limits(now);
    assert_eq!(host.text(file), "9");
    assert_eq!(notes(&groups), "");
    assert!(groups.give_back().is_empty());
    assert_eq!(host.text(file), "65536");
}

/// A host with version 1 of the controllers of CPU time and memory, and a container's cgroup.
fn old_host(quota: &str, period: &str, both: &str) -> MadeUp {
    let host = MadeUp::new(&[
        ("cgroup", "cg/cpu", "rw,cpu"),
        ("cgroup", "cg/memory", "rw,memory"),
        ("cgroup2", "cg/unified", "rw"),
    ]);
    host.file("cg/unified/cgroup.controllers", "pids\n");
    host.file("cg/unified/a/cgroup.procs", "");
    host.file("cg/cpu/a/cpu.cfs_quota_us", &format!("{quota}\n"));
    host.file("cg/cpu/a/cpu.cfs_period_us", &format!("{period}\n"));
    host.file("cg/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
    host.file(
        "cg/memory/a/memory.memsw.limit_in_bytes",
        &format!("{both}\n"),
    );
    host
}

/// `docker update --cpu-period 200000 --cpu-quota 60000` is 30 %.
#[test]
fn a_quota_of_v1_is_compared_and_changed_with_its_period() {
    const NONE: &str = "9223372036854771712";
    let group = "[[group]]\nname = \"g\"\ncgroup = \"/a\"\ncpu = { max = \"50%\" }\nmemory = { max = \"2MiB\", swap_max = \"1MiB\" }\n";
    let cpu = |host: &MadeUp| {
        let text = |file: &str| host.text(&format!("cg/cpu/a/{file}")).trim().to_owned();
        format!("{} {}", text("cpu.cfs_quota_us"), text("cpu.cfs_period_us"))
    };
    let both = |host: &MadeUp| {
        let text = host.text("cg/memory/a/memory.memsw.limit_in_bytes");
        text.trim().to_owned()
    };
    // Another program's at the first contact: lower, higher and none.
    for (theirs, in_effect, memory, memory_in_effect, is_noted) in [
        ("60000 200000", "60000 200000", "1048576", "1048576", false),
        ("40000 50000", "40000 50000", "9437184", "9437184", true),
        ("-1 50000", "50000 100000", NONE, "3145728", false),
    ] {
        let (quota, period) = theirs.split_once(' ').unwrap();
        let host = old_host(quota, period, memory);
        let mut groups = host.start(group).unwrap();
        groups.check_limits(Instant::now());
        assert_eq!(cpu(&host), in_effect);
        assert_eq!(both(&host), memory_in_effect);
        let notes = notes(&groups);
        let note = "cpu.cfs_quota_us is 40000 of 50000 already";
        assert_eq!(notes.contains(note), is_noted, "{notes}");
        assert!(groups.give_back().is_empty());
        assert_eq!(cpu(&host), theirs);
        let restored = if memory == NONE { "-1" } else { memory };
        assert_eq!(both(&host), restored);
    }
    // Weir's, changed since.
    for (theirs, in_effect) in [
        ("60000 200000", "60000 200000"),
        ("50000 200000", "50000 200000"),
        ("120000 200000", "50000 100000"),
        ("50000 10000", "50000 100000"),
    ] {
        let host = old_host("-1", "100000", NONE);
        let mut groups = host.start(group).unwrap();
        groups.check_limits(Instant::now());
        let (quota, period) = theirs.split_once(' ').unwrap();
        host.file("cg/cpu/a/cpu.cfs_quota_us", quota);
        host.file("cg/cpu/a/cpu.cfs_period_us", period);
        groups.check_limits(Instant::now());
        assert_eq!(cpu(&host), in_effect);
        let count = usize::from(theirs != in_effect);
        assert_eq!(reports(&mut groups).len(), count, "{theirs}");
        assert!(groups.give_back().is_empty());
        // Weir's quota with another program's period is none at the end.
        assert_eq!(cpu(&host), theirs.replace("50000 ", "-1 "));
    }
}
