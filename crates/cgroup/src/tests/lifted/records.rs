//! The records of limits in place, by which they are restored.

use std::fs;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{GROUP, UNIT, memory, notes, service};
use crate::tests::made_up::untouched;
use crate::units::Units as _;

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
    let _guard = crate::tests::without_new_processes();
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
