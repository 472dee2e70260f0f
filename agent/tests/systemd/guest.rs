//! The guest: its service manager, its journal, and a network inside it.

use std::fs;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use serde_json::Value;
use testbed::wire::is_queueing;

/// The config of the service.
pub const CONFIG: &str = "/etc/weir/limits.toml";
/// The interface of the host that the agent limits.
pub const INTERFACE: &str = "weir0";
/// The address of the host at that interface.
pub const SERVER: &str = "10.77.0.1";
/// The longest time that packets are waited for.
const ARRIVAL: Duration = Duration::from_secs(60);
/// The namespace at its other end.
pub const CLIENT: &str = "client";

/// Has this program send a request over a unix socket, and print the reply.
pub const EXCHANGE: &str = "--exchange";

/// Sends a request over a unix socket, and returns the reply.
pub fn exchange(socket: &str, request: &str) -> String {
    let mut stream =
        UnixStream::connect(socket).unwrap_or_else(|error| panic!("{socket}: {error}"));
    stream.write_all(request.as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

/// Which boot of the guest this is; `None` elsewhere.
pub fn boot() -> Option<usize> {
    let is_guest =
        std::env::var_os("WEIR_SYSTEMD").is_some() && Path::new("/run/systemd/system").exists();
    std::env::var("WEIR_BOOT")
        .ok()
        .filter(|_| is_guest)?
        .parse()
        .ok()
}

/// A file that came with the tests.
pub fn file(name: &str) -> String {
    format!("/root/tests/{name}")
}

/// Runs a program, and returns whatever came of it.
pub fn try_run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// Both outputs of a program.
pub fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Runs a program that has to succeed, and returns what it printed.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = try_run(program, arguments);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}\n{}",
        output.status,
        said(&output)
    );
    String::from_utf8(output.stdout).unwrap()
}

pub fn systemctl(arguments: &[&str]) -> String {
    run("systemctl", arguments)
}

/// A property of a unit.
pub fn property(unit: &str, name: &str) -> String {
    systemctl(&["show", unit, "--value", "--property", name])
        .trim_end()
        .to_owned()
}

/// One of the agent's documents.
pub fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&run("agent", &[arguments, &["--json"]].concat())).unwrap()
}

/// Where the journal is now.
pub fn journal_cursor() -> String {
    let said = run("journalctl", &["--quiet", "--lines=0", "--show-cursor"]);
    said.trim_end()
        .rsplit("cursor: ")
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// The journal since then, of systemd, the kernel and Weir.
pub fn journal_since(cursor: &str) -> String {
    try_run("journalctl", &["--sync"]);
    let after = format!("--after-cursor={cursor}");
    said(&try_run(
        "journalctl",
        &[
            "--no-pager",
            "--output=short-monotonic",
            "--lines=300",
            &after,
        ],
    ))
}

/// Waits until something is so, and fails with what it is then.
pub fn within(limit: Duration, what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !is_so() {
        assert!(
            start.elapsed() < limit,
            "{what}: not after {:?}",
            start.elapsed()
        );
        thread::sleep(Duration::from_millis(50));
    }
    start.elapsed()
}

/// Writes the service's config. If it gains or loses groups, the unit gains or loses their permissions.
pub fn configure(text: &str) {
    let has_groups = text
        .lines()
        .any(|line| line.trim().starts_with("[[group]]"));
    fs::write(CONFIG, text).unwrap();
    let permits_groups = property("weir.service", "DropInPaths").contains("groups.conf");
    if has_groups != permits_groups {
        systemctl(&["daemon-reload"]);
    }
}

/// A config for [`INTERFACE`] under which a source may send `burst` packets, and then no more for an hour.
pub fn limit(burst: u32) -> String {
    format!(
        "[agent]\ninterfaces = [\"{INTERFACE}\"]\nmax_sources = 1_000\n\n[[limit]]\nname = \"packets\"\nprotocol = \"udp\"\nrate = \"1/h\"\n\
         burst = {burst}\n"
    )
}

/// Makes the host's interface and, in a namespace of its own, a client at the other end; those of before are removed.
pub fn make_network() {
    remove_network();
    run("ip", &["netns", "add", CLIENT]);
    run(
        "ip",
        &[
            "link", "add", INTERFACE, "type", "veth", "peer", "name", "client0", "netns", CLIENT,
        ],
    );
    run(
        "ip",
        &["addr", "add", &format!("{SERVER}/24"), "dev", INTERFACE],
    );
    run("ip", &["link", "set", INTERFACE, "up"]);
    run("ip", &["-n", CLIENT, "link", "set", "client0", "up"]);
    run("ip", &["-n", CLIENT, "link", "set", "lo", "up"]);
}

pub fn remove_network() {
    try_run("ip", &["link", "del", INTERFACE]);
    try_run("ip", &["netns", "del", CLIENT]);
}

/// Gives the client an address, unless it has it.
pub fn add_client(address: &str) {
    let prefix = format!("{address}/24");
    try_run(
        "ip",
        &["-n", CLIENT, "addr", "add", &prefix, "dev", "client0"],
    );
}

/// Runs `work` as the client.
pub fn in_client<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let namespace = File::open(format!("/run/netns/{CLIENT}")).unwrap();
            setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
            work()
        });
        worker.join().unwrap()
    })
}

/// Frames that the kernel has received from [`INTERFACE`] or dropped there.
fn arrived() -> u64 {
    let table = fs::read_to_string("/proc/net/dev").unwrap();
    let row = table
        .lines()
        .find_map(|line| line.trim().strip_prefix(INTERFACE)?.strip_prefix(':'))
        .unwrap();
    // Received: bytes, packets, errors, dropped.
    let fields: Vec<u64> = row
        .split_whitespace()
        .map_while(|field| field.parse().ok())
        .collect();
    fields[1] + fields[3]
}

/// How many of `count` packets from this source, the last byte of its address, reach a socket of the host's.
pub fn received(source: u8, count: usize) -> usize {
    let receiver = UdpSocket::bind((SERVER, 0)).unwrap();
    let to = receiver.local_addr().unwrap();
    let address = format!("10.77.0.{source}");
    add_client(&address);
    let before = arrived();
    in_client(|| {
        let socket = UdpSocket::bind((address.as_str(), 0)).unwrap();
        for _ in 0..count {
            socket.send_to(b"x", to).unwrap();
        }
    });
    // Others may send, too; frames may be lost where the machine is busy.
    let start = Instant::now();
    while (arrived() < before + count as u64 || is_queueing()) && start.elapsed() < ARRIVAL {
        thread::sleep(Duration::from_millis(2));
    }
    receiver
        .set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let mut buffer = [0; 16];
    (0..count)
        .take_while(|_| receiver.recv(&mut buffer).is_ok())
        .count()
}
