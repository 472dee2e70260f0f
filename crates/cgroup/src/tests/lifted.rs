//! Limits that another program lifts while they are in effect.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use host::load::Sample;

use super::made_up::{MadeUp, unified, untouched};
use super::services::{NIGHTLY, Noted};
use crate::account::Enforcement;
use crate::error::GroupsError;
use crate::groups::Groups;
use crate::units::{INFINITY, Properties, Units as _, Value};

const UNIT: &str = "job.service";
const GROUP: &str = "[[group]]\nname = \"g\"\nunit = \"job.service\"\n";

/// A service that runs, under a manager that writes the files of its cgroup.
fn service() -> (MadeUp, Arc<Noted>) {
    let host = untouched();
    let path = "system.slice/job.service";
    host.process(60, "sh nightly", &format!("0::/{path}\n"));
    host.file(&format!("cg/{path}/cgroup.procs"), "60\n");
    for file in ["memory.max", "pids.max", "cpu.max"] {
        host.file(&format!("cg/{path}/{file}"), "max\n");
    }
    let units = Noted::writing(host.path("cg"));
    (host, units)
}

fn memory(bytes: u64) -> Properties {
    Properties::from([("MemoryMax".to_owned(), Value::Number(bytes))])
}

fn text(host: &MadeUp, file: &str) -> String {
    let text = host.text(&format!("cg/system.slice/job.service/{file}"));
    text.trim().to_owned()
}

/// The reports since the last call.
fn reports(groups: &mut Groups) -> Vec<String> {
    let reports = groups.comparisons.reports.drain(..);
    reports
        .map(|one| format!("{}: {} {}: {}", one.group, one.member, one.file, one.reason))
        .collect()
}

fn notes(groups: &Groups) -> String {
    groups.view().notes().join("\n")
}

/// `daemon-reload` with another file of the unit, `set-property` with and without `--runtime`, and a write by root.
#[test]
fn a_lifted_limit_of_a_unit_is_set_again_and_reported_once() {
    let limits = format!("{GROUP}memory = {{ max = \"2MiB\" }}\npids = 7\n");
    for (lifted, is_runtime) in [(4 << 20, true), (4 << 20, false), (INFINITY, false)] {
        let (host, units) = service();
        let mut groups = host.start_with(&limits, &units);
        groups.check_limits(Instant::now());
        assert_eq!(text(&host, "memory.max"), "2097152");
        if is_runtime {
            units.set(UNIT, &memory(lifted)).unwrap();
        } else {
            units.load(UNIT, &memory(lifted));
        }
        assert_ne!(text(&host, "memory.max"), "2097152");
        groups.check_limits(Instant::now());
        assert_eq!(text(&host, "memory.max"), "2097152");
        assert_eq!(groups.view().statuses()[0].enforcement, Enforcement::Full);
        let found = reports(&mut groups);
        assert!(
            found.len() == 1
                && found[0].starts_with("g: unit job.service memory.max: another program set"),
            "{found:?}"
        );
        // The operator's newer value is that of the end.
        assert!(groups.give_back().is_empty());
        assert_eq!(units.number(UNIT, "MemoryMax"), Some(lifted));
        let files: &[&str] = if is_runtime { &["MemoryMax"] } else { &[] };
        assert_eq!(units.files_of(UNIT), files);
    }
    // A write into the file, of which the manager does not know.
    let (host, units) = service();
    let mut groups = host.start_with(&limits, &units);
    groups.check_limits(Instant::now());
    host.file("cg/system.slice/job.service/memory.max", "max\n");
    host.file("cg/system.slice/job.service/pids.max", "3\n");
    groups.check_limits(Instant::now());
    assert_eq!(text(&host, "memory.max"), "2097152");
    assert_eq!(text(&host, "pids.max"), "3", "a lower value stays");
    assert!(groups.give_back().is_empty());
    assert_eq!(units.number(UNIT, "MemoryMax"), Some(INFINITY));
    assert_eq!(units.files_of(UNIT), [""; 0]);
}

