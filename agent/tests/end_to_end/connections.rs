//! Limits with `concurrent`: open connections per key.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::packet::build::Frame;
use serde_json::Value;
use testbed::tests;
use testbed::trials::{Test, is_long};
use testbed::wait::PATIENCE;

use crate::support::{Agent, CLIENT_MAC, Network, SERVER, SERVER_MAC};
use crate::wire::{self, Sender};

pub const ON_KERNELS: &[Test] =
    tests![a_burst_of_syns_whose_acks_are_held_establishes_the_limit_and_no_more];

pub const ON_ANY_KERNEL: &[Test] = tests![
    a_connection_that_ends_makes_room_for_another,
    no_count_drifts_while_connections_end_in_every_way_and_the_agent_is_killed,
    slow_clients_keep_nobody_else_out,
    a_refused_connection_is_reset_and_a_class_has_its_multiple,
    connections_from_before_the_limit_count_and_a_reload_keeps_them,
    a_limit_in_observe_mode_counts_what_it_would_refuse,
];

pub const PORT: u16 = 8080;
pub const SYN: u8 = 2;
const ACK: u8 = 16;
/// An address of no host in the test network, so that none resets its connections.
const HELD: [u8; 4] = [10, 77, 5, 9];

pub fn limit(concurrent: u32, more: &str) -> String {
    format!(
        "[[limit]]\nname = \"open\"\nunit = \"connections\"\nconcurrent = {concurrent}\n{more}\n"
    )
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
pub fn connect(network: &Network, time: Duration) -> std::io::Result<TcpStream> {
    network.in_client(|| TcpStream::connect_timeout(&SocketAddr::from((SERVER, PORT)), time))
}

/// The connections that the server's kernel has established.
fn established(network: &Network) -> usize {
    let text = network.in_server(|| std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap());
    text.lines()
        .filter(|line| line.split_ascii_whitespace().nth(3) == Some("01"))
        .count()
}

/// The source's entry of the limit in `weir show`.
pub fn shown(agent: &Agent<'_>, source: &str) -> Value {
    let shown = agent.json(&["show", source]);
    shown["limits"]
        .as_array()
        .unwrap()
        .iter()
        .find(|limit| limit["name"] == "open")
        .unwrap()
        .clone()
}

/// Receives frames on the client's interface.
struct Tap(std::os::fd::OwnedFd);

impl Tap {
    /// Call it inside the client's namespace.
    fn new() -> Self {
        Self(wire::tap(4 << 20))
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

pub fn held() -> Frame {
    Frame::between(CLIENT_MAC, SERVER_MAC).ipv4(HELD, SERVER)
}

fn a_burst_of_syns_whose_acks_are_held_establishes_the_limit_and_no_more() {
    let network = Network::new();
    network.server_ip(&[
        "neigh",
        "replace",
        "10.77.5.9",
        "lladdr",
        "02:00:00:00:77:02",
        "dev",
        "weir0",
    ]);
    let listener = listen(&network);
    let agent = network.start("", &limit(50, ""));
    let (sender, tap) = network.in_client(|| (Sender::new(), Tap::new()));
    let syns: Vec<Vec<u8>> = (0..1_000)
        .map(|nth| held().tcp(10_000 + nth, PORT, SYN, b"").build())
        .collect();
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
        sender.send(
            &held()
                .tcp_at(*port, PORT, ACK, (2, sequence.wrapping_add(1)), b"")
                .build(),
        );
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
    let mut open: Vec<TcpStream> = (0..3)
        .map(|_| connect(&network, Duration::from_secs(5)).unwrap())
        .collect();
    assert!(connect(&network, Duration::from_millis(300)).is_err());
    assert_eq!(shown(&agent, "10.77.0.2")["open"], 3);
    // Both ends have to close.
    let mut accepted: Vec<TcpStream> = listener.incoming().map_while(Result::ok).collect();
    assert_eq!(accepted.len(), 3);
    accepted
        .iter_mut()
        .for_each(|stream| stream.write_all(b"x").unwrap());
    let mut first = open.remove(0);
    first.read_exact(&mut [0]).unwrap();
    drop(first);
    drop(accepted);
    agent.wait_for("the end of the first connection", |_| {
        shown(&agent, "10.77.0.2")["open"] == 0
    });
    drop(open);
    assert!(connect(&network, Duration::from_secs(5)).is_ok());
}

/// Opens a connection and ends it in one of several ways; `false` if it could not be opened.
fn open_and_end(nth: usize) -> bool {
    let Ok(mut stream) =
        TcpStream::connect_timeout(&SocketAddr::from((SERVER, PORT)), Duration::from_secs(5))
    else {
        return false;
    };
    match nth % 4 {
        // The client ends it, then the server; or the reverse.
        0 => {
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read(&mut [0; 8]);
        }
        1 => {
            let _ = stream.write_all(b"end");
            let _ = stream.read(&mut [0; 8]);
        }
        // Unread data and no lingering reset it.
        2 => {
            let _ = nix::sys::socket::setsockopt(
                &stream,
                nix::sys::socket::sockopt::Linger,
                &libc::linger {
                    l_onoff: 1,
                    l_linger: 0,
                },
            );
        }
        _ => drop(stream.write_all(b"unread")),
    }
    true
}

fn no_count_drifts_while_connections_end_in_every_way_and_the_agent_is_killed() {
    let total = if is_long() { 1_000_000 } else { 12_000 };
    let network = Network::new();
    network.in_client(|| std::fs::write("/proc/sys/net/ipv4/tcp_tw_reuse", "1").unwrap());
    network.in_client(|| {
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "10000 65000").unwrap();
    });
    let listener = listen(&network);
    listener.set_nonblocking(false).unwrap();
    let config = network.config("", &limit(5_000, ""));
    let mut agent = Some(network.start_file(&config, &[]));
    let kept: Vec<TcpStream> = (0..7)
        .map(|_| connect(&network, Duration::from_secs(5)).unwrap())
        .collect();
    let (accepted, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let is_last = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let mut own = Vec::new();
            // The last connection says that it is the last.
            for stream in listener.incoming().map_while(Result::ok) {
                if accepted.fetch_add(1, Ordering::SeqCst) < 7 {
                    own.push(stream);
                    continue;
                }
                let mut stream = stream;
                let mut text = [0; 8];
                let patience = if is_last.load(Ordering::SeqCst) {
                    PATIENCE
                } else {
                    Duration::from_millis(200)
                };
                let _ = stream.set_read_timeout(Some(patience));
                match stream.read(&mut text) {
                    Ok(4) if &text[..4] == b"last" => break,
                    // Data that is not read resets it.
                    Ok(6) => drop(stream),
                    _ => {}
                }
            }
            own
        });
        let clients: Vec<_> = (0..4)
            .map(|client| {
                let (network, ended) = (&network, &ended);
                scope.spawn(move || {
                    network.in_client(|| {
                        for nth in 0..total / 4 {
                            while !open_and_end(nth + client) {
                                // No port is free for a moment.
                                std::thread::sleep(Duration::from_millis(1));
                            }
                            ended.fetch_add(1, Ordering::SeqCst);
                        }
                    });
                })
            })
            .collect();
        // Killed and restarted meanwhile: for some time no agent runs.
        let kills = if is_long() { 20 } else { 3 };
        for kill in 1..=kills {
            while ended.load(Ordering::SeqCst) < total * kill / (kills + 1) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let killed = agent.take().unwrap();
            killed.stop(nix::sys::signal::Signal::SIGKILL);
            std::thread::sleep(Duration::from_millis(100));
            agent = Some(network.start_file(&config, &[]));
        }
        clients
            .into_iter()
            .for_each(|client| client.join().unwrap());
        is_last.store(true, Ordering::SeqCst);
        let mut last = connect(&network, Duration::from_secs(5)).unwrap();
        last.write_all(b"last").unwrap();
        let own = server.join().unwrap();
        let agent = agent.as_ref().unwrap();
        drop(last);
        assert_eq!(accepted.load(Ordering::SeqCst), total + 8);
        agent.wait_for("the count of what is open", |_| {
            shown(agent, "10.77.0.2")["open"] == 7
        });
        assert_eq!(
            agent.json(&["show", "10.77.0.2"])["connections"]
                .as_array()
                .unwrap()
                .len(),
            7
        );
        drop((own, kept));
        agent.wait_for("a count of 0", |_| shown(agent, "10.77.0.2")["open"] == 0);
    });
}

