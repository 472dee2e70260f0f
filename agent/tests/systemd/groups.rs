//! Process groups under systemd: nothing is taken out of its unit, session or container, and nothing loses a limit.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use testbed::tests;

use crate::Test;
use crate::containers::make_root;
use crate::guest::{CONFIG, configure, json, property, run, said, systemctl, try_run, within};
use crate::package::install;

pub const TESTS: &[Test] = tests![
    groups_limit_a_unit_through_systemd_and_give_it_back,
    groups_set_limits_again_that_a_reload_lifts,
    groups_leave_login_sessions_whole,
    groups_limit_containers_as_podman_starts_them,
];
pub const THOROUGH: &[Test] = tests![
    groups_never_lift_a_services_limits_or_its_sandbox,
    groups_move_workers_into_a_scope_beside_their_service_and_back,
    groups_let_a_service_start_and_restart_its_workers,
    groups_send_a_users_process_back_where_it_came_from,
];

/// A guest is emulated, and shares its CPUs with others.
const PATIENCE: Duration = Duration::from_secs(60);
/// Sleeps under a name that no other process has.
const WORKER: &str = "/usr/local/bin/weir-worker";
/// A shell under a name that no other process has.
const SHELL: &str = "/usr/local/bin/weir-shell";

/// Starts the agent with these groups.
fn start(groups: &str) {
    if !Path::new("/usr/bin/agent").exists() {
        install("weir.deb");
    }
    make_workers();
    configure(&format!("[agent]\non_exit = \"detach\"\n{groups}"));
    systemctl(&["restart", "weir"]);
    within(PATIENCE, "the agent is connected to systemd", || {
        let groups = json(&["groups"]).to_string();
        !groups.contains("connecting through systemd")
    });
}

/// Waits until a group's limits are in effect on some member.
fn wait_until_enforced(nth: usize) {
    within(PATIENCE, "the group is enforced", || {
        let group = groups()[nth].clone();
        group["enforcement"] == "full" && group["members"][0].is_object()
    });
}

fn make_workers() {
    for (from, to) in [("/bin/sleep", WORKER), ("/bin/bash", SHELL)] {
        // A program that runs cannot be written.
        if !Path::new(to).exists() {
            fs::copy(from, to).unwrap();
        }
    }
}

/// Stops what a test started, by its units.
struct Units(&'static [&'static str]);

impl Drop for Units {
    fn drop(&mut self) {
        try_run("systemctl", &["stop", "weir"]);
        for unit in self.0 {
            try_run("systemctl", &["stop", unit]);
        }
    }
}

/// Starts a shell script as a service.
fn service(unit: &str, properties: &[&str], script: &str) {
    let mut arguments = vec!["--quiet", "--collect", "--unit", unit];
    for property in properties {
        arguments.extend(["-p", property]);
    }
    arguments.extend(["/bin/sh", "-c", script]);
    run("systemd-run", &arguments);
}

/// A file of a unit's cgroup.
fn cgroup_file(unit: &str, file: &str) -> String {
    let path = format!("/sys/fs/cgroup{}/{file}", property(unit, "ControlGroup"));
    fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{path}: {error}"))
        .trim()
        .to_owned()
}

fn groups() -> Value {
    json(&["groups"])
}

fn doctor() -> String {
    said(&try_run("agent", &["doctor", "--config", CONFIG]))
}

/// The processes of a program.
fn pids(program: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == Path::new(program))
    })
    .collect()
}

fn the_worker() -> u32 {
    within(PATIENCE, "there is one worker", || pids(WORKER).len() == 1);
    pids(WORKER)[0]
}

fn cgroup_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cgroup"))
        .unwrap_or_default()
        .trim()
        .trim_start_matches("0::")
        .to_owned()
}

