//! Sources that prove their address: floods of forged SYNs and ACKs, and clients that connect meanwhile.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::packet::build::Frame;
use nix::sys::socket::{
    self, AddressFamily, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use serde_json::Value;
use testbed::tests;
use testbed::trials::Test;

use crate::attacks::peer::{FIRST, Peer};
use crate::support::{Agent, CLIENT_MAC, Network, SERVER, SERVER_MAC, SERVER6, run};
use crate::traffic::burst;
use crate::wire::Sender;

pub const ON_KERNELS: &[Test] = tests![
    a_flood_of_forged_syns_takes_no_socket_by_native_xdp,
    a_flood_of_forged_syns_takes_no_socket_by_traffic_control,
];
pub const ON_ANY_KERNEL: &[Test] = tests![
    connections_are_charged_when_their_address_is_proven,
    open_connections_are_reserved_when_their_address_is_proven,
    a_refused_connection_stays_refused_whatever_its_client_sends,
    forged_acks_are_refused_while_cookies_are_in_use,
    without_overflow_syns_pass_and_are_charged,
    a_flood_sets_cookies_for_every_connection_and_a_killed_agents_are_restored,
    always_sets_cookies_until_the_limit_ends,
    detaching_restores_the_setting_of_an_agent_that_was_killed,
    a_setting_that_cannot_be_restored_keeps_no_limit_in_effect,
];

pub const PORT: u16 = 80;
/// How long a client tries to connect.
const PATIENCE: Duration = Duration::from_secs(20);
pub const SYN: u8 = 2;
const ACK: u8 = 16;
pub const LIMIT: &str = "[[limit]]\nname = \"web\"\nprotocol = \"tcp\"\nports = [80]\nunit = \"connections\"\nprove = true\n";

/// A server that sends each client a byte, until it is dropped.
struct Server<'n> {
    network: &'n Network,
    stop: &'n AtomicBool,
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // It waits for a connection, which is not that of a client.
        let _ = self
            .network
            .in_server(|| TcpStream::connect(("127.0.0.1", PORT)));
    }
}

/// A listener, once its address is free: a program that another test starts at this instant holds the descriptor of the one
/// before until it is executed.
fn listen() -> TcpListener {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT)) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(50));
            }
            bound => return bound.unwrap(),
        }
    }
}

/// Runs `work` while a server of both IP versions accepts connections; returns how many there were.
pub fn with_server<T>(network: &Network, work: impl FnOnce() -> T) -> (T, u64) {
    let listener = network.in_server(listen);
    let (stop, accepted) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            for stream in listener.incoming() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                accepted.fetch_add(1, Ordering::Relaxed);
                let _ = stream.unwrap().write_all(b"x");
            }
        });
        let server = Server {
            network,
            stop: &stop,
        };
        let result = work();
        drop(server);
        (result, accepted.load(Ordering::Relaxed))
    })
}

