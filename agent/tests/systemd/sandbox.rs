//! What the unit's sandbox forbids, and what it has to allow: a program in the agent's place, with the unit's own settings,
//! tries each.

use std::fs::{self, File};
use std::io;
use std::net::{TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::ptrace;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use nix::unistd::{Gid, Pid, Uid, chown, setuid};
use testbed::tests;

use crate::Test;
use crate::guest::{
    CONFIG, json, limit, property, received, run, said, systemctl, try_run, within,
};
use crate::service::{UNIT, start};

pub const TESTS: &[Test] = tests![
    the_sandbox_forbids_what_the_agent_has_no_use_for,
    the_sandbox_is_stricter_on_a_host_without_groups,
    the_sandbox_permits_groups_after_a_daemon_reload,
];

pub const THOROUGH: &[Test] = tests![
    a_masked_drop_in_keeps_the_sandbox_strict,
    the_sandbox_with_local_stores_only_refuses_other_addresses,
    the_sandbox_is_the_same_with_a_read_only_tmp,
];

/// Has this program try everything, and print a line for each.
pub const PROBE: &str = "--probe";
/// A group of which only a process of another user is a member.
const GROUP: &str =
    "\n[[group]]\nname = \"g\"\nexe = \"/usr/local/bin/sandbox-worker\"\npids = 9\n";
const WORKER: &str = "/usr/local/bin/sandbox-worker";
const WORKERS_UNIT: &str = "sandbox-worker.service";
const FIX: &str = "run `systemctl daemon-reload && systemctl restart weir` as root";
const PATIENCE: Duration = Duration::from_secs(60);
const INSTALLED: &str = "/usr/lib/systemd/system/weir.service";
const PROBE_UNIT: &str = "/run/systemd/system/weir-probe.service";
const REPLIES: &str = "/run/weir/probe";
/// An address beyond loopback.
const ELSEWHERE: &str = "10.77.0.9";
/// What `outcome` says of success.
const DONE: &str = "done";

/// Something that is tried, by its name.
type Attempt = (&'static str, fn() -> io::Result<()>);

const FORBIDDEN: [Attempt; 16] = [
    ("read /etc/shadow", || fs::read("/etc/shadow").map(drop)),
    ("read /etc/gshadow", || fs::read("/etc/gshadow").map(drop)),
    ("write /etc", || written("/etc/weir-probe")),
    ("write /etc/weir", || written("/etc/weir/probe")),
    ("write /usr", || written("/usr/bin/weir-probe")),
    ("write /root", || written("/root/weir-probe")),
    ("write /var/lib", || written("/var/lib/weir-probe")),
    ("write /run", || written("/run/weir-probe")),
    ("write /proc/sys", || {
        fs::write("/proc/sys/kernel/core_pattern", "|/bin/false")
    }),
    ("read a disk", || File::open("/dev/vda").map(drop)),
    ("open a packet socket", || {
        raw_socket(AddressFamily::Packet, None)
    }),
    ("open a raw socket", || {
        raw_socket(AddressFamily::Inet, Some(SockProtocol::Icmp))
    }),
    ("make a namespace", || {
        unshare(CloneFlags::CLONE_NEWNS).map_err(io::Error::from)
    }),
    ("give a file away", || {
        fs::write("/run/weir/given", "")?;
        let given = chown(
            "/run/weir/given",
            Some(Uid::from_raw(1)),
            Some(Gid::from_raw(1)),
        );
        fs::remove_file("/run/weir/given")?;
        given.map_err(io::Error::from)
    }),
    ("trace a process", || {
        ptrace::seize(Pid::from_raw(1), ptrace::Options::empty()).map_err(io::Error::from)
    }),
    // The last: where it succeeds, what follows is another user's.
    ("become another user", || {
        setuid(Uid::from_raw(1)).map_err(io::Error::from)
    }),
];
const ALLOWED: [Attempt; 8] = [
    ("write state_dir", || written("/var/lib/weir/probe")),
    ("write beside the socket", || {
        written("/run/weir/probe-file")
    }),
    ("write a /tmp of its own", || written("/tmp/weir-probe")),
    ("read the config", || {
        fs::read("/etc/weir/limits.toml").map(drop)
    }),
    ("make a pin's directory", || {
        fs::create_dir("/sys/fs/bpf/weir/probe")?;
        fs::remove_dir("/sys/fs/bpf/weir/probe")
    }),
    ("reach the system bus", || {
        UnixStream::connect("/run/dbus/system_bus_socket").map(drop)
    }),
    ("reach a local store", || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        TcpStream::connect(listener.local_addr()?).map(drop)
    }),
    (TO_OTHERS, || {
        UdpSocket::bind("0.0.0.0:0")?
            .send_to(b"x", (ELSEWHERE, 9))
            .map(drop)
    }),
];
/// Only without an address filter.
const TO_OTHERS: &str = "send to another host";
/// Only with the permissions of groups.
const FOR_GROUPS: [Attempt; 3] = [
    ("write what systemd keeps of a unit", || {
        written("/run/systemd/weir-probe")
    }),
    ("write a cgroup's file", || {
        let mut file = File::options();
        file.write(true)
            .open("/sys/fs/cgroup/system.slice/cgroup.freeze")
            .map(drop)
    }),
    ("see another user's program", || {
        let entries = fs::read_dir("/proc")?.flatten();
        let bus = entries.filter(|entry| {
            fs::read_to_string(entry.path().join("comm")).is_ok_and(|name| name == "dbus-daemon\n")
        });
        let bus = bus
            .map(|entry| entry.path().join("exe"))
            .next()
            .ok_or(io::Error::from(Errno::ENOENT))?;
        fs::read_link(bus).map(drop)
    }),
];

fn raw_socket(family: AddressFamily, protocol: Option<SockProtocol>) -> io::Result<()> {
    let opened = socket(family, SockType::Raw, SockFlag::empty(), protocol);
    opened.map(drop).map_err(io::Error::from)
}

fn written(path: &str) -> io::Result<()> {
    fs::write(path, "")?;
    fs::remove_file(path)
}

/// A line for each attempt: its name, and `done` or the error's name.
pub fn probe() -> String {
    let all = FORBIDDEN.iter().chain(&ALLOWED).chain(&FOR_GROUPS);
    all.map(|(name, attempt)| {
        let outcome = match attempt() {
            Ok(()) => DONE.to_owned(),
            Err(error) => error.raw_os_error().map_or_else(
                || error.to_string(),
                |number| format!("{:?}", Errno::from_raw(number)),
            ),
        };
        format!("{name}: {outcome}\n")
    })
    .collect()
}

/// Runs this program with the settings of the installed unit, the drop-in of groups, if it is in effect, and `more`. Returns
/// the outcomes by name.
fn outcome_of_each(more: &str) -> impl Fn(&str) -> String {
    let text = fs::read_to_string(INSTALLED).unwrap();
    let of_the_agent = [
        "Exec", "Type=", "Notify", "Restart", "Watchdog", "Timeout", "Before=", "Wants=",
    ];
    let mut unit: String = text
        .lines()
        .filter(|line| !of_the_agent.iter().any(|start| line.starts_with(start)))
        .map(|line| format!("{line}\n"))
        .collect();
    for drop_in in property(UNIT, "DropInPaths").split_whitespace() {
        unit.push_str(&fs::read_to_string(drop_in).unwrap());
    }
    let program = std::env::current_exe().unwrap();
    unit.push_str(&format!(
        "[Service]\nType=oneshot\nExecStart={} {PROBE}\nStandardOutput=truncate:{REPLIES}\n{more}",
        program.display()
    ));
    fs::write(PROBE_UNIT, unit).unwrap();
    systemctl(&["daemon-reload"]);
    systemctl(&["start", "weir-probe.service"]);
    let replies = fs::read_to_string(REPLIES).unwrap();
    for path in [PROBE_UNIT, REPLIES] {
        fs::remove_file(path).unwrap();
    }
    systemctl(&["daemon-reload"]);
    move |name| {
        let start = format!("{name}: ");
        let line = replies.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("no outcome of {name}: {replies}"))
            .to_owned()
    }
}