#[test]
fn a_unit_whose_own_limit_was_enough_has_the_groups_once_it_is_raised() {
    let (host, units) = service();
    units.load(UNIT, &memory(1 << 20));
    let mut groups = host.start_with(&format!("{GROUP}memory = {{ max = \"2MiB\" }}\n"), &units);
    groups.check_limits(Instant::now());
    assert_eq!(text(&host, "memory.max"), "1048576");
    assert!(!host.path("origins.limits.json").exists(), "nothing is set");
    // Its own limit, without effect.
    host.file("cg/system.slice/job.service/memory.max", "max\n");
    groups.check_limits(Instant::now());
    assert_eq!(text(&host, "memory.max"), "1048576");
    assert_eq!(units.files_of(UNIT), [""; 0]);
    assert!(!host.path("origins.limits.json").exists());
    units.load(UNIT, &memory(8 << 20));
    groups.check_limits(Instant::now());
    assert_eq!(text(&host, "memory.max"), "2097152");
    assert_eq!(reports(&mut groups).len(), 2);
    // A lower one stays again.
    units.load(UNIT, &memory(1 << 20));
    groups.check_limits(Instant::now());
    assert_eq!(text(&host, "memory.max"), "1048576");
    assert!(groups.give_back().is_empty());
    assert_eq!(units.number(UNIT, "MemoryMax"), Some(1 << 20));
    assert_eq!(units.files_of(UNIT), [""; 0], "no file of Weir stays");
}

#[test]
fn a_limit_that_cannot_be_set_again_is_not_in_effect_until_it_can() {
    let (host, units) = service();
    let mut groups = host.start_with(&format!("{GROUP}memory = {{ max = \"2MiB\" }}\n"), &units);
    let mut now = Instant::now();
    groups.check_limits(now);
    units.refuses.store(true, Ordering::Relaxed);
    units.load(UNIT, &memory(INFINITY));
    let mut reported = Vec::new();
    for _ in 0..8 {
        groups.check_limits(now);
        now += Duration::from_secs(5);
        reported.extend(reports(&mut groups));
        let status = &groups.view().statuses()[0];
        assert_eq!(status.enforcement, Enforcement::Partial);
        let notes = notes(&groups);
        assert!(
            notes.contains("setting limits of job.service through systemd failed"),
            "{notes}"
        );
    }
    assert!(
        reported.len() == 1 && reported[0].contains("setting it again has no effect"),
        "{reported:?}"
    );
    // The operator lowers it meanwhile.
    units.load(UNIT, &memory(1 << 20));
    groups.check_limits(now);
    assert_eq!(groups.view().statuses()[0].enforcement, Enforcement::Full);
    reports(&mut groups);
    units.load(UNIT, &memory(INFINITY));
    groups.check_limits(now);
    assert_eq!(
        groups.view().statuses()[0].enforcement,
        Enforcement::Partial
    );
    units.refuses.store(false, Ordering::Relaxed);
    groups.check_limits(now + Duration::from_secs(60));
    groups.check_limits(now + Duration::from_secs(120));
    assert_eq!(text(&host, "memory.max"), "2097152");
    assert_eq!(groups.view().statuses()[0].enforcement, Enforcement::Full);
    let found = reports(&mut groups);
    assert!(
        found.len() == 1 && found[0].ends_with("the limit is in effect again"),
        "the second time in ten minutes: {found:?}"
    );
}

#[test]
fn a_limit_that_is_lifted_again_and_again_is_contended_and_reported_thrice() {
    let (host, units) = service();
    let mut groups = host.start_with(&format!("{GROUP}memory = {{ max = \"2MiB\" }}\n"), &units);
    let mut now = Instant::now();
    groups.check_limits(now);
    let mut reported = Vec::new();
    for time in 1..=50 {
        now += Duration::from_secs(5);
        units.load(UNIT, &memory(8 << 20));
        groups.check_limits(now);
        assert_eq!(text(&host, "memory.max"), "2097152");
        reported.extend(reports(&mut groups));
        let is_contended = notes(&groups).contains("memory.max is contended");
        assert_eq!(is_contended, time >= 3, "{}", notes(&groups));
    }
    assert_eq!(reported.len(), 3, "{reported:?}");
    groups.check_limits(now + Duration::from_secs(600));
    assert_eq!(notes(&groups), "");
}

/// As by a program that runs every few minutes.
#[test]
fn a_limit_is_contended_until_it_is_not_lifted_for_ten_minutes() {
    for (interval, expected) in [(200, 3), (290, 3), (300, 20), (599, 20), (700, 20)] {
        let (host, units) = service();
        let mut groups =
            host.start_with(&format!("{GROUP}memory = {{ max = \"2MiB\" }}\n"), &units);
        let mut now = Instant::now();
        groups.check_limits(now);
        let mut reported = Vec::new();
        for _ in 0..20 {
            now += Duration::from_secs(interval);
            groups.check_limits(now);
            units.load(UNIT, &memory(8 << 20));
            groups.check_limits(now);
            reported.extend(reports(&mut groups));
        }
        assert_eq!(reported.len(), expected, "{interval}: {reported:?}");
        assert_eq!(notes(&groups).contains("contended"), expected == 3);
        groups.check_limits(now + Duration::from_secs(600));
        assert_eq!(notes(&groups), "");
    }
}

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