/// A network whose client has both IP versions, and whose server uses SYN cookies as `cookies` says.
pub fn network(cookies: &str, attach: &str) -> Network {
    let network = Network::new();
    network.in_server(|| std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", cookies).unwrap());
    network
        .in_client(|| std::fs::write("/proc/sys/net/ipv6/conf/client0/disable_ipv6", "0").unwrap());
    // Without duplicate detection, which takes a second.
    run(
        "ip",
        &[
            "-n",
            network.client(),
            "addr",
            "add",
            "fd77::2/64",
            "dev",
            "client0",
            "nodad",
        ],
    );
    if attach == "native" {
        network.accept_xdp_frames();
    }
    network
}

/// Connects, and waits for the server's byte: the server has accepted the connection. A refused client is reset at once.
pub fn connect(network: &Network, to: &str) -> Option<Duration> {
    network.in_client(|| {
        let start = Instant::now();
        let stream = TcpStream::connect_timeout(&to.parse().unwrap(), PATIENCE).ok()?;
        let time = start.elapsed();
        is_greeted(stream).then_some(time)
    })
}

/// Like [`connect`], from a port that no other connection has used: the kernel opens one that finds a socket in TIME_WAIT
/// without a cookie.
fn connect_from(network: &Network, port: u16, to: SocketAddr) -> Option<Duration> {
    let (family, any) = match to {
        SocketAddr::V4(_) => (AddressFamily::Inet, Ipv4Addr::UNSPECIFIED.into()),
        SocketAddr::V6(_) => (AddressFamily::Inet6, Ipv6Addr::UNSPECIFIED.into()),
    };
    let from = SockaddrStorage::from(SocketAddr::new(any, port));
    network.in_client(|| {
        let socket = socket(family, SockType::Stream, SockFlag::empty(), None).unwrap();
        let patience = TimeVal::new(PATIENCE.as_secs() as i64, 0);
        setsockopt(&socket, sockopt::SendTimeout, &patience).unwrap();
        bind(socket.as_raw_fd(), &from).unwrap();
        let start = Instant::now();
        socket::connect(socket.as_raw_fd(), &SockaddrStorage::from(to)).ok()?;
        let time = start.elapsed();
        is_greeted(socket.into()).then_some(time)
    })
}

fn is_greeted(mut stream: TcpStream) -> bool {
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    stream.read_exact(&mut [0]).is_ok()
}

pub fn proofs(agent: &Agent<'_>, name: &str) -> u64 {
    agent.json(&["status"])["proofs"][name].as_u64().unwrap()
}

fn tcp(source: [u8; 4], flags: u8) -> Vec<u8> {
    Frame::between(CLIENT_MAC, SERVER_MAC)
        .ipv4(source, SERVER)
        .tcp(4_000, PORT, flags, b"")
        .build()
}

fn tcp6(last: u16, flags: u8) -> Vec<u8> {
    let [c, d] = last.to_be_bytes();
    let source = [0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, c, d];
    Frame::between(CLIENT_MAC, SERVER_MAC)
        .ipv6(source, SERVER6)
        .tcp(4_000, PORT, flags, b"")
        .build()
}

/// A thousand sources of IPv4 and a thousand of IPv6.
pub fn forged(flags: u8) -> Vec<Vec<u8>> {
    let pair = |nth: u16| {
        let [c, d] = nth.to_be_bytes();
        [tcp([10, 77, 100 + c, d], flags), tcp6(nth, flags)]
    };
    (1..=1_000).flat_map(pair).collect()
}

/// Sockets of the server in the state SYN-RECV.
fn half_open(network: &Network) -> usize {
    let of = |file: &str| {
        let text = network.in_server(|| {
            std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap()
        });
        text.lines()
            .filter(|line| line.split_whitespace().nth(3) == Some("03"))
            .count()
    };
    of("tcp") + of("tcp6")
}

/// The median and the 99th percentile.
fn quantiles(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

/// Half of the forged SYNs that the machine answers in a millisecond, at most 50: an emulated one is much slower.
fn flood_rate(network: &Network) -> usize {
    const SENT: usize = 10_000;
    let frames = forged(SYN);
    let start = Instant::now();
    burst(network, &frames, SENT);
    let milliseconds = start.elapsed().as_secs_f64() * 1e3;
    ((SENT as f64 / milliseconds / 2.0) as usize).clamp(1, 50)
}

/// Clients of both IP versions connect, while forged SYNs arrive: 50 a millisecond.
fn a_flood_of_forged_syns_takes_no_socket(attach: &str) {
    let network = network("2", attach);
    let agent = network.start(
        &format!("attach = {attach:?}"),
        &format!("{LIMIT}rate = \"10000/s\"\n"),
    );
    let (per_millisecond, _) = with_server(&network, || flood_rate(&network));
    let clients = if per_millisecond < 50 { 100 } else { 300 };
    let before = proofs(&agent, "syns_answered");
    let to = ["10.77.0.1:80", "[fd77::1]:80"].map(|to| to.parse().unwrap());
    let connect_all = |first_port: usize| -> Vec<Duration> {
        (0..clients)
            .filter_map(|nth| {
                thread::sleep(Duration::from_millis(6));
                connect_from(&network, (first_port + nth) as u16, to[nth % 2])
            })
            .collect()
    };
    let (quiet, accepted) = with_server(&network, || connect_all(10_000));
    assert_eq!(
        (quiet.len(), accepted),
        (clients, clients as u64),
        "without a flood"
    );
    let is_over = AtomicBool::new(false);
    let ((connected, most_half_open), _) = with_server(&network, || {
        thread::scope(|scope| {
            let flood = scope.spawn(|| {
                network.in_client(|| {
                    let (sender, frames) = (Sender::new(), forged(SYN));
                    let (mut sent, mut time) = (0, Duration::ZERO);
                    while !is_over.load(Ordering::Relaxed) {
                        let (more, took) =
                            sender.pace(&frames, per_millisecond, Duration::from_millis(100));
                        (sent, time) = (sent + more, time + took);
                    }
                    (sent, time)
                })
            });
            let times = connect_all(20_000);
            let half_open = half_open(&network);
            is_over.store(true, Ordering::Relaxed);
            let (sent, time) = flood.join().unwrap();
            println!(
                "{attach}: {sent} forged SYNs, {:.0} a second",
                sent as f64 / time.as_secs_f64()
            );
            let answered = proofs(&agent, "syns_answered") - before;
            assert!(
                answered * 100 >= sent * 99,
                "{answered} of {sent} SYNs were answered"
            );
            (times, half_open)
        })
    });
    let (without, with) = (quantiles(quiet), quantiles(connected.clone()));
    println!(
        "{attach}: {} of {clients} connect; p50, p99 {with:?}, without a flood {without:?}",
        connected.len()
    );
    assert!(
        connected.len() * 100 >= clients * 99,
        "{} of {clients} connect",
        connected.len()
    );
    assert_eq!(most_half_open, 0);
    let accepted = proofs(&agent, "acks_accepted");
    assert!(
        accepted >= (clients + connected.len()) as u64,
        "{accepted} proven: {}",
        agent.json(&["status"])["proofs"]
    );
    // Only proven sources have a slot, and only their connections are charged.
    let (passed, throttled) = agent.counts("web");
    // A client may repeat its last packet between the two readings, and prove itself once more.
    let later = proofs(&agent, "acks_accepted");
    assert!(
        (accepted..=later).contains(&passed) && throttled == 0,
        "{passed} of {accepted} to {later}, {throttled} throttled"
    );
    assert!(
        agent.json(&["status"])["sources"]["tracked"]
            .as_u64()
            .unwrap()
            <= 2
    );
}

fn a_flood_of_forged_syns_takes_no_socket_by_native_xdp() {
    a_flood_of_forged_syns_takes_no_socket("native");
}

fn a_flood_of_forged_syns_takes_no_socket_by_traffic_control() {
    a_flood_of_forged_syns_takes_no_socket("tc");
}

/// SYNs in a client's name use up none of its allowance; its connections do.
fn connections_are_charged_when_their_address_is_proven() {
    let network = network("2", "native");
    let agent = network.start("attach = \"native\"", &format!("{LIMIT}rate = \"5/day\"\n"));
    let (connected, accepted) = with_server(&network, || {
        burst(&network, &[tcp([10, 77, 0, 2], SYN)], 1_000);
        assert_eq!(
            (agent.counts("web"), proofs(&agent, "syns_answered")),
            ((0, 0), 1_000)
        );
        let mut connected = (0..5)
            .filter(|_| connect(&network, "10.77.0.1:80").is_some())
            .count();
        // The cookie is answered, and the ACK is refused: the server knows nothing of the connection.
        connected += usize::from(connect(&network, "10.77.0.1:80").is_some());
        // Of others, the allowance is whole.
        (connected, connect(&network, "[fd77::1]:80").is_some())
    });
    assert_eq!((connected, accepted), ((5, true), 6));
    let (passed, throttled) = agent.counts("web");
    assert!(passed == 6 && throttled >= 1, "{passed}, {throttled}");
    assert_eq!(proofs(&agent, "acks_refused"), 0);
}

/// SYNs in a client's name reserve none of its open connections.
fn open_connections_are_reserved_when_their_address_is_proven() {
    let network = network("2", "native");
    let agent = network.start("attach = \"native\"", &format!("{LIMIT}concurrent = 5\n"));
    let listener = network.in_server(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT)).unwrap());
    listener.set_nonblocking(true).unwrap();
    burst(&network, &[tcp([10, 77, 0, 2], SYN)], 1_000);
    assert_eq!(
        (agent.counts("web"), proofs(&agent, "syns_answered")),
        ((0, 0), 1_000)
    );
    // A refused one is reset, maybe before the call returns.
    let open = || network.in_client(|| TcpStream::connect(("10.77.0.1", PORT)).ok());
    let accept =
        || -> Vec<TcpStream> { std::iter::from_fn(|| Some(listener.accept().ok()?.0)).collect() };
    // All of them receive a cookie, and the ACKs above the limit are refused.
    let mut clients: Vec<TcpStream> = (0..8).filter_map(|_| open()).collect();
    agent.wait_for("every ACK", |_| agent.counts("web") == (5, 3));
    let mut served = accept();
    assert_eq!(
        (
            served.len(),
            ["acks_accepted", "acks_limited", "acks_refused"].map(|name| proofs(&agent, name))
        ),
        (5, [5, 3, 0])
    );
    // One ends: reset by the server, so that nothing of it remains.
    let port = served.pop().unwrap().peer_addr().unwrap().port();
    clients.retain(|client| client.local_addr().unwrap().port() != port);
    agent.wait_for("room", |_| {
        agent.json(&["show", "10.77.0.2"])["limits"][0]["open"] == 4
    });
    clients.push(open().unwrap());
    agent.wait_for("another ACK", |_| agent.counts("web") == (6, 3));
    assert_eq!(accept().len(), 1);
}