/// A connection from an address of the client, which does not wait for the handshake.
pub struct Begun(std::os::fd::OwnedFd);

impl Begun {
    /// Call it inside the client's namespace.
    fn from(source: [u8; 4]) -> Self {
        Self::to(source, PORT)
    }

    /// The same to another port.
    pub fn to(source: [u8; 4], port: u16) -> Self {
        use nix::sys::socket::{
            AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket,
        };
        let socket = socket(
            AddressFamily::Inet,
            SockType::Stream,
            SockFlag::SOCK_NONBLOCK,
            None,
        )
        .unwrap();
        bind(
            socket.as_raw_fd(),
            &SockaddrIn::from(std::net::SocketAddrV4::new(source.into(), 0)),
        )
        .unwrap();
        let server = SockaddrIn::from(std::net::SocketAddrV4::new(SERVER.into(), port));
        assert_eq!(
            connect(socket.as_raw_fd(), &server),
            Err(nix::errno::Errno::EINPROGRESS)
        );
        Self(socket)
    }

    fn is_established(&self) -> bool {
        nix::sys::socket::getpeername::<nix::sys::socket::SockaddrIn>(self.0.as_raw_fd()).is_ok()
    }
}

fn slow_clients_keep_nobody_else_out() {
    // The server's room; without a limit, the slow ones would take all of it.
    const ROOM: usize = 3_000;
    const PER_SOURCE: usize = 4;
    let network = Network::new();
    let listener = listen(&network);
    let agent = network.start("", &limit(PER_SOURCE as u32, ""));
    let sources: Vec<[u8; 4]> = (0..500u16)
        .map(|nth| [10, 77, 100 + (nth / 250) as u8, (nth % 250) as u8 + 1])
        .collect();
    network.add_client_addresses(&sources);
    // Each slow source opens three times as many, and then sends nothing.
    let slow: Vec<Begun> = network.in_client(|| {
        let begun = |source: &[u8; 4]| {
            (0..3 * PER_SOURCE)
                .map(|_| Begun::from(*source))
                .collect::<Vec<_>>()
        };
        sources.iter().flat_map(begun).collect()
    });
    let mut served: Vec<TcpStream> = Vec::new();
    let mut polite = 0;
    for _ in 0..200 {
        let mut client = match connect(&network, Duration::from_secs(3)) {
            Ok(client) => client,
            Err(_) => continue,
        };
        client
            .set_read_timeout(Some(Duration::from_secs(3)))
            .unwrap();
        let (own, start) = (client.local_addr().unwrap(), Instant::now());
        // The server's kernel may finish the handshake after the client's.
        let nth = loop {
            served.extend(listener.incoming().map_while(Result::ok));
            let nth = served
                .iter()
                .position(|stream| stream.peer_addr().is_ok_and(|peer| peer == own));
            if nth.is_some() || start.elapsed() > Duration::from_secs(10) {
                break nth;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        // The server serves whoever finds it below its room.
        if let Some(nth) = nth.filter(|_| served.len() <= ROOM) {
            served.remove(nth).write_all(b"x").unwrap();
            polite += usize::from(client.read_exact(&mut [0]).is_ok());
        }
    }
    let established = slow.iter().filter(|begun| begun.is_established()).count();
    assert!(
        polite >= 198,
        "{polite} of 200 polite clients were served beside {established} slow connections"
    );
    assert!(established <= 500 * PER_SOURCE, "{established}");
    assert!(established >= 450 * PER_SOURCE, "{established}");
    drop(agent);
}

fn a_refused_connection_is_reset_and_a_class_has_its_multiple() {
    let network = Network::new();
    let _listener = listen(&network);
    let class = "[[class]]\nname = \"payer\"\nsources = [\"10.77.0.7\"]\nmultiplier = 2\n";
    network.accept_xdp_frames();
    network.add_client_address("10.77.0.7");
    let agent = network.start("", &format!("{class}{}", limit(2, "action = \"reject\"")));
    let _open: Vec<TcpStream> = (0..2)
        .map(|_| connect(&network, Duration::from_secs(5)).unwrap())
        .collect();
    let refused = connect(&network, Duration::from_secs(5)).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    let of_class: Vec<Begun> =
        network.in_client(|| (0..6).map(|_| Begun::from([10, 77, 0, 7])).collect());
    agent.wait_for("the class's connections", |_| {
        of_class
            .iter()
            .filter(|begun| begun.is_established())
            .count()
            == 4
    });
    let row = shown(&agent, "10.77.0.7");
    assert_eq!((&row["open"], &row["remaining"]), (&4.into(), &0.into()));
    assert_eq!(agent.counts("open"), (6, 3));
}

fn connections_from_before_the_limit_count_and_a_reload_keeps_them() {
    let network = Network::new();
    let listener = listen(&network);
    let open: Vec<TcpStream> = (0..3)
        .map(|_| connect(&network, Duration::from_secs(5)).unwrap())
        .collect();
    let agent = network.start("", &limit(4, ""));
    assert_eq!(shown(&agent, "10.77.0.2")["open"], 3);
    let fourth = connect(&network, Duration::from_secs(5)).unwrap();
    assert!(connect(&network, Duration::from_millis(300)).is_err());
    // Another number, with the counts as they are.
    network.config("", &limit(5, ""));
    network.told(&["reload"]);
    assert_eq!(shown(&agent, "10.77.0.2")["open"], 4);
    let fifth = connect(&network, Duration::from_secs(5)).unwrap();
    assert!(connect(&network, Duration::from_millis(300)).is_err());
    // Another set of limits counts the same sockets.
    network.config("", &limit(5, "ipv4_prefix = 24"));
    network.told(&["reload"]);
    agent.wait_for("the count of the prefix", |_| {
        shown(&agent, "10.77.0.9")["open"] == 5
    });
    assert_eq!(agent.limit("open")["keys"], 1);
    let connections = agent.json(&["show", "10.77.0.2"])["connections"].clone();
    assert_eq!(connections.as_array().unwrap().len(), 5, "{connections}");
    assert!(
        connections
            .as_array()
            .unwrap()
            .iter()
            .all(|open| open["local_port"] == PORT)
    );
    drop((open, fourth, fifth, listener));
    agent.wait_for("their end", |_| shown(&agent, "10.77.0.2")["open"] == 0);
}

fn a_limit_in_observe_mode_counts_what_it_would_refuse() {
    let network = Network::new();
    let _listener = listen(&network);
    let agent = network.start("mode = \"observe\"", &limit(2, ""));
    let open: Vec<TcpStream> = (0..5)
        .map(|_| connect(&network, Duration::from_secs(5)).unwrap())
        .collect();
    let row = agent.limit("open");
    assert_eq!(
        (&row["passed"]["packets"], &row["would_throttle"]["packets"]),
        (&5.into(), &3.into())
    );
    assert_eq!(shown(&agent, "10.77.0.2")["open"], 5);
    drop(open);
}
