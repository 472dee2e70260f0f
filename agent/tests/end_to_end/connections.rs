//! Limits with `concurrent`: open connections per key.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use common::packet::build::Frame;
use serde_json::Value;
use testbed::tests;
use testbed::trials::Test;

use crate::support::{Agent, CLIENT_MAC, Network, SERVER, SERVER_MAC};
use crate::wire::Sender;

pub const ON_KERNELS: &[Test] = tests![a_burst_of_syns_whose_acks_are_held_establishes_the_limit_and_no_more];

pub const ON_ANY_KERNEL: &[Test] = tests![
    a_connection_that_ends_makes_room_for_another,
];

const PORT: u16 = 8080;
const SYN: u8 = 2;
const ACK: u8 = 16;
/// An address of no host in the test network, so that none resets its connections.
const HELD: [u8; 4] = [10, 77, 5, 9];

fn limit(concurrent: u32, more: &str) -> String {
    format!("[[limit]]\nname = \"open\"\nunit = \"connections\"\nconcurrent = {concurrent}\n{more}\n")
}

fn listen(network: &Network) -> TcpListener {
    network.in_server(|| {
        std::fs::write("/proc/sys/net/core/somaxconn", "4096").unwrap();
        let listener = TcpListener::bind((Ipv4Addr::from(SERVER), PORT)).unwrap();
        // SAFETY: a live socket; a second call only changes the backlog, which std sets to 128.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 4096) }, 0);
        listener.set_nonblocking(true).unwrap();
        listener
    })
}

/// Connects from the client, and waits for the end of the handshake for so long.
fn connect(network: &Network, time: Duration) -> std::io::Result<TcpStream> {
    network.in_client(|| TcpStream::connect_timeout(&SocketAddr::from((SERVER, PORT)), time))
}

/// The connections that the server's kernel has established.
fn established(network: &Network) -> usize {
    let text = network.in_server(|| std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap());
    text.lines().filter(|line| line.split_ascii_whitespace().nth(3) == Some("01")).count()
}

/// The source's entry of the limit in `agent show`.
fn shown(agent: &Agent<'_>, source: &str) -> Value {
    let shown = agent.json(&["show", source]);
    shown["limits"].as_array().unwrap().iter().find(|limit| limit["name"] == "open").unwrap().clone()
}

/// Receives frames on the client's interface.
struct Tap(std::os::fd::OwnedFd);

impl Tap {
    /// Call it inside the client's namespace.
    fn new() -> Self {
        use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, setsockopt, socket, sockopt};
        let socket =
            socket(AddressFamily::Packet, SockType::Raw, SockFlag::empty(), SockProtocol::EthAll).unwrap();
        setsockopt(&socket, sockopt::ReceiveTimeout, &nix::sys::time::TimeVal::new(1, 0)).unwrap();
        setsockopt(&socket, sockopt::RcvBuf, &(4 << 20)).unwrap();
        Self(socket)
    }

    /// (destination port, sequence number) of the next SYN-ACK; `None` if none comes for a second.
    fn syn_ack(&self) -> Option<(u16, u32)> {
        let mut frame = [0u8; 2048];
        loop {
            let length = nix::unistd::read(&self.0, &mut frame).ok()?;
            let tcp = frame.get(34..length)?;
            if frame[12..14] == [8, 0] && frame[23] == 6 && tcp[13] & 0x3f == SYN | ACK {
                let port = u16::from_be_bytes([tcp[2], tcp[3]]);
                return Some((port, u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]])));
            }
        }
    }
}

fn held() -> Frame {
    Frame::between(CLIENT_MAC, SERVER_MAC).ipv4(HELD, SERVER)
}

fn a_burst_of_syns_whose_acks_are_held_establishes_the_limit_and_no_more() {
    let network = Network::new();
    network.server_ip(&["neigh", "replace", "10.77.5.9", "lladdr", "02:00:00:00:77:02", "dev", "weir0"]);
    let listener = listen(&network);
    let agent = network.start("", &limit(50, ""));
    let (sender, tap) = network.in_client(|| (Sender::new(), Tap::new()));
    let syns: Vec<Vec<u8>> = (0..1_000).map(|nth| held().tcp(10_000 + nth, PORT, SYN, b"").build()).collect();
    let since = Instant::now();
    sender.send_all(&syns);
    let mut answers = std::collections::BTreeMap::new();
    while let Some((port, sequence)) = tap.syn_ack() {
        answers.insert(port, sequence);
    }
    // A reservation lasts 3 s, and a SYN-ACK is repeated only.
    assert!(since.elapsed() < Duration::from_secs(30));
    assert_eq!(answers.len(), 50, "{answers:?}");
    for (port, sequence) in &answers {
        sender.send(&held().tcp_at(*port, PORT, ACK, (2, sequence.wrapping_add(1)), b"").build());
    }
    agent.wait_for("every connection", |_| established(&network) == 50);
    assert_eq!(agent.counts("open"), (50, 950));
    assert_eq!(shown(&agent, "10.77.5.9")["open"], 50);
    // Long after the reservations.
    std::thread::sleep(Duration::from_secs(5));
    sender.send_all(&syns);
    while tap.syn_ack().is_some() {}
    assert_eq!(established(&network), 50);
    // Another source has its own.
    assert!(connect(&network, Duration::from_secs(5)).is_ok());
    drop(listener);
}

fn a_connection_that_ends_makes_room_for_another() {
    let network = Network::new();
    let listener = listen(&network);
    let agent = network.start("", &limit(3, ""));
    let mut open: Vec<TcpStream> = (0..3).map(|_| connect(&network, Duration::from_secs(5)).unwrap()).collect();
    assert!(connect(&network, Duration::from_millis(300)).is_err());
    assert_eq!(shown(&agent, "10.77.0.2")["open"], 3);
    // Both ends have to close.
    let mut accepted: Vec<TcpStream> = listener.incoming().map_while(Result::ok).collect();
    assert_eq!(accepted.len(), 3);
    accepted.iter_mut().for_each(|stream| stream.write_all(b"x").unwrap());
    let mut first = open.remove(0);
    first.read_exact(&mut [0]).unwrap();
    drop(first);
    drop(accepted);
    agent.wait_for("the end of the first connection", |_| shown(&agent, "10.77.0.2")["open"] == 0);
    drop(open);
    assert!(connect(&network, Duration::from_secs(5)).is_ok());
}
