//! Sources that prove their address by resets: of forwarded connections, and of listeners of this host.

use std::io::Write as _;
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::packet::build::{Frame, MoreFragments};
use testbed::tests;
use testbed::trials::Test;

use crate::prove::{network, proofs};
use crate::support::{Agent, CLIENT_MAC, Network, SERVER, SERVER_MAC, SERVER6, run};
use crate::traffic::burst;

pub const ON_KERNELS: &[Test] = tests![forwarded_connections_are_proven_by_native_xdp];
pub const ON_ANY_KERNEL: &[Test] = tests![
    forwarded_connections_are_proven_by_traffic_control,
    a_source_stays_known_over_reloads_and_restarts_and_not_without_the_limit,
    frames_to_another_device_are_not_answered,
    syns_with_other_flags_or_in_fragments_are_charged_to_nobody,
    later_fragments_are_no_syns,
];
/// Tests that require nft.
pub const WITH_NFT: &[Test] = tests![a_client_behind_a_stateful_firewall_connects];

const PORT: u16 = 80;
const SYN: u8 = 2;
const LIMIT: &str = "[[limit]]\nname = \"web\"\nprotocol = \"tcp\"\nports = [80]\nunit = \"connections\"\nprove = \"reset\"\n";

/// A host behind the server, which forwards to it: 10.78.0.2 and fd78::2.
pub struct Backend(Network);

impl Backend {
    pub fn behind(network: &Network) -> Self {
        let backend = Network::new();
        let ends = "netns SERVER type veth peer back1 address 02:00:00:00:78:02 netns BACKEND";
        let ends = ends
            .replace("SERVER", network.server())
            .replace("BACKEND", backend.server());
        let link = format!("link add back0 address 02:00:00:00:78:01 {ends}");
        run("ip", &link.split(' ').collect::<Vec<_>>());
        // Link-local addresses are tentative for a second or two, and no solicitation is sent before.
        network.ip_batch(
            "addr add 10.78.0.1/24 dev back0\naddr add fd78::1/64 dev back0 nodad\nlink set back0 up\n\
             neigh replace fd78::2 lladdr 02:00:00:00:78:02 dev back0 nud permanent\n\
             neigh replace fd77::2 lladdr 02:00:00:00:77:02 dev weir0 nud permanent\n",
        );
        backend.ip_batch(
            "addr add 10.78.0.2/24 dev back1\naddr add fd78::2/64 dev back1 nodad\nlink set back1 up\n\
             addr del 10.77.0.1/16 dev weir0\naddr del fd77::1/64 dev weir0\n\
             neigh replace fd78::1 lladdr 02:00:00:00:78:01 dev back1 nud permanent\n\
             route add 10.77.0.0/16 via 10.78.0.1\nroute add fd77::/64 via fd78::1\n",
        );
        network.in_server(|| {
            for path in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
                std::fs::write(format!("/proc/sys/net/{path}"), "1").unwrap();
            }
        });
        run(
            "ip",
            &[
                "-n",
                network.client(),
                "neigh",
                "replace",
                "fd77::1",
                "lladdr",
                "02:00:00:00:77:01",
                "dev",
                "client0",
            ],
        );
        for (to, via) in [("10.78.0.0/24", "10.77.0.1"), ("fd78::/64", "fd77::1")] {
            run(
                "ip",
                &["-n", network.client(), "route", "add", to, "via", via],
            );
        }
        Self(backend)
    }

    /// Connects to the listener from the host itself, which may wait for a client.
    pub fn wake(&self) {
        let _ = self.0.in_server(|| TcpStream::connect(("127.0.0.1", PORT)));
    }

    /// Sets what the container's kernel does when its queue of SYNs is full.
    pub fn use_cookies(&self, value: &str) {
        let set = || std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", value).unwrap();
        self.0.in_server(set);
    }

    pub fn listen(&self) -> TcpListener {
        self.use_cookies("0");
        self.0.in_server(listen)
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
    (
        proofs(agent, "syns_challenged"),
        proofs(agent, "resets_accepted"),
    )
}

/// SYNs of a thousand sources to the host behind the server.
fn forged() -> Vec<Vec<u8>> {
    let frame = |nth: u16| {
        let [c, d] = nth.to_be_bytes();
        let frame =
            Frame::between(CLIENT_MAC, SERVER_MAC).ipv4([10, 77, 100 + c, d], [10, 78, 0, 2]);
        frame.tcp(4_000, PORT, SYN, b"").build()
    };
    (1..=1_000).map(frame).collect()
}

fn forwarded_connections_are_proven(attach: &str) {
    let network = network("1", attach);
    let backend = Backend::behind(&network);
    let agent = network.start(
        &format!("attach = {attach:?}"),
        &format!("{LIMIT}rate = \"10000/s\"\n"),
    );
    let listener = backend.listen();
    burst(&network, &forged(), 10_000);
    assert_eq!(
        (challenges(&agent), agent.counts("web")),
        ((10_000, 0), (0, 0))
    );
    assert_eq!(agent.json(&["status"])["sources"]["tracked"], 0);
    for (nth, to) in ["10.78.0.2:80", "[fd78::2]:80"].into_iter().enumerate() {
        let nth = nth as u64;
        let (_first, took) = connect(&network, to);
        // Under load, Linux may repeat its SYN before the reset has arrived.
        let (challenged, proven) = challenges(&agent);
        assert!(
            challenged > 10_000 + nth && proven == nth + 1,
            "{challenged}, {proven}"
        );
        let (_second, later) = connect(&network, to);
        assert_eq!(challenges(&agent), (challenged, proven));
        println!("{attach}: {to} connects after {took:?}, and once it is known after {later:?}");
    }
    // The host behind has seen the clients' connections only; a SYN may have been repeated.
    let (passed, throttled) = agent.counts("web");
    assert!(
        (4..8).contains(&passed) && throttled == 0,
        "{passed}, {throttled}"
    );
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
    network.config(
        "attach = \"native\"",
        &limit(1_000).replace("prove = \"reset\"\n", ""),
    );
    network.told(&["reload"]);
    connect(&network, "10.77.0.1:80");
    network.config("attach = \"native\"", &limit(1_000));
    network.told(&["reload"]);
    assert_eq!((required(&network, &agent).1, accepted(&listener)), (1, 5));
}

