//! The service while it runs: what an operator does to it, and what befalls it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use testbed::tests;

use crate::Test;
use crate::guest::{
    CONFIG, EXCHANGE, configure, journal_cursor, journal_since, json, limit, make_network,
    property, received, run, said, systemctl, try_run, within,
};
use crate::package::{install, remove};

pub const TESTS: &[Test] = tests![
    the_units_are_right_and_confined,
    a_killed_agent_is_back_and_its_limits_never_end,
    a_stuck_agent_is_replaced,
    a_restart_with_a_wrong_file_goes_on_with_the_last_valid_one,
    an_upgrade_with_a_wrong_file_and_no_other_leaves_the_limits_and_shows_the_failure,
    members_of_the_group_ask_and_only_root_changes,
    bpffs_and_memory_are_the_units_own_to_use,
];
pub const THOROUGH: &[Test] = tests![
    a_trial_takes_a_file_that_the_service_cannot_read,
    a_reload_of_a_wrong_file_fails_and_changes_nothing,
    another_control_socket_serves_reload,
    a_service_with_its_own_user_requests_decisions_by_the_group,
    a_start_that_fails_is_tried_for_as_long_as_it_takes,
];

pub const UNIT: &str = "weir.service";
/// An emulated machine starts an agent in seconds.
const START: Duration = Duration::from_secs(120);

/// The service with this config, newly started.
pub fn start(config: &str) {
    if !Path::new("/usr/bin/agent").exists() {
        install("weir.deb");
    }
    make_network();
    try_run("systemctl", &["stop", UNIT]);
    // Its groups would have their permissions.
    let _ = fs::remove_file("/var/lib/weir/last-valid.toml");
    configure(config);
    run("agent", &["detach"]);
    // Use by sources survives a detach.
    let _ = fs::remove_file("/var/lib/weir/state");
    systemctl(&["reset-failed"]);
    systemctl(&["start", UNIT]);
}

pub fn pid() -> String {
    property(UNIT, "MainPID")
}

fn is_active() -> bool {
    property(UNIT, "ActiveState") == "active"
}

fn burst() -> u64 {
    json(&["limits"])[0]["burst"].as_u64().unwrap()
}

fn the_units_are_right_and_confined() {
    start(&limit(10));
    let output = try_run("systemd-analyze", &["verify", "--man=no", UNIT]);
    assert!(
        output.status.success() && said(&output).is_empty(),
        "{}",
        said(&output)
    );
    assert_eq!(property(UNIT, "DropInPaths"), "");
    // In tenths; of what is left, each is there for a reason that the unit names.
    run(
        "systemd-analyze",
        &["security", "--no-pager", "--threshold=20", UNIT],
    );
    let said = run("systemctl", &["status", "--no-pager", UNIT]);
    assert!(said.contains("enforcing 1 limit on weir0"), "{said}");
}

fn a_trial_takes_a_file_that_the_service_cannot_read() {
    start(&limit(10));
    for (path, mode) in [
        ("/root/tried.toml", 0o644),
        ("/tmp/tried.toml", 0o644),
        ("/home/tried.toml", 0o644),
        ("/etc/weir/tried.toml", 0o600),
    ] {
        fs::write(path, limit(7)).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        run("agent", &["try", path, "--for", "1h"]);
        assert_eq!(burst(), 7, "{path}");
        run("agent", &["confirm"]);
        run("agent", &["reload"]);
        assert_eq!(burst(), 10, "{path}");
        fs::remove_file(path).unwrap();
    }
}

fn a_killed_agent_is_back_and_its_limits_never_end() {
    start(&limit(10));
    assert_eq!(received(2, 15), 10);
    let before = pid();
    run("kill", &["-KILL", &before]);
    let killed = Instant::now();
    // Packets that come while there is no agent.
    assert_eq!(received(2, 5), 0);
    within(START, "another agent starts", || {
        !["0", before.as_str()].contains(&pid().as_str())
    });
    let took = killed.elapsed();
    within(START, "the service is active", is_active);
    println!("another agent started {took:?} after the first was killed");
    assert!(
        property(UNIT, "RestartUSec") == "500ms",
        "{}",
        property(UNIT, "RestartUSec")
    );
    assert_eq!((received(2, 5), received(3, 15)), (0, 10));
}