/// A disk that does not exist is an error of the group, and no reason of another limit.
#[test]
fn a_limit_without_effect_is_reported_beside_other_errors() {
    let (host, units) = service();
    let io = "io = [{ device = \"/dev/weir-has-no-such-disk\", read = \"1MB/s\" }]";
    let text = format!("{GROUP}memory = {{ max = \"2MiB\" }}\n{io}\n");
    let mut groups = host.start_with(&text, &units);
    let mut now = Instant::now();
    groups.check_limits(now);
    // The manager has the limit, and does not write it.
    units.stop_writing();
    host.file("cg/system.slice/job.service/memory.max", "max\n");
    // A failure is found after each second time.
    for time in 1..=6 {
        groups.check_limits(now);
        now += Duration::from_secs(5);
        let notes = notes(&groups);
        let expected =
            "job.service: memory.max is max instead of 2097152, which is not in effect; ";
        let text = if time < 6 {
            "it is set again"
        } else {
            "has no effect"
        };
        assert!(notes.contains(expected) && notes.contains(text), "{notes}");
        assert!(notes.contains("weir-has-no-such-disk"), "{notes}");
    }
    let found = reports(&mut groups);
    assert!(
        found.len() == 1 && found[0].ends_with("setting it again has no effect"),
        "{found:?}"
    );
    // Its file disappears with its controller.
    fs::remove_file(host.path("cg/system.slice/job.service/memory.max")).unwrap();
    groups.check_limits(now);
    let notes = notes(&groups);
    assert!(notes.contains("memory.max is empty or missing"), "{notes}");
}

#[test]
fn a_lifted_limit_of_a_scope_is_set_again_and_nothing_else_of_it() {
    const SCOPE: &str = "weir-batch.job.service.1a2b.scope";
    let host = untouched();
    let folder = format!("cg/system.slice/{SCOPE}");
    for file in ["memory.max", "pids.max"] {
        host.file(&format!("{folder}/{file}"), "max\n");
    }
    let units = Noted::writing(host.path("cg"));
    let mut groups = host.start_with(NIGHTLY, &units);
    groups.check_limits(Instant::now());
    assert_eq!(host.text(&format!("{folder}/memory.max")), "2097152");
    // The operator's limit on processes, which the group has not.
    let tasks = Properties::from([("TasksMax".to_owned(), Value::Number(5))]);
    units.set(SCOPE, &tasks).unwrap();
    units.load(SCOPE, &memory(8 << 20));
    groups.check_limits(Instant::now());
    assert_eq!(host.text(&format!("{folder}/memory.max")), "2097152");
    assert_eq!(units.number(SCOPE, "TasksMax"), Some(5));
    let found = reports(&mut groups);
    assert!(
        found.len() == 1 && found[0].starts_with(&format!("batch: scope {SCOPE} memory.max")),
        "{found:?}"
    );
}

#[test]
fn a_slow_manager_delays_no_comparison() {
    let takes = Duration::from_millis(200);
    let (host, units) = service();
    let mut groups = host.start_with(&format!("{GROUP}memory = {{ max = \"2MiB\" }}\n"), &units);
    units.load(UNIT, &memory(INFINITY));
    *units.takes.lock().unwrap() = takes;
    groups.check_limits_at_tick();
    assert_eq!(text(&host, "memory.max"), "2097152");
    // Its interval is a multiple of this.
    let (_, took) = groups.comparisons.last.unwrap();
    assert!(took < takes, "{took:?}");
}

