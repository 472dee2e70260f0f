//! Shares of elastic groups.

use std::time::Instant;

use host::load::Sample;

use super::{GROUP, UNIT, reports, service, text};
use crate::tests::made_up::{MadeUp, untouched};
use crate::units::{INFINITY, Properties, Units as _, Value};

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
