//! Sources that prove their address by resets: of forwarded connections, and of listeners of this host.

use std::io::Write as _;
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::packet::build::Frame;
use testbed::tests;
use testbed::trials::Test;

use crate::prove::{network, proofs};
use crate::support::{Agent, CLIENT_MAC, Network, SERVER, SERVER_MAC, run};
use crate::traffic::burst;

pub const ON_KERNELS: &[Test] = tests![forwarded_connections_are_proven_by_native_xdp];
pub const ON_ANY_KERNEL: &[Test] = tests![
    forwarded_connections_are_proven_by_traffic_control,
    a_source_stays_known_over_reloads_and_restarts_and_not_without_the_limit,
    frames_to_another_device_are_not_answered,
];
/// Tests that require nft.
pub const WITH_NFT: &[Test] = tests![a_client_behind_a_stateful_firewall_connects];

const PORT: u16 = 80;
const SYN: u8 = 2;
const LIMIT: &str =
    "[[limit]]\nname = \"web\"\nprotocol = \"tcp\"\nports = [80]\nunit = \"connections\"\nprove = \"reset\"\n";

const BACKEND_MAC: &str = "02:00:00:00:78:02";

/// A host behind the server, which forwards to it: 10.78.0.2 and fd78::2.
struct Backend(Network);

impl Backend {
    fn behind(network: &Network) -> Self {
        let backend = Network::new();
        run(
            "ip",
            &[
                "-n",
                network.server(),
                "link",
                "add",
                "back0",
                "type",
                "veth",
                "peer",
                "back1",
                "address",
                BACKEND_MAC,
                "netns",
                backend.server(),
            ],
        );
        network.ip_batch("addr add 10.78.0.1/24 dev back0\naddr add fd78::1/64 dev back0 nodad\nlink set back0 up\n");
        // Its link-local address is tentative for a second, and none of its solicitations is sent before.
        network.ip(&["neigh", "replace", "fd78::2", "lladdr", BACKEND_MAC, "dev", "back0", "nud", "permanent"]);
        backend.ip_batch(
            "addr add 10.78.0.2/24 dev back1\naddr add fd78::2/64 dev back1 nodad\nlink set back1 up\n\
             addr del 10.77.0.1/16 dev weir0\naddr del fd77::1/64 dev weir0\n\
             route add 10.77.0.0/16 via 10.78.0.1\nroute add fd77::/64 via fd78::1\n",
        );
        network.in_server(|| {
            for path in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
                std::fs::write(format!("/proc/sys/net/{path}"), "1").unwrap();
            }
        });
        for (to, via) in [("10.78.0.0/24", "10.77.0.1"), ("fd78::/64", "fd77::1")] {
            run("ip", &["-n", network.client(), "route", "add", to, "via", via]);
        }
        Self(backend)
    }

    fn listen(&self) -> TcpListener {
        self.0.in_server(|| {
            std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", "0").unwrap();
            listen()
        })
    }
}

fn listen() -> TcpListener {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT)).unwrap();
    listener.set_nonblocking(true).unwrap();
    listener
}

/// Connects and sends nothing; returns how long it took.
fn connect(network: &Network, to: &str) -> (TcpStream, Duration) {
    let to: SocketAddr = to.parse().unwrap();
    network.in_client(|| {
        let start = Instant::now();
        let stream = TcpStream::connect_timeout(&to, Duration::from_secs(20)).unwrap();
        (stream, start.elapsed())
    })
}

fn accepted(listener: &TcpListener) -> usize {
    std::iter::from_fn(|| listener.accept().ok()).count()
}

/// (SYNs that were answered by a challenge, resets that proved an address).
fn challenges(agent: &Agent<'_>) -> (u64, u64) {
    (proofs(agent, "syns_challenged"), proofs(agent, "resets_accepted"))
}

/// SYNs of a thousand sources to the host behind the server.
fn forged() -> Vec<Vec<u8>> {
    let frame = |nth: u16| {
        let [c, d] = nth.to_be_bytes();
        let frame = Frame::between(CLIENT_MAC, SERVER_MAC).ipv4([10, 77, 100 + c, d], [10, 78, 0, 2]);
        frame.tcp(4_000, PORT, SYN, b"").build()
    };
    (1..=1_000).map(frame).collect()
}

