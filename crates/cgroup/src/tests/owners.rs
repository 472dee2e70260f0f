//! Tests with cgroups of users and containers, who choose the names of those below theirs.

use std::os::unix::fs::chown;
use std::sync::Arc;

use super::made_up::{MadeUp, untouched};
use super::services::{NIGHTLY, Noted};
use crate::containers::{Container, Known};
use crate::place::Kind;
use crate::units::INFINITY;

const USERS: &str = "user.slice/user-7.slice/user@7.service";

/// A host with a process in a scope that is named as one of Weir's for this group.
fn with_scope(folder: &str, group: &str) -> MadeUp {
    let (host, path) = (untouched(), format!("{folder}/weir-{group}.y.scope"));
    host.file("cg/cgroup.procs", "");
    host.process(70, "sh nightly", &format!("0::/{path}\n"));
    host.file(&format!("cg/{path}/cgroup.procs"), "70\n");
    host
}

#[test]
fn a_users_scope_with_the_name_of_weirs_is_none_of_weirs() {
    for group in ["gone", "batch"] {
        let (host, units) = (
            with_scope(&format!("{USERS}/app.slice"), group),
            Arc::<Noted>::default(),
        );
        let mut groups = host.start_with(NIGHTLY, &units);
        assert_eq!(
            host.text("cg/cgroup.procs"),
            "",
            "{group}: it left its user"
        );
        let scope = format!("weir-{group}.y.scope");
        assert_eq!(units.number(&scope, "MemoryMax"), None);
        assert_eq!(
            units.number("user@7.service", "MemoryMax"),
            Some(2 << 20),
            "{group}: its process is in no group yet"
        );
        let members = &groups.view().statuses()[0].members;
        assert_eq!((members.len(), members[0].kind.as_str()), (1, "unit"));
        assert!(groups.give_back().is_empty());
        assert_eq!(host.text("cg/cgroup.procs"), "");
    }
}

#[test]
fn a_scope_of_another_owner_is_none_of_weirs() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let (host, units) = (with_scope("system.slice", "gone"), Arc::<Noted>::default());
    let scope = host.path("cg/system.slice/weir-gone.y.scope");
    chown(&scope, Some(1234), None).unwrap();
    let groups = host.start_with(NIGHTLY, &units);
    assert_eq!(host.text("cg/cgroup.procs"), "");
    let members = &groups.view().statuses()[0].members;
    assert_eq!(
        (members.len(), members[0].name.as_str()),
        (1, "weir-gone.y.scope"),
        "it is limited where it is"
    );
    assert_eq!(members[0].kind, "unit");
}

#[test]
fn a_process_of_unknown_origin_stays_without_limits() {
    let (host, units) = (with_scope("system.slice", "gone"), Arc::<Noted>::default());
    let groups = host.start_with(
        "[[group]]\nname = \"other\"\ncommand = \"*daily*\"\npids = 9\n",
        &units,
    );
    assert_eq!(host.text("cg/cgroup.procs"), "", "the root has no limits");
    let notes = groups.view().notes().join("\n");
    assert!(
        notes.contains("process 70 stays in /system.slice/weir-gone.y.scope, without limits"),
        "{notes}"
    );
    assert_eq!(
        units.number("weir-gone.y.scope", "TasksMax"),
        Some(INFINITY)
    );
}

#[test]
fn only_units_of_the_system_match_by_unit_and_slice() {
    let (host, units) = (untouched(), Arc::<Noted>::default());
    let container = format!("system.slice/docker-{}.scope", "a".repeat(64));
    for (pid, above) in [(70, USERS), (71, &container)] {
        let path = format!("{above}/batch.slice/nightly.service");
        host.process(pid, "sh x", &format!("0::/{path}\n"));
        host.file(&format!("cg/{path}/cgroup.procs"), &format!("{pid}\n"));
    }
    let groups = host.start_with(
        "[[group]]\nname = \"g\"\nmatch = [{ unit = \"nightly.service\" }, { slice = \"batch.slice\" }]\npids = 9\n",
        &units,
    );
    assert!(groups.targets.is_empty(), "{:?}", groups.targets);
}