#[test]
fn an_elastic_share_is_no_lifted_limit() {
    let (host, units) = service();
    let stat = "cg/system.slice/job.service/cpu.stat";
    host.file(stat, "usage_usec 9000000\nthrottled_usec 5000000\n");
    let group = format!("{GROUP}cpu = {{ max = \"50%\", elastic = true }}\n");
    let mut groups = host.start_with(&group, &units);
    groups.check_limits(Instant::now());
    let idle = Sample {
        idle: 0.9,
        pressure: None,
    };
    groups.adjust(&idle);
    let elastic = text(&host, "cpu.max");
    assert_ne!(elastic, "50000 100000");
    for adjusted in [groups.members[0].adjusted, None] {
        groups.members[0].adjusted = adjusted;
        groups.check_limits(Instant::now());
        assert_eq!(text(&host, "cpu.max"), elastic);
        assert_eq!(reports(&mut groups), [""; 0]);
    }
    let quota = |quota| Properties::from([("CPUQuotaPerSecUSec".to_owned(), Value::Number(quota))]);
    units.load(UNIT, &quota(INFINITY));
    groups.check_limits(Instant::now());
    assert_eq!(text(&host, "cpu.max"), elastic, "the current share");
    assert_eq!(reports(&mut groups).len(), 1);
    groups.keep();
    drop(groups);
    let mut groups = host.start_with(&group, &units);
    assert_eq!(text(&host, "cpu.max"), "50000 100000");
    assert!(groups.give_back().is_empty());
    assert_eq!(units.number(UNIT, "CPUQuotaPerSecUSec"), Some(INFINITY));
    assert_eq!(units.files_of(UNIT), [""; 0]);
}