/// Why the group's first match is not enforced.
fn reason() -> String {
    let is_reported = || {
        groups()[0]["not_enforced"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
    };
    within(PATIENCE, "a match is reported as not enforced", is_reported);
    groups()[0]["not_enforced"][0]["reason"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn groups_limit_a_unit_through_systemd_and_give_it_back() {
    make_workers();
    let _units = Units(&["one.service", "whole.service"]);
    let unit = "[Service]\nMemoryMax=32M\nExecStart=/bin/sleep 600\n";
    fs::write("/run/systemd/system/one.service", unit).unwrap();
    systemctl(&["daemon-reload"]);
    service("whole.service", &[], "exec /usr/local/bin/weir-worker 600");
    start(&format!(
        "[[group]]\nname = \"named\"\nunit = \"one.service\"\nmemory = {{ max = \"64MiB\" }}\npids = 20\ncpu = {{ max = \"30%\" }}\n\
         [[group]]\nname = \"whole\"\nexe = {WORKER:?}\npids = 30\n"
    ));
    // A unit that is named has its limits from its first moment.
    systemctl(&["start", "one.service"]);
    assert_eq!(cgroup_file("one.service", "pids.max"), "20");
    assert_eq!(
        cgroup_file("one.service", "memory.max"),
        "33554432",
        "its own limit is lower"
    );
    assert!(cgroup_file("one.service", "cpu.max").starts_with("30000 "));
    // One of which all processes match is limited as a whole.
    within(PATIENCE, "whole.service is limited", || {
        cgroup_file("whole.service", "pids.max") == "30"
    });
    systemctl(&["stop", "whole.service"]);
    service("whole.service", &[], "exec /usr/local/bin/weir-worker 600");
    let took = within(PATIENCE, "it is limited again", || {
        cgroup_file("whole.service", "pids.max") == "30"
    });
    println!("a service was limited {took:?} after its start");
    wait_until_enforced(1);
    let whole = groups()[1].clone();
    assert_eq!(
        (&whole["members"][0]["kind"], &whole["members"][0]["name"]),
        (&"unit".into(), &"whole.service".into())
    );
    assert_eq!(whole["enforcement"], "full", "{whole}");
    assert!(
        doctor().contains("whole: enforced on 1 unit"),
        "{}",
        doctor()
    );
    systemctl(&["stop", "weir"]);
    assert_ne!(cgroup_file("whole.service", "pids.max"), "30");
    assert_ne!(cgroup_file("one.service", "pids.max"), "20");
    assert_eq!(property("one.service", "CPUQuotaPerSecUSec"), "infinity");
    assert_eq!(
        cgroup_file("one.service", "memory.max"),
        "33554432",
        "its own limit stays"
    );
    systemctl(&["restart", "one.service"]);
    assert_eq!(cgroup_file("one.service", "memory.max"), "33554432");
    assert_ne!(
        cgroup_file("one.service", "pids.max"),
        "20",
        "systemd kept the limit for later starts"
    );
    assert!(
        doctor().contains("no agent runs that enforces them"),
        "{}",
        doctor()
    );
}

fn groups_set_limits_again_that_a_reload_lifts() {
    const UNIT: &str = "lifted.service";
    const DROP_INS: &str = "/run/systemd/system/lifted.service.d";
    const CONTROL: &str = "/run/systemd/system.control/lifted.service.d";
    let _units = Units(&[UNIT]);
    fs::write(
        "/run/systemd/system/lifted.service",
        "[Service]\nMemoryMax=32M\nExecStart=/bin/sleep 600\n",
    )
    .unwrap();
    systemctl(&["daemon-reload"]);
    systemctl(&["start", UNIT]);
    start(&format!(
        "[[group]]\nname = \"g\"\nunit = {UNIT:?}\nmemory = {{ max = \"64MiB\" }}\npids = 20\n"
    ));
    let is_limited =
        || cgroup_file(UNIT, "memory.max") == "67108864" && cgroup_file(UNIT, "pids.max") == "20";
    assert_eq!(cgroup_file(UNIT, "memory.max"), "33554432", "its own");
    assert_eq!(cgroup_file(UNIT, "pids.max"), "20");
    // The agent's first comparison.
    std::thread::sleep(Duration::from_secs(8));
    // A file that is sorted after Weir's, as of `systemctl edit`.
    fs::create_dir_all(DROP_INS).unwrap();
    let drop_in = "[Service]\nMemoryMax=256M\nTasksMax=500\n";
    fs::write(format!("{DROP_INS}/override.conf"), drop_in).unwrap();
    systemctl(&["daemon-reload"]);
    // systemd 252 writes both files at once, 257 when one of these properties changes the next time.
    std::thread::sleep(Duration::from_secs(8));
    let are_written = cgroup_file(UNIT, "memory.max") != "33554432";
    if are_written {
        within(PATIENCE, "both limits are set again", is_limited);
    } else {
        assert_eq!(cgroup_file(UNIT, "pids.max"), "20");
    }
    println!("the reload wrote the files: {are_written}");
    let event_of = |limit: &str| {
        let events = run("agent", &["events", "--json"]);
        let mut lines = events.lines().filter(|line| line.contains("limit-lifted"));
        lines.any(|line| line.contains(limit) && line.contains("unit lifted.service"))
    };
    for limit in ["memory.max", "pids.max"] {
        if are_written {
            within(PATIENCE, "the event", || event_of(limit));
        } else {
            assert!(!event_of(limit));
        }
    }
    systemctl(&["set-property", "--runtime", UNIT, "MemoryMax=128M"]);
    let took = within(PATIENCE, "set-property is not the last", is_limited);
    println!("set again {took:?} after set-property");
    let file = format!("/sys/fs/cgroup{}/pids.max", property(UNIT, "ControlGroup"));
    fs::write(&file, "max").unwrap();
    let took = within(PATIENCE, "a write is not the last", is_limited);
    println!("set again {took:?} after a write");
    for limit in ["memory.max", "pids.max"] {
        within(PATIENCE, "the event", || event_of(limit));
    }
    within(PATIENCE, "it is enforced", || {
        groups()[0]["enforcement"] == "full"
    });
    // The newer values of the operator are those of the end.
    systemctl(&["stop", "weir"]);
    assert_eq!(cgroup_file(UNIT, "memory.max"), "134217728");
    assert_eq!(cgroup_file(UNIT, "pids.max"), "500");
    assert!(Path::new(CONTROL).join("50-MemoryMax.conf").exists());
    assert!(!Path::new(CONTROL).join("50-TasksMax.conf").exists());
    fs::remove_dir_all(DROP_INS).unwrap();
    fs::remove_dir_all(CONTROL).unwrap();
    systemctl(&["daemon-reload"]);
    assert_eq!(property(UNIT, "MemoryMax"), "33554432");
}

fn groups_never_lift_a_services_limits_or_its_sandbox() {
    let _units = Units(&["memory.service", "firewall.service", "devices.service"]);
    start(&format!(
        "[[group]]\nname = \"g\"\nexe = {SHELL:?}\nmove = true\npids = 30\n"
    ));
    // Without a subshell, which would be another worker.
    let sent = "{ echo x > /dev/udp/127.0.0.1/9; } 2>/dev/null && echo sent";
    let read = "head -c 1 /dev/vda >/dev/null 2>&1 && echo read";
    for (unit, restriction, act, reason_part) in [
        (
            "memory.service",
            "MemoryMax=64M",
            "true",
            "memory.max 67108864",
        ),
        (
            "firewall.service",
            "IPAddressDeny=any",
            sent,
            "BPF programs",
        ),
        (
            "devices.service",
            "DevicePolicy=closed",
            read,
            "BPF programs",
        ),
    ] {
        let log = format!("/run/weir-{unit}.log");
        let script = format!("exec >> {log}; while sleep 1; do echo round; {act}; done");
        service(
            unit,
            &[restriction],
            &format!("{SHELL} -c '{script}' & sleep 600"),
        );
        let reason = reason();
        assert!(reason.contains(reason_part), "{reason}");
        let rounds = || {
            fs::read_to_string(&log)
                .unwrap_or_default()
                .lines()
                .filter(|line| *line == "round")
                .count()
        };
        let before = rounds();
        within(PATIENCE, "the worker has acted since", || {
            rounds() > before + 3
        });
        let log = fs::read_to_string(&log).unwrap();
        assert!(
            !log.contains("sent") && !log.contains("read"),
            "{restriction} is lifted: {log}"
        );
        // Beside the worker's own there is for moments that of a subshell.
        let mut worker = 0;
        within(PATIENCE, "there is one worker", || match pids(SHELL)[..] {
            [one] => {
                worker = one;
                true
            }
            _ => false,
        });
        assert_eq!(cgroup_of(worker), property(unit, "ControlGroup"));
        let group = groups()[0].clone();
        assert_eq!(group["enforcement"], "none", "{group}");
        within(PATIENCE, "the note", || {
            json(&["status"])["notes"]
                .to_string()
                .contains("not enforced: 1 process")
        });
        let doctor = doctor();
        assert!(
            doctor.contains("g: not enforced") && !doctor.contains("g: enforced"),
            "{doctor}"
        );
        systemctl(&["stop", unit]);
        within(PATIENCE, "the ended worker is forgotten", || {
            groups()[0]["not_enforced"] == Value::Array(Vec::new())
        });
    }
}

fn groups_move_workers_into_a_scope_beside_their_service_and_back() {
    let _units = Units(&["job.service"]);
    make_workers();
    service(
        "job.service",
        &[],
        "/usr/local/bin/weir-worker 600 & exec sleep 600",
    );
    let worker = the_worker();
    let rest = format!("[[group]]\nname = \"g\"\nexe = {WORKER:?}\npids = 30\n");
    start(&rest);
    let reason = reason();
    assert!(
        reason.contains("job.service") && reason.contains("move = true"),
        "{reason}"
    );
    assert_eq!(
        cgroup_of(worker),
        "/system.slice/job.service",
        "moved though move is false"
    );

    let controllers =
        || fs::read_to_string("/sys/fs/cgroup/system.slice/cgroup.subtree_control").unwrap();
    let before = controllers();
    start(&format!("{rest}move = true\n"));
    within(PATIENCE, "it is moved", || {
        cgroup_of(worker).starts_with("/system.slice/weir-g.job.service.")
    });
    let cgroup = cgroup_of(worker);
    let scope = cgroup.rsplit('/').next().unwrap();
    within(PATIENCE, "its scope is limited", || {
        cgroup_file(scope, "pids.max") == "30"
    });
    assert_eq!(cgroup_file(scope, "pids.max"), "30");
    assert_eq!(
        property(scope, "ActiveState"),
        "active",
        "systemd has it in its books"
    );
    assert_eq!(
        controllers(),
        before,
        "other units of the slice have controllers that the group does not require"
    );
    // A reload moves nobody, and has the new limit.
    configure(
        &fs::read_to_string(CONFIG)
            .unwrap()
            .replace("pids = 30", "pids = 40"),
    );
    systemctl(&["reload", "weir"]);
    within(PATIENCE, "the scope has the new limit", || {
        cgroup_file(scope, "pids.max") == "40"
    });
    assert_eq!(cgroup_of(worker), format!("/system.slice/{scope}"));
    systemctl(&["stop", "weir"]);
    assert_eq!(cgroup_of(worker), "/system.slice/job.service");
    within(PATIENCE, "the scope is gone", || {
        property(scope, "ActiveState") == "inactive"
    });
}

fn groups_let_a_service_start_and_restart_its_workers() {
    const WORKERS: usize = 7;
    let _units = Units(&["daemon.service"]);
    start(&format!(
        "[[group]]\nname = \"g\"\nexe = {WORKER:?}\nmove = true\npids = 30\n"
    ));
    let program = "/usr/local/bin/weir-daemon";
    let workers = format!("for n in 1 2 3 4 5 6 {WORKERS}; do {WORKER} 600 & done");
    for (service, script) in [
        (
            "Type=forking\nPIDFile=/run/weir-daemon.pid\n",
            format!("({workers}; wait) &\necho $! > /run/weir-daemon.pid\nsleep 1\n"),
        ),
        (
            "Type=notify\nNotifyAccess=all\n",
            format!("{workers}\nsleep 1\nsystemd-notify --ready\nwait\n"),
        ),
    ] {
        fs::write(program, format!("#!/bin/sh\n{script}")).unwrap();
        fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(
            "/run/systemd/system/daemon.service",
            format!("[Service]\n{service}ExecStart={program}\n"),
        )
        .unwrap();
        systemctl(&["daemon-reload"]);
        systemctl(&["start", "daemon.service"]);
        for _ in 0..3 {
            within(PATIENCE, "all workers are moved", || {
                let all = pids(WORKER);
                all.len() == WORKERS
                    && all.iter().all(|pid| {
                        cgroup_of(*pid).starts_with("/system.slice/weir-g.daemon.service.")
                    })
            });
            assert_eq!(property("daemon.service", "ActiveState"), "active");
            let before = pids(WORKER);
            systemctl(&["restart", "daemon.service"]);
            within(PATIENCE, "the old workers have ended", || {
                pids(WORKER).iter().all(|pid| !before.contains(pid))
            });
        }
        systemctl(&["stop", "daemon.service"]);
        within(PATIENCE, "no worker is left over", || {
            pids(WORKER).is_empty()
        });
    }
}

/// A user with a manager of his own. Returns his number.
fn user() -> String {
    try_run("useradd", &["--create-home", "alice"]);
    run("loginctl", &["enable-linger", "alice"]);
    let id = run("id", &["-u", "alice"]).trim().to_owned();
    let manager = format!("user@{id}.service");
    within(PATIENCE, "the user's manager runs", || {
        property(&manager, "ActiveState") == "active"
    });
    id
}

fn groups_leave_login_sessions_whole() {
    let _units = Units(&["login.service"]);
    make_workers();
    let id = user();
    fs::write(
        "/etc/pam.d/weir-test",
        "auth required pam_permit.so\naccount required pam_permit.so\nsession required pam_systemd.so\n",
    )
    .unwrap();
    service(
        "login.service",
        &["User=alice", "PAMName=weir-test"],
        "/usr/local/bin/weir-worker 600 & exec sleep 600",
    );
    let worker = the_worker();
    let session = cgroup_of(worker);
    assert!(
        session.starts_with(&format!("/user.slice/user-{id}.slice/session-")),
        "it is no session: {session}"
    );
    let slice = format!("user-{id}.slice");
    start(&format!(
        "[[group]]\nname = \"taken\"\nexe = {WORKER:?}\nmove = \"force\"\npids = 30\n\
         [[group]]\nname = \"sessions\"\ncgroup = \"/user.slice/*\"\npids = 500\n"
    ));
    within(PATIENCE, "the user's slice is limited", || {
        cgroup_file(&slice, "pids.max") == "500"
    });
    // Two rounds over all processes, and more.
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(cgroup_of(worker), session);
    assert!(
        run("loginctl", &["list-sessions", "--no-legend"]).contains("alice"),
        "logind ended the session"
    );
    assert_eq!(
        property(&format!("user@{id}.service"), "ActiveState"),
        "active"
    );
    assert!(
        Path::new(&format!("/run/user/{id}")).exists(),
        "logind ended the session"
    );
    let sessions = groups()[1].clone();
    assert_eq!(
        (&sessions["members"][0]["name"], &sessions["enforcement"]),
        (&slice.clone().into(), &"full".into()),
        "{sessions}"
    );
    systemctl(&["stop", "weir"]);
    assert_ne!(cgroup_file(&slice, "pids.max"), "500");
    assert_eq!(cgroup_of(worker), session);
    run("kill", &[&worker.to_string()]);
    within(PATIENCE, "the worker has ended", || pids(WORKER).is_empty());
}

fn groups_send_a_users_process_back_where_it_came_from() {
    let _units = Units(&[]);
    make_workers();
    let id = user();
    let runtime = format!("XDG_RUNTIME_DIR=/run/user/{id}");
    let as_user = [
        "--reuid=alice",
        "--regid=alice",
        "--init-groups",
        "env",
        &runtime,
    ];
    let job = [
        "systemd-run",
        "--user",
        "--quiet",
        "--collect",
        "--unit=job",
        "/bin/sh",
        "-c",
    ];
    run(
        "setpriv",
        &[
            &as_user[..],
            &job,
            &["/usr/local/bin/weir-worker 600 & exec sleep 600"],
        ]
        .concat(),
    );
    let worker = the_worker();
    let home = cgroup_of(worker);
    assert!(
        home.contains(&format!("user@{id}.service/app.slice/job.service")),
        "{home}"
    );
    let group = format!("[[group]]\nname = \"g\"\nexe = {WORKER:?}\npids = 30\nmove = ");
    start(&format!("{group}true\n"));
    assert!(reason().contains(&format!("user {id}")), "{}", reason());
    assert_eq!(cgroup_of(worker), home);
    start(&format!("{group}\"force\"\n"));
    within(PATIENCE, "it is moved", || {
        cgroup_of(worker).contains("/weir-g.")
    });
    configure("[agent]\non_exit = \"detach\"\nallow_empty = true\n");
    systemctl(&["reload", "weir"]);
    assert_eq!(cgroup_of(worker), home, "{}", json(&["status"]));
    run(
        "setpriv",
        &[&as_user[..], &["systemctl", "--user", "stop", "job"]].concat(),
    );
    within(PATIENCE, "its own manager ends it", || {
        pids(WORKER).is_empty()
    });
}

/// Lists one container, as Docker does.
fn docker(id: &str) {
    let body = format!(r#"[{{"Id":"{id}","Names":["/web-docker"],"Labels":{{}}}}]"#);
    let _ = fs::remove_file("/run/docker.sock");
    let listener = UnixListener::bind("/run/docker.sock").unwrap();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = client.read(&mut [0; 1024]);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            let _ = client.write_all(format!("{head}{body}").as_bytes());
        }
    });
}

fn groups_limit_containers_as_podman_starts_them() {
    let id = "0123456789abcdef".repeat(4);
    let _units = Units(&["podman.socket", "podman.service", "docker-*.scope"]);
    make_root(Path::new("/var/tmp/weir-root"));
    systemctl(&["start", "podman.socket"]);
    docker(&id);
    start(
        "[[group]]\nname = \"web\"\ncontainer = \"web*\"\npids = 40\nnetwork = { egress = \"100Mbit/s\" }\n",
    );
    let podman = |name: &str| {
        let options = [
            "run",
            "--detach",
            "--rm",
            "--name",
            name,
            "--network=none",
            "--cgroup-manager=systemd",
        ];
        let program = [
            "--volume=/usr:/usr:ro",
            "--rootfs",
            "/var/tmp/weir-root",
            "/usr/bin/sleep",
            "600",
        ];
        run("podman", &[&options[..], &program].concat())
            .trim()
            .to_owned()
    };
    let web = podman("web1");
    let other = podman("other");
    let scope = |id: &str| format!("libpod-{id}.scope");
    let took = within(PATIENCE, "web1 is limited", || {
        cgroup_file(&scope(&web), "pids.max") == "40"
    });
    println!("a container was limited {took:?} after another one had started");
    assert_ne!(cgroup_file(&scope(&other), "pids.max"), "40");
    wait_until_enforced(0);
    let group = groups()[0].clone();
    assert_eq!(
        (&group["members"][0]["kind"], &group["members"][0]["name"]),
        (&"container".into(), &"web1".into()),
        "{group}"
    );
    assert_eq!(group["enforcement"], "full", "{group}");
    let attached = run(
        "bpftool",
        &[
            "cgroup",
            "show",
            &format!("/sys/fs/cgroup{}", property(&scope(&web), "ControlGroup")),
        ],
    );
    assert!(attached.contains("weir_group_egr"), "{attached}");
    // Docker's, by its socket.
    let unit = format!("docker-{id}.scope");
    let docker_unit = format!("--unit={unit}");
    let mut container = std::process::Command::new("systemd-run")
        .args(["--scope", "--quiet", &docker_unit, "sleep", "600"])
        .spawn()
        .unwrap();
    within(PATIENCE, "Docker's container is limited", || {
        property(&unit, "ActiveState") == "active" && cgroup_file(&unit, "pids.max") == "40"
    });
    container.kill().unwrap();
    container.wait().unwrap();
    run("podman", &["stop", "--time=0", "web1", "other"]);
    within(PATIENCE, "the containers are forgotten", || {
        groups()[0]["members"].as_array().is_some_and(Vec::is_empty)
    });
    fs::remove_file("/run/docker.sock").unwrap();
}
