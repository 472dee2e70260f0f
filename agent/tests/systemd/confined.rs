//! The service within the unit's limits as they are shipped: system calls, capabilities, memory, descriptors.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use testbed::network::StopWhenDropped;
use testbed::tests;

use crate::Test;
use crate::guest::{
    CLIENT, CONFIG, INTERFACE, SERVER, configure, json, limit, make_network, property, received,
    run, said, systemctl, try_run, within,
};
use crate::service::{UNIT, pid, start};

pub const TESTS: &[Test] =
    tests![groups_have_their_disks_and_cpus_and_can_be_killed_with_the_units_capabilities,];
/// Tests that an emulated debug build is too slow for: it accepts fewer than 4,096 clients within the 10 s after which it ends
/// those that ask nothing, and takes minutes to read a table of 16 million sources.
pub const OPTIMIZED: &[Test] = tests![
    a_full_table_and_4096_clients_fit_the_units_limits,
    a_reload_that_exceeds_the_units_memory_is_refused_before_the_kernel_kills,
];

const PATIENCE: Duration = Duration::from_secs(180);
/// The age at which a client's connection is renewed: half of that at which the agent ends it.
const RENEWED: Duration = Duration::from_secs(5);
/// As many as the listener has places for.
const CLIENTS: usize = 4_096;
const LISTENER: &str = "127.0.0.1:9465";
/// Requests that the limit allows.
const ALLOWED: usize = 1_000;
/// The sources that the table has room for, and those that send.
const CAPACITY: u64 = 50_000;
const SOURCES: u32 = 65_536;

/// Sends a packet from each of so many addresses.
fn send_from(count: u32) {
    // The host looks for a neighbour of each address. With a full table of neighbours it would find no real one either.
    for threshold in ["gc_thresh3", "gc_thresh2", "gc_thresh1"] {
        fs::write(
            format!("/proc/sys/net/ipv4/neigh/default/{threshold}"),
            (2 * count).to_string(),
        )
        .unwrap();
    }
    try_run(
        "ip",
        &["route", "replace", "10.88.0.0/16", "dev", INTERFACE],
    );
    try_run(
        "ip",
        &[
            "-n",
            CLIENT,
            "route",
            "replace",
            "local",
            "10.88.0.0/16",
            "dev",
            "lo",
        ],
    );
    std::thread::scope(|scope| {
        scope.spawn(move || {
            setns(
                File::open(format!("/run/netns/{CLIENT}")).unwrap(),
                CloneFlags::CLONE_NEWNET,
            )
            .unwrap();
            let first = u32::from(Ipv4Addr::new(10, 88, 0, 0));
            for nth in 0..count {
                let socket = UdpSocket::bind((Ipv4Addr::from(first + nth), 0)).unwrap();
                socket.send_to(b"x", (SERVER, 9)).unwrap();
            }
        });
    });
}

/// A client of the decide listener that has one question.
struct Client {
    stream: Option<TcpStream>,
    /// The time of its last request, or of its connection.
    since: Instant,
    /// Whether it was allowed, once there is a reply.
    reply: Option<bool>,
}

impl Client {
    /// Connects where it is not: the agent ends connections that ask nothing for 10 s.
    fn connect(&mut self) {
        let is_open = self.stream.as_ref().is_some_and(|stream| {
            stream.set_nonblocking(true).unwrap();
            let peeked = stream.peek(&mut [0]);
            stream.set_nonblocking(false).unwrap();
            matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock)
        });
        if !is_open {
            self.stream = Some(TcpStream::connect(LISTENER).unwrap());
            self.since = Instant::now();
        }
    }

    /// Keeps an old connection open by a request that no limit is charged for.
    fn renew(&mut self) {
        if self.stream.is_none() || self.since.elapsed() < RENEWED {
            return;
        }
        self.connect();
        let stream = self.stream.as_mut().unwrap();
        let sent = stream.write_all(b"GET /v1/health HTTP/1.1\r\nHost: weir\r\n\r\n");
        match sent.and_then(|()| stream.read(&mut [0; 1024])) {
            Ok(length) if length > 0 => self.since = Instant::now(),
            _ => self.stream = None,
        }
    }

    /// Asks, again where the connection ended before there was a reply.
    fn ask(&mut self, user: u8) {
        let body = format!("{{\"limit\":\"logins\",\"key\":{{\"user\":\"{user}\"}}}}");
        let head = format!(
            "POST /v1/decide HTTP/1.1\r\nHost: weir\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        for _ in 0..3 {
            self.connect();
            let stream = self.stream.as_mut().unwrap();
            let mut reply = [0; 1024];
            let sent = stream.write_all(format!("{head}{body}").as_bytes());
            match sent.and_then(|()| stream.read(&mut reply)) {
                Ok(length) if length > 0 => {
                    let status = String::from_utf8_lossy(&reply[..length]);
                    assert!(
                        status.starts_with("HTTP/1.1 200") || status.starts_with("HTTP/1.1 429"),
                        "{status}"
                    );
                    self.reply = Some(status.starts_with("HTTP/1.1 200"));
                    return;
                }
                _ => self.stream = None,
            }
        }
        panic!("no reply in three tries");
    }
}