fn forwarded_connections_are_proven(attach: &str) {
    let network = network("1", attach);
    let backend = Backend::behind(&network);
    let agent = network.start(&format!("attach = {attach:?}"), &format!("{LIMIT}rate = \"10000/s\"\n"));
    let listener = backend.listen();
    burst(&network, &forged(), 10_000);
    assert_eq!((challenges(&agent), agent.counts("web")), ((10_000, 0), (0, 0)));
    assert_eq!(agent.json(&["status"])["sources"]["tracked"], 0);
    for (nth, to) in ["10.78.0.2:80", "[fd78::2]:80"].into_iter().enumerate() {
        let nth = nth as u64;
        let (_first, took) = connect(&network, to);
        // Under load, Linux may repeat its SYN before the reset has arrived.
        let (challenged, proven) = challenges(&agent);
        assert!(challenged > 10_000 + nth && proven == nth + 1, "{challenged}, {proven}");
        let (_second, later) = connect(&network, to);
        assert_eq!(challenges(&agent), (challenged, proven));
        println!("{attach}: {to} connects after {took:?}, and once it is known after {later:?}");
    }
    // The host behind has seen the clients' connections only.
    agent.wait_for("four connections", |_| agent.counts("web") == (4, 0));
    assert_eq!(accepted(&listener), 4);
}

fn forwarded_connections_are_proven_by_native_xdp() {
    forwarded_connections_are_proven("native");
}

fn forwarded_connections_are_proven_by_traffic_control() {
    forwarded_connections_are_proven("tc");
}

fn a_source_stays_known_over_reloads_and_restarts_and_not_without_the_limit() {
    let network = network("0", "native");
    let limit = |rate: u32| format!("{LIMIT}rate = \"{rate}/s\"\n");
    let agent = network.start("attach = \"native\"", &limit(1_000));
    let listener = network.in_server(listen);
    /// How many challenges and proofs a connection requires.
    fn required(network: &Network, agent: &Agent<'_>) -> (u64, u64) {
        let before = challenges(agent);
        connect(network, "10.77.0.1:80");
        let after = challenges(agent);
        (after.0 - before.0, after.1 - before.1)
    }
    assert_eq!(required(&network, &agent).1, 1);
    // A limit more takes other programs and another table.
    let more = "[[limit]]\nname = \"more\"\nprotocol = \"udp\"\nrate = \"9/s\"\nalgorithm = \"sliding-log\"\n";
    network.config("attach = \"native\"", &format!("{}{more}", limit(1_000)));
    network.told(&["reload"]);
    assert_eq!(required(&network, &agent), (0, 0));
    let (_, status) = agent.stop(nix::sys::signal::Signal::SIGKILL);
    assert!(!status.success());
    let agent = network.start("attach = \"native\"", &limit(1_000));
    assert_eq!(required(&network, &agent), (0, 0));
    // Nothing of it remains.
    network.config("attach = \"native\"", &limit(1_000).replace("prove = \"reset\"\n", ""));
    network.told(&["reload"]);
    connect(&network, "10.77.0.1:80");
    network.config("attach = \"native\"", &limit(1_000));
    network.told(&["reload"]);
    assert_eq!((required(&network, &agent).1, accepted(&listener)), (1, 5));
}

/// A bridge or a tap sees other hosts' frames: an answer in their name is not this host's to send.
fn frames_to_another_device_are_not_answered() {
    let network = network("1", "native");
    let agent = network.start("attach = \"native\"", &format!("{LIMIT}rate = \"10000/s\"\n"));
    let frame = |to, address| Frame::between(CLIENT_MAC, to).ipv4([10, 77, 0, 2], address).tcp(4_000, PORT, SYN, b"");
    burst(&network, &[frame([2, 0, 0, 0, 9, 9], SERVER).build()], 100);
    assert_eq!((challenges(&agent), agent.counts("web")), ((0, 0), (100, 0)));
    // It has the right device, and nobody's address: it is refused, and not answered.
    burst(&network, &[frame(SERVER_MAC, [224, 0, 0, 1]).build()], 100);
    assert_eq!((challenges(&agent), agent.counts("web")), ((100, 0), (100, 0)));
}

const FIREWALL: &str = "table inet filter {\n\
    chain input { type filter hook input priority 0; ct state established,related accept; drop; }\n\
    chain output { type filter hook output priority 0; ct state invalid drop; }\n}\n";

/// Whether nft can set up the test's firewall.
pub fn has_nft() -> bool {
    let mut nft = Command::new("unshare");
    nft.args(["--net", "nft", "-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::null());
    nft.spawn().is_ok_and(|mut child| {
        let is_written = child.stdin.take().is_some_and(|mut input| input.write_all(FIREWALL.as_bytes()).is_ok());
        child.wait().is_ok_and(|status| is_written && status.success())
    })
}

/// The number of a challenge is within the window that the firewall of the client's network expects.
fn a_client_behind_a_stateful_firewall_connects() {
    let network = network("1", "native");
    network.in_client(|| {
        let path = network.folder.path().join("rules.nft");
        std::fs::write(&path, FIREWALL).unwrap();
        run("nft", &["-f", path.to_str().unwrap()]);
    });
    let agent = network.start("attach = \"native\"", &format!("{LIMIT}rate = \"10000/s\"\n"));
    let listener = network.in_server(listen);
    let (_stream, took) = connect(&network, "10.77.0.1:80");
    println!("behind a firewall: connects after {took:?}");
    assert_eq!((challenges(&agent).1, accepted(&listener)), (1, 1));
}
