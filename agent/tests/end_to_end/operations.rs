//! The control socket's permissions, clients that hang, and `weir doctor`.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::tests;
use testbed::trials::Test;

use crate::support::{INTERFACE, Network};
use crate::traffic::{LIMIT, burst, udp_from};

pub const TESTS: &[Test] = tests![
    clients_that_hang_stall_neither_packets_nor_others,
    the_group_may_ask_and_only_root_may_change,
    doctor_reports_what_works_what_does_not_and_the_fix,
    a_read_only_bpf_file_system_is_reported_with_the_fix,
    a_dead_a_silent_and_a_wrong_socket_have_different_errors,
];

pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn clients_that_hang_stall_neither_packets_nor_others() {
    let network = Network::new();
    let agent = network.start("", &LIMIT.replace("1000/s", "1/h"));
    burst(&network, &[udp_from(7)], 150);
    let mut clients = Vec::new();
    for nth in 0..90 {
        let mut client = UnixStream::connect(network.control()).unwrap();
        client.set_nonblocking(true).unwrap();
        match nth % 3 {
            0 => {}
            // Data without an end, as much as is taken.
            1 => while client.write(&[b'x'; 65_536]).is_ok() {},
            // An answer that is never read.
            _ => client.write_all(b"{\"verb\":\"top\"}\n").unwrap(),
        }
        clients.push(client);
    }
    // None of them is waited for: one after the other, each for its 5 seconds, they would take longer than the 10 seconds
    // that a command waits.
    assert_eq!(agent.counts("packets"), (100, 50));
    network.told(&["ban", "10.77.0.7"]);
    burst(&network, &[udp_from(7)], 10);
    assert_eq!(agent.json(&["bans"])[0]["throttled_packets"], 10);
    // More data than any request may have is answered by an error, or by the end of the connection.
    let mut client = clients.swap_remove(1);
    client.set_nonblocking(false).unwrap();
    client
        .set_read_timeout(Some(Duration::from_secs(300)))
        .unwrap();
    let mut answer = String::new();
    while let Ok(()) = client.write_all(&[b'x'; 65_536]) {}
    let _ = client.read_to_string(&mut answer);
    assert!(
        answer.is_empty() || answer.contains("longer than"),
        "{answer}"
    );
    // As many as there are places for, and more: the longest idle ones make room.
    clients.extend((0..250).map(|_| UnixStream::connect(network.control()).unwrap()));
    let mut last = clients.pop().unwrap();
    last.set_read_timeout(Some(Duration::from_secs(300)))
        .unwrap();
    last.write_all(b"{\"verb\":\"bans\"}\n").unwrap();
    let mut answer = String::new();
    last.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("10.77.0.7"), "{answer}");
}

/// Runs a command of the CLI as nobody, who is in the group that owns the socket.
fn as_nobody(network: &Network, arguments: &[&str]) -> Output {
    let mut command = Command::new(testbed::agent());
    command
        .args(arguments)
        .arg("--control")
        .arg(network.control())
        .uid(65534)
        .gid(65534);
    network.in_server(|| command.output()).unwrap()
}

