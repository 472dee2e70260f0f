//! Limits that another program lifts while they are in effect.

mod cgroups;
mod elastic;
mod manager;
mod records;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::made_up::{MadeUp, untouched};
use super::services::{NIGHTLY, Noted};
use crate::account::Enforcement;
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