/// A bridge or a tap sees other hosts' frames: an answer in their name is not this host's to send.
fn frames_to_another_device_are_not_answered() {
    let network = network("1", "native");
    let agent = network.start(
        "attach = \"native\"",
        &format!("{LIMIT}rate = \"10000/s\"\n"),
    );
    let frame = |to, address| {
        Frame::between(CLIENT_MAC, to)
            .ipv4([10, 77, 0, 2], address)
            .tcp(4_000, PORT, SYN, b"")
    };
    burst(&network, &[frame([2, 0, 0, 0, 9, 9], SERVER).build()], 100);
    assert_eq!(
        (challenges(&agent), agent.counts("web")),
        ((0, 0), (100, 0))
    );
    // It has the right device, and nobody's address.
    burst(&network, &[frame(SERVER_MAC, [224, 0, 0, 1]).build()], 100);
    assert_eq!(
        (challenges(&agent), agent.counts("web")),
        ((0, 0), (100, 0))
    );
    assert_eq!(proofs(&agent, "syns_refused"), 100);
}

/// SYNs that a host would not send, in the name of another one.
fn syns_with_other_flags_or_in_fragments_are_charged_to_nobody() {
    const FIN: u8 = 1;
    const RST: u8 = 4;
    let from = || Frame::between(CLIENT_MAC, SERVER_MAC).ipv4([10, 77, 0, 9], SERVER);
    // Its length is a multiple of eight, as a first fragment's has to be.
    let whole = |flags| from().tcp(4_000, PORT, flags, b"data").build();
    let part = from()
        .fragment(0, MoreFragments::Yes)
        .payload(6, &whole(SYN)[34..])
        .build();
    let frames = [whole(SYN | FIN), whole(SYN | RST), part];
    for (prove, expected) in [("true", [200, 0, 100]), ("\"reset\"", [0, 300, 0])] {
        let network = network("2", "native");
        let limit = LIMIT.replace("prove = \"reset\"", &format!("prove = {prove}"));
        let agent = network.start(
            "attach = \"native\"",
            &format!("{limit}rate = \"10000/s\"\n"),
        );
        let _listener = network.in_server(listen);
        burst(&network, &frames, 300);
        let names = ["syns_answered", "syns_challenged", "syns_refused"];
        assert_eq!(
            (names.map(|name| proofs(&agent, name)), agent.counts("web")),
            (expected, (0, 0)),
            "{prove}"
        );
    }
}

/// The bytes after their header are content, and may look like a SYN.
fn later_fragments_are_no_syns() {
    let content: Vec<u8> = (0..40)
        .map(|nth| if nth % 2 == 1 { SYN } else { 0x50 })
        .collect();
    let link = || Frame::between(CLIENT_MAC, SERVER_MAC);
    let later = |frame: Frame| {
        frame
            .fragment(20, MoreFragments::No)
            .payload(6, &content)
            .build()
    };
    let from = [0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
    let frames = [
        later(link().ipv4([10, 77, 0, 2], SERVER)),
        later(link().ipv6(from, SERVER6)),
    ];
    for attach in ["native", "tc"] {
        let network = network("1", attach);
        let limit = "[[limit]]\nname = \"web\"\nprotocol = \"tcp\"\nrate = \"10000/s\"\nprove = \"reset\"\n";
        let agent = network.start(&format!("attach = {attach:?}"), limit);
        burst(&network, &frames, 200);
        assert_eq!(
            (challenges(&agent), agent.counts("web")),
            ((0, 0), (200, 0)),
            "{attach}"
        );
    }
}

const FIREWALL: &str = "table inet filter {\n\
    chain input { type filter hook input priority 0; ct state established,related accept; drop; }\n\
    chain output { type filter hook output priority 0; ct state invalid drop; }\n}\n";

/// Whether nft can set up the test's firewall.
pub fn has_nft() -> bool {
    let mut nft = Command::new("unshare");
    nft.args(["--net", "nft", "-f", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::null());
    nft.spawn().is_ok_and(|mut child| {
        let is_written = child
            .stdin
            .take()
            .is_some_and(|mut input| input.write_all(FIREWALL.as_bytes()).is_ok());
        child
            .wait()
            .is_ok_and(|status| is_written && status.success())
    })
}

/// The number of a challenge is within the window that the firewall of the client's network expects.
fn a_client_behind_a_stateful_firewall_connects() {
    let network = network("1", "native");
    network.in_client(|| network.use_rules(FIREWALL));
    let agent = network.start(
        "attach = \"native\"",
        &format!("{LIMIT}rate = \"10000/s\"\n"),
    );
    let listener = network.in_server(listen);
    let (_stream, took) = connect(&network, "10.77.0.1:80");
    println!("behind a firewall: connects after {took:?}");
    assert_eq!((challenges(&agent).1, accepted(&listener)), (1, 1));
}