fn the_group_may_ask_and_only_root_may_change() {
    let network = Network::new();
    let _agent = network.start("", LIMIT);
    let mode = network.control().metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    std::fs::set_permissions(
        network.folder.path(),
        std::fs::Permissions::from_mode(0o755),
    )
    .unwrap();
    // Neither root nor of the group.
    let output = as_nobody(&network, &["status"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("may not be used by this user"),
        "{}",
        said(&output)
    );
    // Of the group: it may ask, and change nothing.
    nix::unistd::chown(
        &network.control(),
        None,
        Some(nix::unistd::Gid::from_raw(65534)),
    )
    .unwrap();
    for arguments in [
        &["status"][..],
        &["limits"],
        &["top", "--once"],
        &["show", "10.77.0.7"],
        &["bans"],
        &["groups"],
    ] {
        let output = as_nobody(&network, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    }
    for arguments in [
        &["ban", "10.77.0.7"][..],
        &["unban", "10.77.0.7"],
        &["reset", "10.77.0.7"],
        &["trace", "10.77.0.7"],
        &["record"],
        &["record", "--stop"],
        &["record", "--capture", "/nowhere/a.pcapng"],
    ] {
        let output = as_nobody(&network, arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(
            said(&output).contains("requires root"),
            "{arguments:?}: {}",
            said(&output)
        );
    }
    // A refund gives an allowance back.
    let output = as_nobody(&network, &["decide", "--limit", "a", "--cost", "-1"]);
    assert!(said(&output).contains("requires root"), "{}", said(&output));
    network.told(&["ban", "10.77.0.7"]);
}

fn doctor_reports_what_works_what_does_not_and_the_fix() {
    let network = Network::new();
    let config = network.config("", LIMIT);
    let config = config.to_str().unwrap();
    let output = network.command(&["doctor", "--config", config, "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        output.status.success() && report["ok"] == true,
        "{report:#}"
    );
    let names: Vec<&str> = report["host"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    for name in [
        "kernel",
        "capabilities",
        "BTF",
        "JIT",
        "bpffs",
        "memlock",
        "cgroups",
        "group weir",
    ] {
        assert!(names.contains(&name), "{name} is not looked at: {names:?}");
    }
    let interface = &report["interfaces"][0];
    assert_eq!(
        (&interface["name"], &interface["driver"]),
        (&INTERFACE.into(), &"veth".into())
    );
    assert_eq!(interface["mtu"], 1500);
    assert!(
        interface["queues"][0].as_u64() >= Some(1) && interface["lro"] == false,
        "{interface:#}"
    );
    assert_eq!(interface["checks"][0]["verdict"], "good", "{interface:#}");
    // The table says the same for people.
    let output = network.command(&["doctor", "--config", config]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.contains("weir0: driver veth, MTU 1500") && text.contains("has everything that"),
        "{text}"
    );
    // Attached programs are named.
    let agent = network.start("", LIMIT);
    let output = network.command(&["doctor", "--config", config]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && text.contains("used by Weir: weir_xdp (program "),
        "{text}"
    );
    // A user who cannot read the program's name is not told that it is a stranger's.
    std::fs::set_permissions(
        network.folder.path(),
        std::fs::Permissions::from_mode(0o755),
    )
    .unwrap();
    let mut command = Command::new(testbed::agent());
    command
        .args(["doctor", "--config", config])
        .uid(65534)
        .gid(65534);
    let output = network.in_server(|| command.output()).unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.contains("whose name only root can read") && text.contains("sudo agent doctor"),
        "{text}"
    );
    assert!(
        !text.contains("xdpdrv off") && !text.contains("XDP is used by"),
        "{text}"
    );
    drop(agent);
    // A missing interface ends it with status 1.
    let wrong = std::fs::read_to_string(config)
        .unwrap()
        .replace(INTERFACE, "weir9");
    std::fs::write(config, &wrong).unwrap();
    let output = network.command(&["doctor", "--config", config]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("MISSING") && text.contains("fix: correct [agent] interfaces"),
        "{text}"
    );
    std::fs::write(
        config,
        wrong
            .replace("weir9", INTERFACE)
            .replace("/sys/fs/bpf/weir-t", "/tmp/weir-t"),
    )
    .unwrap();
    let output = network.command(&["doctor", "--config", config]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("is not in a BPF file system"), "{text}");
    // Without privileges.
    network.config("", LIMIT);
    let mut command = Command::new(testbed::agent());
    command
        .args(["doctor", "--config", config])
        .uid(65534)
        .gid(65534);
    let output = network.in_server(|| command.output()).unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("this user lacks") && text.contains("fix: run as root"),
        "{text}"
    );
    let output = network.command(&["doctor", "--config", "/nonexistent.toml"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
}

fn a_read_only_bpf_file_system_is_reported_with_the_fix() {
    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};
    let network = Network::new();
    let config = network.config("", LIMIT);
    let none: Option<&str> = None;
    // Read-only to one thread, and to what it starts.
    let output = |arguments: &[&str]| {
        let mut command = Command::new(testbed::agent());
        command.args(arguments).arg("--config").arg(&config);
        network
            .in_server(|| {
                unshare(CloneFlags::CLONE_NEWNS).unwrap();
                mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
                let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
                mount(none, "/sys/fs/bpf", none, flags, none).unwrap();
                command.output()
            })
            .unwrap()
    };
    let run = output(&[]);
    assert_eq!(run.status.code(), Some(1), "{}", said(&run));
    assert!(
        said(&run).contains("Read-only file system") && said(&run).contains("/sys/fs/bpf"),
        "{}",
        said(&run)
    );
    assert!(!network.has_pins() && !network.has_program() && !network.control().exists());
    let doctor = output(&["doctor"]);
    let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert_eq!(doctor.status.code(), Some(1), "{text}");
    assert!(
        text.contains("is read-only") && text.contains("fix: mount -o remount,rw /sys/fs/bpf"),
        "{text}"
    );
}

fn a_dead_a_silent_and_a_wrong_socket_have_different_errors() {
    let network = Network::new();
    let config = network.config("", LIMIT);
    // A file that is no socket is left alone, by both sides.
    std::fs::write(network.control(), "precious").unwrap();
    let output = network.command(&["status"]);
    assert!(
        said(&output).contains("is not a socket"),
        "{}",
        said(&output)
    );
    let output = network.run_to_end(&config);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("is not a socket"),
        "{}",
        said(&output)
    );
    assert_eq!(
        std::fs::read_to_string(network.control()).unwrap(),
        "precious"
    );
    assert!(!network.has_pins() && !network.has_program());
    std::fs::remove_file(network.control()).unwrap();
    // A socket that an agent left behind when it was killed.
    let agent = network.start("", LIMIT);
    agent.stop(Signal::SIGKILL);
    assert!(network.control().exists());
    let output = network.command(&["status"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("no agent replies"),
        "{}",
        said(&output)
    );
    // The next agent takes its place.
    let agent = network.start("", LIMIT);
    drop(agent);
    // An agent that is stopped, as by a debugger: the socket takes connections, and nobody answers.
    let _ = std::fs::remove_file(network.control());
    let _listener = std::os::unix::net::UnixListener::bind(network.control()).unwrap();
    let output = network.command(&["status"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("did not reply within 10 s"),
        "{}",
        said(&output)
    );
    // An agent in a folder that does not exist makes it, for the group to pass.
    let folder = network.folder.path().join("run/deep");
    let text = std::fs::read_to_string(&config).unwrap();
    let deep = text.replace("control.sock", "run/deep/control.sock");
    std::fs::write(&config, deep).unwrap();
    let mut command = Command::new(testbed::agent());
    command.arg("--config").arg(&config).stderr(Stdio::null());
    let mut child = network.in_server(|| command.spawn()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(300);
    while !folder.join("control.sock").exists() {
        assert!(Instant::now() < deadline, "no socket in time");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mode = folder.metadata().unwrap().permissions().mode();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(mode & 0o777, 0o750);
}