fn a_stuck_agent_is_replaced() {
    start(&limit(10));
    assert_eq!(received(2, 15), 10);
    let drop_in = Path::new("/run/systemd/system/weir.service.d/watchdog.conf");
    fs::create_dir_all(drop_in.parent().unwrap()).unwrap();
    fs::write(drop_in, "[Service]\nWatchdogSec=10\n").unwrap();
    systemctl(&["daemon-reload"]);
    systemctl(&["restart", UNIT]);
    let before = pid();
    run("kill", &["-STOP", &before]);
    assert_eq!(received(2, 5), 0);
    within(START, "another agent starts", || {
        !["0", before.as_str()].contains(&pid().as_str())
    });
    // On a busy machine, it may need more time than these, too.
    fs::remove_file(drop_in).unwrap();
    systemctl(&["daemon-reload"]);
    within(START, "the service is active", is_active);
    let restarts = property(UNIT, "NRestarts");
    assert!(restarts.parse::<u64>().unwrap() >= 1, "{restarts}");
    assert_eq!((received(2, 5), received(3, 15)), (0, 10));
}

fn a_reload_of_a_wrong_file_fails_and_changes_nothing() {
    start(&limit(10));
    let before = pid();
    configure(&limit(20));
    systemctl(&["reload", UNIT]);
    assert_eq!(burst(), 20);
    configure("[agent]\ninterfaces = 1\n");
    let output = try_run("systemctl", &["reload", UNIT]);
    assert!(!output.status.success());
    assert_eq!((burst(), pid(), is_active()), (20, before, true));
}

fn a_restart_with_a_wrong_file_goes_on_with_the_last_valid_one() {
    start(&limit(10));
    assert_eq!(received(2, 15), 10);
    configure(&limit(10).replace("burst", "brust"));
    let cursor = journal_cursor();
    systemctl(&["restart", UNIT]);
    assert!(is_active());
    assert_eq!((received(2, 5), received(3, 15)), (0, 10));
    let status = run("systemctl", &["status", "--no-pager", UNIT]);
    assert!(
        status.contains("IS INVALID, the last valid config is in effect"),
        "{status}"
    );
    assert!(
        journal_since(&cursor).contains("did you mean \"burst\""),
        "{}",
        journal_since(&cursor)
    );
    let last = json(&["status"])["last_reload"].clone();
    assert!(last["ok"] == false && last["cause"] == "start", "{last}");
    // Corrected, it is in effect.
    configure(&limit(20));
    systemctl(&["reload", UNIT]);
    assert_eq!(burst(), 20);
    assert_eq!(json(&["status"])["last_reload"]["ok"], true);
}

fn an_upgrade_with_a_wrong_file_and_no_other_leaves_the_limits_and_shows_the_failure() {
    start(&limit(10));
    assert_eq!(received(2, 15), 10);
    configure("[agent]\ninterfaces = 1\n");
    // A version that takes neither for valid.
    fs::write("/var/lib/weir/last-valid.toml", "[agent]\nolder = 1\n").unwrap();
    install("weir-next.deb");
    within(START, "the service has failed", || {
        property(UNIT, "ActiveState") == "failed"
    });
    assert_eq!((received(2, 5), received(3, 15)), (0, 10));
    let status = said(&try_run("systemctl", &["status", "--no-pager", UNIT]));
    assert!(
        status.contains("failed") && status.contains("limits.toml"),
        "{status}"
    );
    configure(&limit(10));
    systemctl(&["start", UNIT]);
    assert_eq!(received(2, 5), 0);
    remove();
}

fn another_control_socket_serves_reload() {
    start(&limit(10).replace("[agent]\n", "[agent]\ncontrol = \"/run/weir/other.sock\"\n"));
    let text = fs::read_to_string(CONFIG).unwrap();
    configure(&text.replace("burst = 10", "burst = 20"));
    systemctl(&["reload", UNIT]);
    assert_eq!(burst(), 20);
}