/// Connections that the agent has.
fn connections(pid: &str) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Processes of the unit that the kernel has killed for want of memory.
fn kills() -> String {
    let path = format!(
        "/sys/fs/cgroup{}/memory.events",
        property(UNIT, "ControlGroup")
    );
    let events = fs::read_to_string(path).unwrap();
    events
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill "))
        .unwrap()
        .to_owned()
}

/// Has all places of the listener taken, and the control socket and the limits at work meanwhile: one source has had its
/// share before. No two tests have the same sources, which are the users,
/// too: slow limits outlive their agent.
fn crowd(pid: &str, [before, fresh]: [u8; 2]) {
    let client = || Client {
        stream: None,
        since: Instant::now(),
        reply: None,
    };
    let clients: Vec<Mutex<Client>> = (0..CLIENTS).map(|_| Mutex::new(client())).collect();
    let without = connections(pid);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // On a busy machine, some would end before all are there.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let renew = |client: &Mutex<Client>| client.lock().unwrap().renew();
                clients.iter().for_each(renew);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let _over = StopWhenDropped(&is_over);
        within(PATIENCE, "all clients are connected", || {
            let connect = |client: &Mutex<Client>| client.lock().unwrap().connect();
            clients.iter().for_each(connect);
            connections(pid) >= without + CLIENTS
        });
        let asked = Instant::now();
        assert_eq!(json(&["status"])["mode"], "enforce");
        println!(
            "`weir status` took {:?} with {CLIENTS} clients",
            asked.elapsed()
        );
        assert_eq!((received(before, 5), received(fresh, 15)), (0, 10));
    });
    let clients = clients
        .into_iter()
        .map(|client| client.into_inner().unwrap());
    let mut clients: Vec<Client> = clients.collect();
    clients.iter_mut().for_each(|client| client.ask(fresh));
    assert_eq!(
        clients
            .iter()
            .filter(|client| client.reply == Some(true))
            .count(),
        ALLOWED
    );
}

/// That it is the same agent, and that nothing was killed.
fn assert_unharmed(pid: &str) {
    assert_eq!(
        (
            property(UNIT, "MainPID").as_str(),
            property(UNIT, "NRestarts").as_str(),
            kills().as_str()
        ),
        (pid, "0", "0")
    );
    assert_eq!(property(UNIT, "Result"), "success");
}

/// A limit on requests, and a listener.
fn decisions() -> String {
    format!(
        "\n[decide]\nhttp = \"{LISTENER}\"\n\n[[limit]]\nname = \"logins\"\nscope = \"request\"\nkey = [\"user\"]\n\
         unit = \"requests\"\nrate = \"1/day\"\nburst = {ALLOWED}\n"
    )
}

