//! Two namespaces connected by a veth pair, with an agent in one and senders in the other; all removed on drop.

mod agent;
mod host;

use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};

use crate::foreign::{Foreign, Place};
use crate::wait::PATIENCE;
use crate::wire::{Receiver, is_queueing};

pub use agent::{Agent, StopWhenDropped};
pub use host::{a_while, can_make, has_fq, has_tcx, has_vxlan, is_virtual, obstacle};

/// The interface that the agent limits.
pub const INTERFACE: &str = "weir0";
/// The address on that interface.
pub const SERVER: [u8; 4] = [10, 77, 0, 1];
/// Its IPv6 address.
pub const SERVER6: [u8; 16] = [0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
/// Hardware addresses of the two ends.
pub const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0x77, 2];
/// The server's end.
pub const SERVER_MAC: [u8; 6] = [2, 0, 0, 0, 0x77, 1];
/// The same as text, the server's first.
const MACS: [&str; 2] = ["02:00:00:00:77:01", "02:00:00:00:77:02"];

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The binary under test: the one with the eBPF object inside.
fn agent() -> Option<PathBuf> {
    std::env::var_os("WEIR_AGENT")
        .map(PathBuf::from)
        .filter(|path| path.exists())
}

pub fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Runs many commands of `ip`, in a namespace or here.
fn batch(namespace: Option<&str>, commands: &str) {
    let mut ip = Command::new("ip");
    ip.args(namespace.iter().flat_map(|name| ["-n", name]))
        .args(["-batch", "-"]);
    let mut child = ip
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(commands.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "ip -batch: {}{commands}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The test network.
pub struct Network {
    client: String,
    server: String,
    /// The folder of configs and sockets.
    pub folder: tempfile::TempDir,
    pins: PathBuf,
    /// The name by which agents and commands are called.
    program: &'static str,
}

impl Network {
    pub fn new() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("weir-t{}-{number}", std::process::id());
        let network = Self {
            client: format!("{name}c"),
            server: format!("{name}s"),
            folder: tempfile::tempdir().unwrap(),
            pins: PathBuf::from(format!("/sys/fs/bpf/{name}")),
            program: "agent",
        };
        let (client, server) = (network.client.as_str(), network.server.as_str());
        run("ip", &["netns", "add", client]);
        run("ip", &["netns", "add", server]);
        network.join();
        network
    }

    /// The same with agents and commands that are called `weir`, as by a package.
    pub fn as_packaged(mut self) -> Self {
        self.program = "weir";
        self
    }

    fn program(&self) -> Command {
        let mut command = Command::new(agent().unwrap());
        command.arg0(self.program);
        command
    }

    /// Connects the namespaces by the veth pair.
    pub fn join(&self) {
        let (client, server) = (self.client.as_str(), self.server.as_str());
        let end = |name: &str, mac: &str, namespace: &str| {
            format!("name {name} address {mac} netns {namespace}")
        };
        let (own, peer) = (
            end(INTERFACE, MACS[0], server),
            end("client0", MACS[1], client),
        );
        batch(None, &format!("link add {own} type veth peer {peer}\n"));
        // The client's kernel sends nothing by itself: every packet is one that a test sent.
        self.in_client(|| std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap());
        // A packet that waits for its neighbour's address could be overtaken, and counted late.
        batch(
            Some(client),
            &format!(
                "addr add 10.77.0.2/16 dev client0\nlink set client0 up\nlink set lo up\n\
                 neigh replace 10.77.0.1 lladdr {} dev client0 nud permanent\n",
                MACS[0]
            ),
        );
        batch(
            Some(server),
            &format!(
                "addr add fd77::1/64 dev {INTERFACE} nodad\naddr add 10.77.0.1/16 dev {INTERFACE}\n\
                 link set {INTERFACE} up\nlink set lo up\n\
                 neigh replace 10.77.0.2 lladdr {} dev {INTERFACE} nud permanent\n",
                MACS[1]
            ),
        );
        self.in_client(|| crate::wire::wait_until_running("client0"));
    }

    /// The name of the client's namespace.
    pub fn client(&self) -> &str {
        &self.client
    }

    /// The name of the server's namespace.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Runs `work` on a thread inside the client's namespace.
    pub fn in_client<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        inside(&self.client, work)
    }

    /// Runs `work` on a thread inside the server's namespace.
    pub fn in_server<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        inside(&self.server, work)
    }

    /// A second veth pair between the two namespaces, without addresses.
    pub fn add_link(&self, server_end: &str, client_end: &str) {
        let (client, server) = (self.client.as_str(), self.server.as_str());
        let pair = [
            "link", "add", server_end, "netns", server, "type", "veth", "peer", "name", client_end,
        ];
        run("ip", &[&pair[..], &["netns", client]].concat());
        run("ip", &["-n", client, "link", "set", client_end, "up"]);
        run("ip", &["-n", server, "link", "set", server_end, "up"]);
        self.in_client(|| crate::wire::wait_until_running(client_end));
    }

    /// Removes such a pair.
    pub fn remove_link(&self, server_end: &str) {
        run("ip", &["-n", &self.server, "link", "del", server_end]);
    }

    /// The index of one of the server's interfaces.
    pub fn index(&self, interface: &str) -> u32 {
        self.in_server(|| nix::net::if_::if_nametoindex(interface).unwrap())
    }

    /// Runs `ip` in the server's namespace.
    pub fn ip(&self, arguments: &[&str]) {
        run("ip", &[&["-n", &self.server], arguments].concat());
    }

    /// Runs many commands of `ip` in the server's namespace.
    pub fn ip_batch(&self, commands: &str) {
        batch(Some(&self.server), commands);
    }

    /// Puts rules of nftables in effect, in the namespace of the caller.
    pub fn use_rules(&self, rules: &str) {
        let path = self.folder.path().join("rules.nft");
        std::fs::write(&path, rules).unwrap();
        run("nft", &["-f", path.to_str().unwrap()]);
    }

    /// Runs `tc` in the server's namespace.
    pub fn tc(&self, arguments: &[&str]) {
        run("tc", &[&["-n", &self.server], arguments].concat());
    }

    /// Further IPv4 addresses of the client's.
    pub fn add_client_addresses(&self, addresses: &[[u8; 4]]) {
        let of = |[a, b, c, d]: &[u8; 4]| format!("{a}.{b}.{c}.{d}");
        let added = |address| format!("addr add {}/32 dev client0\n", of(address));
        let known = |address| {
            format!(
                "neigh replace {} lladdr {} dev {INTERFACE} nud permanent\n",
                of(address),
                MACS[1]
            )
        };
        batch(
            Some(&self.client),
            &addresses.iter().map(added).collect::<String>(),
        );
        batch(
            Some(&self.server),
            &addresses.iter().map(known).collect::<String>(),
        );
    }

    /// A further address of the client's.
    pub fn add_client_address(&self, address: &str) {
        run(
            "ip",
            &["-n", &self.client, "addr", "add", address, "dev", "client0"],
        );
        let host = address.split('/').next().unwrap_or_default();
        self.ip(&[
            "neigh",
            "replace",
            host,
            "lladdr",
            MACS[1],
            "dev",
            INTERFACE,
            "nud",
            "permanent",
        ]);
    }

    /// An address for one of the server's devices, which is set up.
    pub fn configure_server(&self, device: &str, address: &str) {
        run(
            "ip",
            &["-n", &self.server, "addr", "add", address, "dev", device],
        );
        run("ip", &["-n", &self.server, "link", "set", device, "up"]);
    }

    /// Runs `ip` in the server's namespace.
    pub fn server_ip(&self, arguments: &[&str]) {
        run("ip", &[&["-n", &self.server], arguments].concat());
    }

    /// Sets the queueing discipline `fq` on the server's interface, which implements departure times.
    pub fn queue_fairly(&self, options: &[&str]) {
        let namespace = format!("--net=/run/netns/{}", self.server);
        let replace = [
            &namespace, "tc", "qdisc", "replace", "dev", INTERFACE, "root", "fq",
        ];
        run("nsenter", &[&replace[..], options].concat());
    }

    /// A VXLAN between the two namespaces, 10.79.0.1 the server's end and 10.79.0.2 the client's.
    pub fn add_vxlan(&self) {
        const MACS: [&str; 2] = ["02:00:00:00:79:01", "02:00:00:00:79:02"];
        let ends = [
            (&self.server, INTERFACE, 1, 2),
            (&self.client, "client0", 2, 1),
        ];
        for (namespace, device, own, other) in ends {
            let (mac, other_mac) = (MACS[own - 1], MACS[other - 1]);
            let (local, remote) = (format!("10.77.0.{own}"), format!("10.77.0.{other}"));
            inside(namespace, || {
                std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
                let kind = ["type", "vxlan", "id", "7", "dstport", "4789", "dev", device];
                let ends = ["local", &local, "remote", &remote];
                run(
                    "ip",
                    &[
                        &["link", "add", "tunnel0", "address", mac][..],
                        &kind,
                        &ends,
                    ]
                    .concat(),
                );
                run(
                    "ip",
                    &[
                        "addr",
                        "add",
                        &format!("10.79.0.{own}/24"),
                        "dev",
                        "tunnel0",
                    ],
                );
                run("ip", &["link", "set", "tunnel0", "up"]);
                let neighbour = format!("10.79.0.{other}");
                run(
                    "ip",
                    &[
                        "neigh",
                        "add",
                        &neighbour,
                        "lladdr",
                        other_mac,
                        "dev",
                        "tunnel0",
                        "nud",
                        "permanent",
                    ],
                );
            });
        }
    }

    pub fn set_mtu(&self, mtu: u32) {
        for (namespace, device) in [(&self.client, "client0"), (&self.server, INTERFACE)] {
            run(
                "ip",
                &[
                    "-n",
                    namespace,
                    "link",
                    "set",
                    device,
                    "mtu",
                    &mtu.to_string(),
                ],
            );
        }
    }

    /// Enables the client's end to receive frames from XDP's transmission, which a veth requires a program for: one
    /// that passes everything.
    pub fn accept_xdp_frames(&self) {
        let config = self.folder.path().join("other.toml");
        let control = self.folder.path().join("other.sock");
        let (pins, state) = (self.other_pins(), self.folder.path().join("other-state"));
        let text = format!(
            "interfaces = [\"client0\"]\nattach = \"native\"\ncontrol = {control:?}\npins = {pins:?}\nstate_dir = {state:?}\n\
             allow_empty = true\n"
        );
        std::fs::write(&config, format!("[agent]\n{text}")).unwrap();
        let mut command = Command::new(agent().unwrap());
        command.arg("--config").arg(&config).stderr(Stdio::null());
        let mut child = inside(&self.client, || command.spawn()).unwrap();
        let deadline = Instant::now() + PATIENCE;
        // A program that is listed may not be pinned yet, and would disappear with the agent.
        let mut status = Command::new(agent().unwrap());
        status.arg("status").arg("--control").arg(&control);
        while !status.output().unwrap().status.success() {
            assert!(
                child.try_wait().unwrap().is_none(),
                "the program was not attached"
            );
            assert!(
                Instant::now() < deadline,
                "no program was attached within {PATIENCE:?}"
            );
            thread::sleep(Duration::from_millis(20));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(has_program(&self.client, "client0"));
    }

    /// Attaches another owner's program to the server's interface: one that passes everything.
    pub fn attach_foreign(&self, place: Place) -> Foreign {
        self.in_server(|| Foreign::attach(nix::net::if_::if_nametoindex(INTERFACE).unwrap(), place))
    }

    /// Adds a default route on the server.
    pub fn add_default_route(&self, gateway: &str) {
        let family = if gateway.contains(':') { "-6" } else { "-4" };
        run(
            "ip",
            &[
                "-n",
                &self.server,
                family,
                "route",
                "add",
                "default",
                "via",
                gateway,
                "dev",
                INTERFACE,
            ],
        );
    }

    /// The directory of the pins.
    pub fn pins(&self) -> &Path {
        &self.pins
    }

    pub fn other_pins(&self) -> PathBuf {
        PathBuf::from(format!("{}-other", self.pins.display()))
    }

    /// Packets with this mark are not routed.
    pub fn drop_marked(&self, mark: u32) {
        let rule = [
            "-n",
            &self.server,
            "rule",
            "add",
            "pref",
            "0",
            "fwmark",
            &mark.to_string(),
            "table",
            "99",
        ];
        run(
            "ip",
            &[
                "-n",
                &self.server,
                "rule",
                "add",
                "pref",
                "10",
                "table",
                "local",
            ],
        );
        run("ip", &["-n", &self.server, "rule", "del", "pref", "0"]);
        run("ip", &rule);
        run(
            "ip",
            &[
                "-n",
                &self.server,
                "route",
                "add",
                "blackhole",
                "default",
                "table",
                "99",
            ],
        );
    }

    /// Whether anything is pinned.
    pub fn has_pins(&self) -> bool {
        self.pins.exists()
    }

    /// Whether an XDP program is on the interface.
    pub fn has_program(&self) -> bool {
        has_program(&self.server, INTERFACE)
    }

    /// Frames that the kernel has received from the server's interface or dropped there; `None` without that interface.
    pub fn arrived(&self) -> Option<u64> {
        self.arrived_on(INTERFACE)
    }

    /// The same of another of its interfaces.
    fn arrived_on(&self, interface: &str) -> Option<u64> {
        let table = self
            .in_server(|| std::fs::read_to_string("/proc/thread-self/net/dev"))
            .unwrap();
        let row = table
            .lines()
            .find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':'))?;
        // Received: bytes, packets, errors, dropped.
        let fields: Vec<u64> = row
            .split_whitespace()
            .map_while(|field| field.parse().ok())
            .collect();
        Some(fields[1] + fields[3])
    }

    /// Waits until `sent` more frames have arrived and no CPU has queued packets: on a busy machine, sent frames may be
    /// queued. The wait is bounded, since other interfaces may have taken frames, or they were lost.
    pub fn wait_for_arrival(&self, before: Option<u64>, sent: u64) {
        self.wait_for_arrival_on(INTERFACE, before, sent);
    }

    /// Sends on another link of the client's, and waits likewise.
    pub fn send_on(&self, (client_end, server_end): (&str, &str), frames: &[Vec<u8>]) {
        let before = self.arrived_on(server_end);
        self.in_client(|| crate::wire::Sender::on(client_end).send_all(frames));
        self.wait_for_arrival_on(server_end, before, frames.len() as u64);
    }

    fn wait_for_arrival_on(&self, interface: &str, before: Option<u64>, sent: u64) {
        let Some(before) = before else { return };
        let deadline = Instant::now() + Duration::from_secs(60);
        let has_arrived = || {
            self.arrived_on(interface)
                .is_none_or(|now| now >= before + sent)
                && !is_queueing()
        };
        while !has_arrived() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Counts datagrams that reach a UDP socket of the server, by source, until `done`.
    pub fn receiver(&self, port: u16) -> Receiver {
        let to = SocketAddr::from(([0; 4], port));
        Receiver::new(self.in_server(|| crate::wire::bind(to).unwrap()))
    }

    /// The same for a socket of the client.
    pub fn client_receiver(&self, address: &str) -> Receiver {
        let to = address.parse().unwrap();
        Receiver::new(self.in_client(|| crate::wire::bind(to).unwrap()))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in [&self.client, &self.server] {
            let _ = Command::new("ip")
                .args(["netns", "del", namespace])
                .status();
        }
        let _ = std::fs::remove_dir_all(&self.pins);
        let _ = std::fs::remove_dir_all(self.other_pins());
    }
}

fn has_program(namespace: &str, interface: &str) -> bool {
    let output = Command::new("ip")
        .args(["-n", namespace, "-d", "link", "show", interface])
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).contains("xdp")
}

fn inside<T: Send>(namespace: &str, work: impl FnOnce() -> T + Send) -> T {
    let file = File::open(format!("/run/netns/{namespace}")).unwrap();
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            setns(&file, CloneFlags::CLONE_NEWNET).unwrap();
            work()
        });
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