fn members_of_the_group_ask_and_only_root_changes() {
    start(&limit(10));
    run("useradd", &["--system", "--groups", "weir", "asks"]);
    run("useradd", &["--system", "stranger"]);
    let as_user = |user: &str, arguments: &[&str]| {
        let id = format!("--reuid={user}");
        try_run(
            "setpriv",
            &[
                &[id.as_str(), "--regid=nogroup", "--init-groups", "agent"],
                arguments,
            ]
            .concat(),
        )
    };
    assert!(
        as_user("asks", &["status"]).status.success(),
        "{}",
        said(&as_user("asks", &["status"]))
    );
    for change in [
        &["ban", "10.77.0.9"][..],
        &["reload"],
        &["reset", "10.77.0.2"],
    ] {
        assert!(!as_user("asks", change).status.success(), "{change:?}");
    }
    assert!(!as_user("stranger", &["status"]).status.success());
    assert_eq!(json(&["bans"]).as_array().unwrap().len(), 0);
    run("userdel", &["asks"]);
    run("userdel", &["stranger"]);
}

fn a_service_with_its_own_user_requests_decisions_by_the_group() {
    const SOCKET: &str = "/run/weir/decide.sock";
    let request = "\n[decide]\nhttp = \"unix:/run/weir/decide.sock\"\n\n[[limit]]\nname = \"logins\"\n\
        scope = \"request\"\nkey = [\"user\"]\nunit = \"requests\"\nrate = \"1/h\"\nburst = 1\n";
    start(&format!("{}{request}", limit(10)));
    let program = "/usr/local/bin/exchange";
    fs::copy(std::env::current_exe().unwrap(), program).unwrap();
    let body = "{\"limit\":\"logins\",\"key\":{\"user\":\"alice\"}}";
    let text = format!(
        "POST /v1/decide HTTP/1.1\r\nHost: weir\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let ask = |group: &[&str]| {
        let service = [
            "--quiet",
            "--wait",
            "--pipe",
            "--collect",
            "--property=DynamicUser=yes",
        ];
        try_run(
            "systemd-run",
            &[&service[..], group, &[program, EXCHANGE, SOCKET, &text]].concat(),
        )
    };
    let member = ["--property=SupplementaryGroups=weir"];
    for expected in ["HTTP/1.1 200", "HTTP/1.1 429"] {
        let output = ask(&member);
        assert!(said(&output).contains(expected), "{}", said(&output));
    }
    assert!(!ask(&[]).status.success(), "a stranger had a decision");
}

fn a_start_that_fails_is_tried_for_as_long_as_it_takes() {
    start(&limit(10));
    let text = limit(10).replace("max_sources", "metrics = \"10.99.0.1:9464\"\nmax_sources");
    // An address that the host does not have yet.
    configure(&text);
    let started = Instant::now();
    try_run("systemctl", &["restart", "--no-block", UNIT]);
    within(START * 3, "six starts have failed", || {
        property(UNIT, "NRestarts").parse::<u32>().unwrap() >= 6 || started.elapsed() > START * 2
    });
    assert_ne!(property(UNIT, "ActiveState"), "failed");
    assert_eq!(received(3, 15), 10, "the limits of before");
    run("ip", &["addr", "add", "10.99.0.1/32", "dev", "lo"]);
    within(START, "the service is active", is_active);
    run("ip", &["addr", "del", "10.99.0.1/32", "dev", "lo"]);
}

fn bpffs_and_memory_are_the_units_own_to_use() {
    // In turns: the machine has 2 GiB, and a reload holds two tables.
    start(&limit(10).replace("max_sources = 1_000", "max_sources = 1_000_000"));
    let text = fs::read_to_string(CONFIG).unwrap();
    let third =
        "\n[[limit]]\nname = \"bytes\"\nunit = \"bytes\"\nrate = \"1GB/s\"\nburst = \"10MB\"\n";
    let before = pid();
    configure(&format!("{text}{third}"));
    systemctl(&["reload", UNIT]);
    assert_eq!(pid(), before);
    assert_eq!(received(3, 15), 10);
    let files: u64 = property(UNIT, "LimitNOFILE").parse().unwrap();
    assert!(files >= 16_384, "{files} descriptors for 4,096 clients");
    assert_eq!(property(UNIT, "Result"), "success");
}