/// A process of root's, with all capabilities, that only systemd may move to other CPUs; and a disk that the unit does not
/// see.
fn groups_have_their_disks_and_cpus_and_can_be_killed_with_the_units_capabilities() {
    const SERVICE: &str = "confined.service";
    const WORKER: &str = "/usr/local/bin/confined-worker";
    fs::copy("/bin/sleep", WORKER).unwrap();
    let script = format!("{WORKER} 600 & exec sleep 600");
    run(
        "systemd-run",
        &[
            "--quiet",
            "--collect",
            "--unit",
            SERVICE,
            "/bin/sh",
            "-c",
            &script,
        ],
    );
    let pattern = format!("^{WORKER}");
    within(PATIENCE, "the worker runs", || {
        try_run("pgrep", &["-f", &pattern]).status.success()
    });
    let worker = run("pgrep", &["-f", &pattern]).trim().to_owned();
    let cgroup = || {
        fs::read_to_string(format!("/proc/{worker}/cgroup"))
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let home = format!("0::/system.slice/{SERVICE}");
    assert_eq!(cgroup(), home);
    let numbers = run(
        "lsblk",
        &[
            "--noheadings",
            "--nodeps",
            "--output",
            "MAJ:MIN",
            "/dev/vda",
        ],
    )
    .trim()
    .to_owned();
    let group = format!(
        "[agent]\non_exit = \"detach\"\n[[group]]\nname = \"g\"\nexe = {WORKER:?}\nmove = \"force\"\ncpus = \"0\"\n\
         io = [{{ device = \"/dev/vda\", write = \"20MB/s\" }}]\n"
    );
    start(&group);
    within(PATIENCE, "the worker is moved", || {
        cgroup().contains("/weir-g.confined.service.")
    });
    let file = |name: &str| {
        let path = format!(
            "/sys/fs/cgroup{}/{name}",
            cgroup().trim_start_matches("0::")
        );
        fs::read_to_string(path)
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    within(PATIENCE, "it has its CPU and its disk", || {
        file("cpuset.cpus") == "0" && !file("io.max").is_empty()
    });
    let io = file("io.max");
    assert!(
        io.starts_with(&numbers) && io.contains("wbps=20000000"),
        "{io}"
    );
    within(PATIENCE, "the group is enforced", || {
        json(&["groups"])[0]["enforcement"] == "full"
    });
    systemctl(&["stop", UNIT]);
    assert_eq!(cgroup(), home, "it did not come back");
    systemctl(&["start", UNIT]);
    within(PATIENCE, "the worker is moved", || {
        cgroup().contains("/weir-g.confined.service.")
    });
    run("agent", &["groups", "freeze", "g"]);
    within(PATIENCE, "it is frozen", || {
        file("cgroup.events").contains("frozen 1")
    });
    run("agent", &["groups", "thaw", "g"]);
    run("agent", &["groups", "kill", "g"]);
    // Its parent does not wait for it: it stays as a zombie, without a program.
    within(PATIENCE, "the worker is killed", || {
        fs::read_link(format!("/proc/{worker}/exe")).is_err()
    });
    systemctl(&["stop", SERVICE]);
    systemctl(&["stop", UNIT]);
}

fn a_full_table_and_4096_clients_fit_the_units_limits() {
    let table = limit(10).replace("max_sources = 1_000", &format!("max_sources = {CAPACITY}"));
    start(&format!("{table}{}", decisions()));
    let agent = pid();
    assert_eq!(received(12, 15), 10);
    send_from(SOURCES);
    let sources = json(&["status"])["sources"].clone();
    println!("the table: {sources}");
    let (tracked, capacity) = (
        sources["tracked"].as_u64().unwrap(),
        sources["capacity"].as_u64().unwrap(),
    );
    assert!(
        capacity >= CAPACITY && tracked * 20 >= capacity * 19,
        "the table is not full: {sources}"
    );
    // A source that had its share before the table was full has no more now.
    assert_eq!(received(12, 5), 0);
    crowd(&agent, [12, 13]);
    assert_unharmed(&agent);
}

fn a_reload_that_exceeds_the_units_memory_is_refused_before_the_kernel_kills() {
    // The machine has 2 GiB, of which the unit has 75 %: one table fits and two do not.
    let second =
        "\n[[limit]]\nname = \"bytes\"\nunit = \"bytes\"\nrate = \"1GB/s\"\nburst = \"10MB\"\n";
    let third = second
        .replace("\"bytes\"\nunit", "\"packets-a-minute\"\nunit")
        .replace("unit = \"bytes\"\n", "");
    let third = third
        .replace("1GB/s", "1000000/min")
        .replace("\"10MB\"", "1000000");
    let table = limit(10).replace("max_sources = 1_000", "max_sources = 16_000_000");
    let config = format!("{table}{second}{}", decisions());
    start(&config);
    let agent = pid();
    assert_eq!(received(14, 15), 10);
    configure(&format!("{config}{third}"));
    let checked = said(&try_run("agent", &["check", CONFIG]));
    println!("check: {checked}");
    assert!(checked.contains("memory"), "{checked}");
    let reloaded = try_run("systemctl", &["reload", UNIT]);
    assert!(
        !reloaded.status.success(),
        "a reload that does not fit was accepted"
    );
    run("journalctl", &["--sync"]);
    let journal = run(
        "journalctl",
        &[
            "--boot",
            "--no-pager",
            "--output=cat",
            "--unit",
            UNIT,
            "--lines=20",
        ],
    );
    assert!(journal.contains("not enough memory"), "{journal}");
    assert_unharmed(&agent);
    let limits = json(&["limits"]).to_string();
    assert!(
        limits.contains("\"bytes\"") && !limits.contains("packets-a-minute"),
        "{limits}"
    );
    crowd(&agent, [14, 15]);
    assert_unharmed(&agent);
    make_network();
    systemctl(&["stop", UNIT]);
    run("agent", &["detach"]);
}