#[test]
fn a_container_matches_below_a_cgroup_of_root_alone() {
    let id = "0123456789abcdef".repeat(4);
    let text = format!("[[group]]\nname = \"g\"\ncontainer = {id:?}\npids = 9\n");
    let limited = |path: &str, owner: Option<u32>| {
        let host = untouched();
        let file = format!("cg/{path}/pids.max");
        host.file(&file, "max\n");
        let above = host.path(&file).ancestors().nth(2).unwrap().to_owned();
        chown(&above, owner, None).unwrap();
        let groups = host.start(&text).unwrap();
        let is_limited = host.text(&file) == "9";
        assert_eq!(groups.targets.is_empty(), !is_limited, "{path}");
        is_limited
    };
    assert!(limited(&format!("docker/{id}"), None));
    if nix::unistd::geteuid().is_root() {
        assert!(!limited(&format!("{USERS}/{id}"), Some(1234)));
    }
}

#[test]
fn a_users_cgroup_with_the_name_of_a_container_is_in_its_unit() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let (host, units) = (untouched(), Arc::<Noted>::default());
    let path = format!("{USERS}/app.slice/{}", "0123456789abcdef".repeat(4));
    host.process(50, "sh nightly", &format!("0::/{path}\n"));
    host.file(&format!("cg/{path}/cgroup.procs"), "50\n");
    host.process(51, "sh other", &format!("0::/{USERS}\n"));
    host.file(&format!("cg/{USERS}/cgroup.procs"), "51\n");
    for above in ["", "/app.slice"] {
        chown(host.path(&format!("cg/{USERS}{above}")), Some(1234), None).unwrap();
    }
    let groups = host.start_with(&format!("{NIGHTLY}move = true\n"), &units);
    assert!(groups.targets.is_empty(), "{:?}", groups.targets);
    let status = &groups.view().statuses()[0];
    let reason = &status.not_enforced[0].reason;
    assert!(
        reason.contains("the manager of user 1234, who owns its cgroup"),
        "{reason}"
    );
    // With it the user chooses neither how its processes are enforced nor whether they go back.
    let place = groups.place_of(&format!("/{path}"));
    assert_eq!(place.kind, Kind::UserManager("user@7.service".to_owned()));
    assert_eq!(place.cgroup, format!("/{USERS}"));
}

#[test]
fn a_cgroup_in_a_container_is_no_container() {
    let (id, outer) = ("0123456789abcdef".repeat(4), "f".repeat(64));
    let path = format!("/docker/{outer}/{id}");
    let text = format!("[[group]]\nname = \"g\"\ncontainer = {id:?}\npids = 9\n");
    let groups = untouched().start(&text).unwrap();
    // Podman's pod without systemd: only its containers are listed.
    let mut known = Known::from([(id, Container::default())]);
    let is_found = |known: &Known| groups.matchers.find_cgroup(&path, known).is_some();
    assert!(is_found(&known));
    known.insert(outer, Container::default());
    assert!(!is_found(&known), "the container chose its name");
}

#[test]
fn a_delegated_cgroup_has_no_share_of_the_groups_network() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let host = untouched();
    for user in ["a", "b"] {
        host.file(&format!("cg/{user}/inner/pids.max"), "max\n");
    }
    chown(host.path("cg/b"), Some(1234), None).unwrap();
    let groups = host
        .start("[[group]]\nname = \"g\"\ncgroup = \"/*/inner\"\npids = 9\n")
        .unwrap();
    let shares: Vec<(&str, bool)> = groups
        .targets
        .iter()
        .map(|(path, target)| (path.as_str(), target.has_network))
        .collect();
    assert_eq!(shares, [("/a/inner", true), ("/b/inner", false)]);
    let notes = groups.view().notes().join("\n");
    assert!(
        notes.contains("/b/inner belongs to user 1234, who can lift any limit on it"),
        "{notes}"
    );
}