/// The packets behind a refused ACK have its cookie, too.
fn a_refused_connection_stays_refused_whatever_its_client_sends() {
    for limit in ["rate = \"2/day\"", "concurrent = 2"] {
        let network = network("2", "native");
        let agent = network.start("attach = \"native\"", &format!("{LIMIT}{limit}\n"));
        let listener =
            network.in_server(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT)).unwrap());
        listener.set_nonblocking(true).unwrap();
        // A client that takes no notice of resets: an ACK and a byte of each connection.
        let peer = Peer::new(&network, true, 9);
        let segments: Vec<Vec<u8>> = peer
            .handshakes(&|frame| frame, 20_000..20_004)
            .iter()
            .flat_map(|(port, cookie)| {
                let numbers = (FIRST + 1, cookie.wrapping_add(1));
                [&b""[..], b"x"].map(|data| peer.tcp(&|frame| frame, *port, ACK, numbers, data))
            })
            .collect();
        peer.send(&segments);
        assert_eq!(agent.counts("web").1, 4, "{limit}");
        assert_eq!(
            (
                agent.counts("web").0,
                std::iter::from_fn(|| listener.accept().ok()).count()
            ),
            (2, 2),
            "{limit}"
        );
    }
}

fn forged_acks_are_refused_while_cookies_are_in_use() {
    let network = network("2", "native");
    let agent = network.start(
        "attach = \"native\"",
        &format!("{LIMIT}rate = \"10000/s\"\n"),
    );
    let ((), accepted) = with_server(&network, || {
        // Without cookies, the kernel decides about ACKs.
        burst(&network, &forged(ACK), 100);
        assert_eq!(proofs(&agent, "acks_refused"), 0);
        assert!(connect(&network, "10.77.0.1:80").is_some());
        burst(&network, &forged(ACK), 10_000);
        assert_eq!(
            (
                proofs(&agent, "acks_refused"),
                proofs(&agent, "acks_accepted")
            ),
            (10_000, 1)
        );
        assert!(connect(&network, "[fd77::1]:80").is_some());
        // The server listens on every address, and not for other hosts' ones, nor on other ports.
        let frame = |to, port| {
            Frame::between(CLIENT_MAC, SERVER_MAC)
                .ipv4([10, 77, 0, 9], to)
                .tcp(4_000, port, SYN, b"")
                .build()
        };
        burst(
            &network,
            &[
                frame([10, 77, 0, 99], PORT),
                frame(SERVER, 81),
                frame([224, 0, 0, 1], PORT),
            ],
            300,
        );
        assert_eq!(proofs(&agent, "syns_answered"), 2);
    });
    // SYNs that nobody answers are evaluated as without proofs.
    assert_eq!((accepted, agent.counts("web")), (2, (2 + 200, 0)));
    assert_eq!(
        agent.json(&["status"])["totals"]["throttled_packets"],
        Value::from(10_002),
        "ACKs and two SYNs"
    );
}