fn assert_done(outcome: impl Fn(&str) -> String, attempts: &[Attempt]) {
    for (name, _) in attempts {
        assert_eq!(outcome(name), DONE, "{name}");
    }
}

fn assert_refused(outcome: impl Fn(&str) -> String, attempts: &[Attempt]) {
    let denials = ["EACCES", "EPERM", "EROFS", "ENOENT", "EAFNOSUPPORT"];
    let outcomes = attempts.iter().map(|(name, _)| (*name, outcome(name)));
    let others: Vec<_> = outcomes
        .filter(|(_, outcome)| !denials.contains(&outcome.as_str()))
        .collect();
    assert!(others.is_empty(), "not refused: {others:?}");
}

fn the_sandbox_forbids_what_the_agent_has_no_use_for() {
    start(&format!("{}{GROUP}", limit(10)));
    // Without a sandbox, all of it succeeds here.
    let free = run(std::env::current_exe().unwrap().to_str().unwrap(), &[PROBE]);
    for (name, _) in FORBIDDEN {
        assert!(free.contains(&format!("{name}: {DONE}\n")), "{free}");
    }
    let outcome = outcome_of_each("");
    assert_refused(&outcome, &FORBIDDEN);
    assert_done(&outcome, &ALLOWED);
    assert_done(&outcome, &FOR_GROUPS);
    assert!(!Path::new("/tmp/weir-probe").exists());
}

