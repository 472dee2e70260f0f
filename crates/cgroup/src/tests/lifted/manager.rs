//! A service manager that is slow, or does not reply.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{GROUP, UNIT, memory, notes, service, text};
use crate::units::INFINITY;

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
    let limits = format!("{}{}{}", unit("job"), unit("a"), unit("b"));
    let mut groups = host.start_with(&limits, &units);
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
    assert_eq!(text(&host, "memory.max"), "2097152");
    groups.unset_again();
    assert!(!groups.in_place.keys().contains(&"a.service".to_owned()));
}