/// While the listener's queue has room, the kernel keeps its sockets, and the limit applies to SYNs.
fn without_overflow_syns_pass_and_are_charged() {
    let network = network("1", "native");
    let agent = network.start("attach = \"native\"", &format!("{LIMIT}rate = \"5/day\"\n"));
    let (connected, accepted) = with_server(&network, || {
        (0..5)
            .filter(|_| connect(&network, "10.77.0.1:80").is_some())
            .count()
    });
    assert_eq!((connected, accepted, agent.counts("web")), (5, 5, (5, 0)));
    let names = [
        "syns_answered",
        "syns_refused",
        "syns_passed",
        "acks_accepted",
        "acks_refused",
    ];
    assert_eq!(names.map(|name| proofs(&agent, name)), [0, 0, 5, 0, 0]);
}

pub fn setting(network: &Network) -> String {
    network
        .in_server(|| std::fs::read_to_string("/proc/sys/net/ipv4/tcp_syncookies"))
        .unwrap()
        .trim()
        .to_owned()
}

/// Waits until the setting has the value.
pub fn becomes(network: &Network, value: &str) {
    let deadline = Instant::now() + Duration::from_secs(300);
    while setting(network) != value {
        assert!(
            Instant::now() < deadline,
            "the setting is {} and not {value}",
            setting(network)
        );
        thread::sleep(Duration::from_millis(50));
    }
}