/// Writes a drop-in of an operator's, and removes it at the end.
struct DropIn(String);

impl DropIn {
    fn new(name: &str, text: &str) -> Self {
        let drop_in = Self(format!("/etc/systemd/system/weir.service.d/{name}"));
        let path = Path::new(&drop_in.0);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        if text.is_empty() {
            std::os::unix::fs::symlink("/dev/null", path).unwrap();
        } else {
            fs::write(path, text).unwrap();
        }
        systemctl(&["daemon-reload"]);
        drop_in
    }
}

impl Drop for DropIn {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        try_run("systemctl", &["daemon-reload"]);
    }
}

/// Fails if the unit's points, in tenths, are more. Each point that is left is there for a reason that docs/SERVICE.md names.
fn assert_points(most: u32) {
    let threshold = format!("--threshold={most}");
    run(
        "systemd-analyze",
        &["security", "--no-pager", &threshold, UNIT],
    );
}

fn the_sandbox_is_stricter_on_a_host_without_groups() {
    // A comment is no group.
    start(&format!("{}{}", limit(10), GROUP.replace('\n', "\n# ")));
    assert_points(20);
    let outcome = outcome_of_each("");
    assert_refused(&outcome, &FORBIDDEN);
    assert_refused(&outcome, &FOR_GROUPS);
    assert_done(&outcome, &ALLOWED);
}

/// The cgroup's limit of processes.
fn pids_of_the_worker() -> String {
    let cgroup = property(WORKERS_UNIT, "ControlGroup");
    let limit = fs::read_to_string(format!("/sys/fs/cgroup{cgroup}/pids.max"));
    limit.unwrap_or_default().trim().to_owned()
}

