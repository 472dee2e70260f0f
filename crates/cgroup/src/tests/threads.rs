//! Threads of groups: on a host that refuses them, and one that ends by a panic.

use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use config::parse;

use super::made_up::{MadeUp, unified, wait_for_threads};
use crate::groups::Groups;
use crate::links::Links;
use crate::place::Manager;
use crate::threads::NONE;

const TEXT: &str = "[[group]]\nname = \"batch\"\nmatch = [{ exe = \"/link/sh\" }, { user = \"weir-has-no-such-user\" }, { container = \"web-*\" }]\npids = 9\n";

fn host() -> MadeUp {
    let host = unified();
    host.process(50, "x", "0::/home\n");
    host
}

fn notes(groups: &Groups) -> String {
    groups.view().notes().join("\n")
}

#[test]
fn a_host_without_free_process_ids_ends_no_enforcement() {
    let host = host();
    let mut groups = host.start(TEXT).unwrap();
    wait_for_threads(&mut groups);
    groups.resolution.links.follow = |_| Some("/bin/sh".into());
    NONE.set(true);
    groups.resolution.links.age(Duration::from_secs(5));
    groups.resolution.due = Instant::now();
    groups.listed = groups
        .listed
        .map(|(at, took)| (at - Duration::from_secs(60), took));
    groups.tick(Duration::from_secs(1));
    for name in ["groups-links", "groups-users", "groups-containers"] {
        let note = format!("starting the thread {name} failed");
        assert!(notes(&groups).contains(&note), "{}", notes(&groups));
    }
    groups.host.manager = Manager::Systemd;
    groups.connect(Duration::from_secs(5));
    groups.host.manager = Manager::None;
    let note = "connecting through systemd failed: starting the thread groups-bus failed";
    assert!(notes(&groups).contains(note), "{}", notes(&groups));
    // The next interval, with free process IDs.
    NONE.set(false);
    groups.resolution.links.age(Duration::from_secs(5));
    groups.resolution.due = Instant::now();
    groups.tick(Duration::from_secs(1));
    wait_for_threads(&mut groups);
    groups.scan();
    let notes = notes(&groups);
    assert!(!notes.contains("starting the thread groups-l"), "{notes}");
    assert!(!notes.contains("starting the thread groups-u"), "{notes}");
    assert!(!notes.contains("starting the thread groups-c"), "{notes}");
    assert_eq!(host.text("cg/weir/batch/cgroup.procs"), "50");
}

#[test]
fn another_config_starts_no_second_thread_for_a_path_that_does_not_respond() {
    static GATE: Mutex<()> = Mutex::new(());
    let gate = GATE.lock().unwrap();
    let host = host();
    let text = "[[group]]\nname = \"batch\"\nexe = \"/dead/x\"\npids = 9\n";
    let mut groups = host.start(text).unwrap();
    groups.resolution.links = Links::default();
    groups.resolution.links.follow = |_| {
        drop(GATE.lock());
        None
    };
    groups.follow_links(Duration::ZERO);
    let config = parse(Path::new("limits.toml"), text).unwrap().config;
    for _ in 0..3 {
        groups = Groups::start(&config, host.host(), Some(groups)).unwrap();
        assert_eq!(groups.resolution.links.threads(), 1);
    }
    groups.resolution.links.age(Duration::from_secs(5));
    groups.follow_links(Duration::ZERO);
    let note = "the file system of exe /dead/x does not respond";
    assert!(notes(&groups).contains(note), "{}", notes(&groups));
    drop(gate);
    while groups.resolution.links.threads() > 0 {
        groups.follow_links(Duration::from_millis(10));
    }
    assert!(!notes(&groups).contains(note), "{}", notes(&groups));
}