fn a_flood_sets_cookies_for_every_connection_and_a_killed_agents_are_restored() {
    let network = network("1", "native");
    let limits = format!("{LIMIT}rate = \"100000/s\"\n");
    let agent = network.start("attach = \"native\"", &limits);
    let is_over = AtomicBool::new(false);
    with_server(&network, || {
        thread::scope(|scope| {
            let flood = scope.spawn(|| {
                network.in_client(|| {
                    let (sender, frames) = (Sender::new(), forged(SYN));
                    while !is_over.load(Ordering::Relaxed) {
                        sender.pace(&frames, 5, Duration::from_millis(100));
                    }
                });
            });
            becomes(&network, "2");
            is_over.store(true, Ordering::Relaxed);
            flood.join().unwrap();
        });
    });
    assert!(
        agent.json(&["status"])["notes"]
            .to_string()
            .contains("tcp_syncookies is 2 while forged SYNs arrive")
    );
    let (_, status) = agent.stop(nix::sys::signal::Signal::SIGKILL);
    assert!(!status.success());
    assert_eq!(setting(&network), "2");
    let agent = network.start("attach = \"native\"", &limits);
    becomes(&network, "1");
    assert_eq!(agent.json(&["status"])["notes"], Value::Array(Vec::new()));
}

fn always_sets_cookies_until_the_limit_ends() {
    let network = network("1", "native");
    let always =
        format!("{LIMIT}rate = \"1000/s\"\n").replace("prove = true", "prove = \"always\"");
    let agent = network.start("attach = \"native\"", &always);
    becomes(&network, "2");
    let (connected, _) = with_server(&network, || connect(&network, "10.77.0.1:80").is_some());
    assert!(connected && proofs(&agent, "acks_accepted") == 1);
    // Limits that stay keep their cookies. Nobody is asked to do what the agent does itself.
    let (log, status) = agent.stop(nix::sys::signal::Signal::SIGTERM);
    assert!(!log.contains("run sysctl"), "{log}");
    assert!(status.success() && setting(&network) == "2");
    let agent = network.start("attach = \"native\"", &always);
    assert_eq!(setting(&network), "2");
    network.config(
        "attach = \"native\"",
        &format!("{LIMIT}rate = \"1000/s\"\n"),
    );
    network.told(&["reload"]);
    becomes(&network, "1");
    drop(agent);
}

/// An agent that has changed the setting.
fn start_with_cookies_for_all(network: &Network) -> (PathBuf, Agent<'_>) {
    let always =
        format!("{LIMIT}rate = \"1000/s\"\n").replace("prove = true", "prove = \"always\"");
    let config = network.config("attach = \"tc\"", &always);
    let agent = network.start_file(&config, &[]);
    becomes(network, "2");
    (config, agent)
}

fn a_setting_that_cannot_be_restored_keeps_no_limit_in_effect() {
    let network = network("1", "tc");
    let (config, agent) = start_with_cookies_for_all(&network);
    agent.stop(nix::sys::signal::Signal::SIGKILL);
    // The kernel refuses this value.
    let file = network.state().join("tcp_syncookies");
    let stored = std::fs::read_to_string(&file).unwrap();
    let (_, namespace) = stored.split_once(' ').unwrap();
    std::fs::write(&file, format!("300 {namespace}")).unwrap();
    let output = network.command(&["detach", "--config", config.to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(1) && said.contains("restoring net.ipv4.tcp_syncookies"),
        "{said}"
    );
    assert!(!network.has_pins());
}

fn detaching_restores_the_setting_of_an_agent_that_was_killed() {
    let network = network("1", "tc");
    let (config, agent) = start_with_cookies_for_all(&network);
    let detach = || network.command(&["detach", "--config", config.to_str().unwrap()]);
    // Not under a running agent.
    assert!(!detach().status.success() && setting(&network) == "2");
    agent.stop(nix::sys::signal::Signal::SIGKILL);
    assert_eq!(setting(&network), "2");
    // Elsewhere the setting is another one.
    let mut elsewhere = std::process::Command::new(testbed::groups::agent().unwrap());
    elsewhere.args(["detach", "--config", config.to_str().unwrap()]);
    let output = network.in_client(|| elsewhere.output()).unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && said.contains("in another network namespace"),
        "{said}"
    );
    assert_eq!(setting(&network), "2");
    let output = detach();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && said.contains("net.ipv4.tcp_syncookies is 1 again"),
        "{said}"
    );
    assert!(setting(&network) == "1" && !network.has_pins());
}