fn the_sandbox_permits_groups_after_a_daemon_reload() {
    start(&limit(10));
    let _ = fs::remove_file(WORKER);
    fs::copy("/bin/sleep", WORKER).unwrap();
    run(
        "systemd-run",
        &[
            "--quiet",
            "--collect",
            "--unit",
            WORKERS_UNIT,
            "--property=User=nobody",
            WORKER,
            "600",
        ],
    );
    fs::write(CONFIG, format!("{}{GROUP}", limit(10))).unwrap();
    let reload = run("agent", &["reload"]);
    for reports in [
        reload,
        json(&["groups"]).to_string(),
        json(&["status"])["notes"].to_string(),
    ] {
        assert!(
            reports.contains("CAP_SYS_PTRACE is missing") && reports.contains(FIX),
            "{reports}"
        );
    }
    // Limits on packets do not require the permissions of groups.
    assert_eq!((received(2, 15), received(3, 15)), (10, 10));
    assert_points(20);
    assert_ne!(pids_of_the_worker(), "9");

    let commands = FIX.split('`').nth(1).unwrap();
    run("sh", &["-c", commands]);
    within(PATIENCE, "the worker is limited", || {
        pids_of_the_worker() == "9"
    });
    let group = json(&["groups"])[0].clone();
    assert!(
        group["enforcement"] == "full" && !group["notes"].to_string().contains("CAP_SYS_PTRACE"),
        "{group}"
    );
    assert_points(26);

    // Without `weir reload` before: the new agent still has the permissions that ending the groups' limits takes.
    fs::write(CONFIG, limit(10)).unwrap();
    run("sh", &["-c", commands]);
    within(PATIENCE, "the worker is free", || {
        pids_of_the_worker() != "9"
    });
    assert_points(26);
    run("sh", &["-c", commands]);
    assert_points(20);
    systemctl(&["stop", WORKERS_UNIT]);
}

fn a_masked_drop_in_keeps_the_sandbox_strict() {
    start(&format!("{}{GROUP}", limit(10)));
    assert!(property(UNIT, "DropInPaths").contains("groups.conf"));
    let _masked = DropIn::new("groups.conf", "");
    systemctl(&["restart", UNIT]);
    assert_points(20);
    assert_refused(outcome_of_each(""), &FOR_GROUPS);
    let notes = json(&["groups"])[0]["notes"].to_string();
    assert!(notes.contains("CAP_SYS_PTRACE is missing"), "{notes}");
}

/// As docs/SERVICE.md has it.
fn the_sandbox_with_local_stores_only_refuses_other_addresses() {
    start(&limit(10));
    let outcome = outcome_of_each("IPAddressDeny=any\nIPAddressAllow=localhost\n");
    for (name, _) in ALLOWED {
        let expected = if name == TO_OTHERS { "EPERM" } else { DONE };
        assert_eq!(outcome(name), expected, "{name}");
    }
}

/// A mount of a directory on itself that nobody can write.
struct ReadOnly(&'static str);

impl ReadOnly {
    fn new(path: &'static str) -> Self {
        run("mount", &["--bind", path, path]);
        let mount = Self(path);
        run("mount", &["-o", "remount,bind,ro", path]);
        mount
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        try_run("umount", &[self.0]);
    }
}

/// As with a root file system that is read-only, without a tmpfs on /tmp.
fn the_sandbox_is_the_same_with_a_read_only_tmp() {
    start(&limit(10));
    systemctl(&["stop", UNIT]);
    let _places = ["/tmp", "/var/tmp"].map(ReadOnly::new);
    assert!(fs::write("/tmp/weir-probe", "").is_err());
    let version = run("systemctl", &["--version"]);
    let version = version.split_whitespace().nth(1).unwrap();
    // Until then, systemd makes private devices in /tmp: the drop-in of docs/SERVICE.md.
    let drop_in = "[Service]\nPrivateDevices=no\nDevicePolicy=closed\n";
    let _drop_in =
        (version.parse::<u32>().unwrap() < 254).then(|| DropIn::new("read-only.conf", drop_in));
    let started = try_run("systemctl", &["start", UNIT]);
    let status = try_run("systemctl", &["status", "--no-pager", UNIT]);
    assert!(started.status.success(), "{}", said(&status));
    assert_eq!(received(2, 15), 10);
    // No device of the host's either way.
    assert_refused(outcome_of_each(""), &FORBIDDEN);
}