/// By `set-property --runtime` and by root in a file, while the share of the group grows.
#[test]
fn an_elastic_share_replaces_no_lower_limit_of_another_program() {
    let idle = Sample {
        idle: 0.9,
        pressure: None,
    };
    let throttled = |host: &MadeUp, cgroup: &str, time: u32| {
        let text = format!("usage_usec 9000000\nthrottled_usec {time}000000\n");
        host.file(&format!("cg/{cgroup}/cpu.stat"), &text);
    };
    let group = format!("{GROUP}cpu = {{ max = \"50%\", elastic = true }}\n");
    for is_property in [true, false] {
        let (host, units) = service();
        let cgroup = "system.slice/job.service";
        throttled(&host, cgroup, 1);
        let mut groups = host.start_with(&group, &units);
        groups.adjust(&idle);
        assert_ne!(text(&host, "cpu.max"), "50000 100000");
        groups.check_limits(Instant::now());
        let theirs = Properties::from([("CPUQuotaPerSecUSec".to_owned(), Value::Number(200_000))]);
        if is_property {
            units.set(UNIT, &theirs).unwrap();
        } else {
            host.file(&format!("cg/{cgroup}/cpu.max"), "20000 100000\n");
        }
        let files = units.runtime_files(UNIT, &["CPUQuotaPerSecUSec"]);
        for (time, sample) in [(2, &idle), (3, &idle), (3, &Sample { idle: 0.0, ..idle })] {
            throttled(&host, cgroup, time);
            groups.adjust(sample);
            groups.members[0].adjusted = None;
            groups.check_limits(Instant::now());
            assert_eq!(text(&host, "cpu.max"), "20000 100000");
        }
        assert_eq!(units.runtime_files(UNIT, &["CPUQuotaPerSecUSec"]), files);
        assert_eq!(reports(&mut groups), [""; 0]);
        groups.keep();
        assert_eq!(text(&host, "cpu.max"), "20000 100000");
        assert!(groups.give_back().is_empty());
        let (quota, files): (_, &[&str]) = if is_property {
            (200_000, &["CPUQuotaPerSecUSec"])
        } else {
            (INFINITY, &[])
        };
        assert_eq!(units.number(UNIT, "CPUQuotaPerSecUSec"), Some(quota));
        assert_eq!(units.files_of(UNIT), files);
    }
    // A cgroup in place, as by `docker update --cpus`; a value above `max` is no longer Weir's, either.
    for theirs in ["20000 100000", "60000 100000"] {
        let host = untouched();
        let file = "cg/user.slice/a/cpu.max";
        host.file(file, "max 100000\n");
        host.file("cg/user.slice/cgroup.subtree_control", "cpu\n");
        throttled(&host, "user.slice/a", 1);
        let group = "[[group]]\nname = \"g\"\ncgroup = \"/user.slice/*\"\ncpu = { max = \"50%\", elastic = true }\n";
        let mut groups = host.start(group).unwrap();
        groups.adjust(&idle);
        assert_ne!(host.text(file), "50000 100000");
        host.file(file, theirs);
        throttled(&host, "user.slice/a", 2);
        groups.adjust(&idle);
        groups.keep();
        assert_eq!(host.text(file), theirs);
        assert!(groups.give_back().is_empty());
        assert_eq!(host.text(file), theirs);
    }
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

/// The agent is killed before it writes: the next one has the record.
#[test]
fn a_lifted_limit_is_recorded_before_it_is_written_again() {
    const RECORD: &str = "origins.limits.json";
    let host = untouched();
    let file = "cg/a/memory.max";
    host.file(file, "max\n");
    let group = "[[group]]\nname = \"g\"\ncgroup = \"/a\"\nmemory = { max = \"2MiB\" }\n";
    let mut groups = host.start(group).unwrap();
    let pipe = host.path(file);
    fs::remove_file(&pipe).unwrap();
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // Each open of the pipe waits for the other side.
    let record = std::thread::scope(|scope| {
        let agent = scope.spawn(|| {
            let held = groups.members[0].held.clone();
            groups
                .in_place
                .set_cgroup(&groups.tree, &groups.host, "/a", &held)
        });
        fs::write(&pipe, "4194304\n").unwrap();
        let mut written = fs::File::open(&pipe).unwrap();
        let record = host.text(RECORD);
        let mut value = String::new();
        std::io::Read::read_to_string(&mut written, &mut value).unwrap();
        drop(written);
        assert_eq!(value, "2097152");
        fs::write(&pipe, "2097152\n").unwrap();
        assert!(agent.join().unwrap().is_empty());
        record
    });
    drop(groups);
    fs::remove_file(&pipe).unwrap();
    for content in ["4194304\n", "2097152\n"] {
        host.file(RECORD, &record);
        host.file(file, content);
        let mut groups = host.start(group).unwrap();
        assert_eq!(host.text(file).trim(), "2097152");
        assert!(groups.give_back().is_empty());
        assert_eq!(host.text(file), "4194304");
    }
}

#[test]
fn a_unit_without_a_cgroup_has_its_limits_again_before_it_starts() {
    let host = untouched();
    let units = Arc::<Noted>::default();
    let mut groups = host.start_with(&format!("{GROUP}memory = {{ max = \"2MiB\" }}\n"), &units);
    units.load(UNIT, &memory(INFINITY));
    groups.limit_named_units();
    assert_eq!(units.number(UNIT, "MemoryMax"), Some(INFINITY), "not yet");
    groups.comparisons.units -= Duration::from_secs(30);
    groups.limit_named_units();
    assert_eq!(units.number(UNIT, "MemoryMax"), Some(2 << 20));
    assert!(groups.give_back().is_empty());
    assert_eq!(units.number(UNIT, "MemoryMax"), Some(INFINITY));
    assert_eq!(units.files_of(UNIT), [""; 0]);
}

/// As under a first process that is stopped or waits for a disk.
#[test]
fn a_manager_that_does_not_reply_is_waited_for_once() {
    let (host, units) = service();
    let unit = |name: &str| {
        format!(
            "[[group]]\nname = \"{name}\"\nunit = \"{name}.service\"\nmemory = {{ max = \"2MiB\" }}\n"
        )
    };
    for name in ["a", "b"] {
        host.file(
            &format!("cg/system.slice/{name}.service/memory.max"),
            "max\n",
        );
    }
    let text = format!("{}{}{}", unit("job"), unit("a"), unit("b"));
    let mut groups = host.start_with(&text, &units);
    let mut now = Instant::now();
    groups.check_limits(now);
    units.load(UNIT, &memory(INFINITY));
    units.is_silent.store(true, Ordering::Relaxed);
    groups.idle_units.clear();
    groups.comparisons.last = None;
    groups.tick(Duration::ZERO);
    assert_eq!(units.waited.load(Ordering::Relaxed), 1);
    for _ in 0..3 {
        now += Duration::from_secs(60);
        groups.check_limits(now);
        groups.check_targets();
        groups.unset_others();
        groups.limit_named_units();
    }
    assert_eq!(units.waited.load(Ordering::Relaxed), 1);
    let notes = notes(&groups);
    assert!(notes.contains("it cannot be reached"), "{notes}");
    assert!(groups.in_place.keys().contains(&"a.service".to_owned()));
    // A unit of no group any more.
    groups.idle_units.clear();
    groups.targets.retain(|_, target| target.key != "a.service");
    groups.unset_others();
    assert!(groups.in_place.keys().contains(&"a.service".to_owned()));
    // It replies again.
    units.is_silent.store(false, Ordering::Relaxed);
    units.waited.store(0, Ordering::Relaxed);
    groups.check_limits(now + Duration::from_secs(60));
    assert_eq!(self::text(&host, "memory.max"), "2097152");
    groups.unset_again();
    assert!(!groups.in_place.keys().contains(&"a.service".to_owned()));
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

/// `systemctl set-property` without `--runtime`, which leaves Weir's file where it is.
#[test]
fn weirs_file_of_a_property_goes_once_the_units_own_is_lower() {
    for is_theirs in [false, true] {
        let (host, units) = service();
        let group = format!("{GROUP}memory = {{ max = \"2MiB\" }}\npids = 7\n");
        drop(host.start_with(&group, &units));
        assert_eq!(units.files_of(UNIT), ["MemoryMax", "TasksMax"]);
        if is_theirs {
            units.set(UNIT, &memory(1 << 20)).unwrap();
        } else {
            units.load(UNIT, &memory(1 << 20));
        }
        let mut groups = host.start_with(&group, &units);
        let left: &[&str] = if is_theirs {
            &["MemoryMax", "TasksMax"]
        } else {
            &["TasksMax"]
        };
        assert_eq!(units.files_of(UNIT), left);
        assert!(groups.give_back().is_empty());
        assert_eq!(units.number(UNIT, "MemoryMax"), Some(1 << 20));
        assert_eq!(units.files_of(UNIT), left[..left.len() - 1]);
    }
}

#[test]
fn a_record_stays_until_its_unit_is_restored_or_does_not_exist() {
    let (host, units) = service();
    let mut groups = host.start_with(&format!("{GROUP}memory = {{ max = \"2MiB\" }}\n"), &units);
    units.is_silent.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        assert_eq!(groups.give_back().len(), 1);
        assert_eq!(groups.in_place.keys(), [UNIT]);
    }
    units.is_silent.store(false, Ordering::Relaxed);
    units.waited.store(0, Ordering::Relaxed);
    units.has_no_unit.store(true, Ordering::Relaxed);
    assert!(groups.give_back().is_empty());
    assert_eq!(groups.in_place.keys(), [""; 0]);
    assert_eq!(units.files_of(UNIT), [""; 0]);
}

/// As containers that come and go.
#[test]
fn the_record_of_a_unit_that_has_ended_does_not_stay() {
    for is_named in [false, true] {
        let (host, units) = service();
        let how = if is_named {
            "unit = \"job.service\""
        } else {
            "unit = \"jo?.service\""
        };
        let group = format!("[[group]]\nname = \"g\"\n{how}\nmemory = {{ max = \"2MiB\" }}\n");
        let mut groups = host.start_with(&group, &units);
        assert_eq!(groups.in_place.keys(), [UNIT]);
        fs::remove_dir_all(host.path("cg/system.slice/job.service")).unwrap();
        groups.check_targets();
        // It has stopped.
        groups.comparisons.units -= Duration::from_secs(30);
        groups.limit_named_units();
        assert_eq!(groups.in_place.keys(), [UNIT]);
        units.stop_writing();
        units.has_no_unit.store(true, Ordering::Relaxed);
        groups.comparisons.units -= Duration::from_secs(30);
        groups.limit_named_units();
        let left: &[&str] = if is_named { &[UNIT] } else { &[] };
        assert_eq!(groups.in_place.keys(), left);
        assert_eq!(units.files_of(UNIT).len(), left.len());
    }
}

#[test]
fn the_record_is_saved_twice_for_all_lifted_limits_of_cgroups() {
    let host = untouched();
    let file = |nth: u32| format!("cg/user.slice/{nth}/memory.max");
    host.file("cg/user.slice/cgroup.subtree_control", "memory\n");
    for nth in 0..20 {
        host.file(&file(nth), "max\n");
    }
    let group =
        "[[group]]\nname = \"g\"\ncgroup = \"/user.slice/*\"\nmemory = { max = \"2MiB\" }\n";
    let mut groups = host.start(group).unwrap();
    groups.check_limits(Instant::now());
    for nth in 0..20 {
        host.file(&file(nth), "4194304\n");
    }
    let before = groups.in_place.saves.get();
    groups.check_limits(Instant::now());
    assert_eq!(groups.in_place.saves.get() - before, 2);
    assert!((0..20).all(|nth| host.text(&file(nth)) == "2097152"));
    // The next agent has the record of each.
    drop(groups);
    let mut groups = host.start(group).unwrap();
    assert_eq!(notes(&groups), "");
    assert!(groups.give_back().is_empty());
    assert!((0..20).all(|nth| host.text(&file(nth)) == "4194304"));
}
