//! Kinds of connections whose SYNs are answered by a cookie: reused ports, data in the SYN, small packets, tags.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrStorage, bind, connect, getpeername,
    sendto, setsockopt, socket, sockopt,
};
use testbed::tests;
use testbed::trials::Test;

use crate::prove::{LIMIT, PORT, network, proofs};
use crate::support::{INTERFACE, Network, is_virtual, run};

pub const ON_ANY_KERNEL: &[Test] = tests![
    addresses_and_ports_of_a_closed_connection_open_another,
    data_in_a_syn_arrives,
    sockets_that_connect_to_each_other_need_no_proof,
    megabytes_arrive_whole_by_native_xdp,
    megabytes_arrive_whole_by_traffic_control,
];

/// Tests that require VLAN devices.
pub const WITH_VLAN: &[Test] = tests![megabytes_arrive_whole_on_a_vlan];

const TIME_WAIT: &str = "06";
/// A port of the client's that nothing else uses.
const CLIENT_PORT: u16 = 5_555;

/// A listener on every address of the server.
fn listen(network: &Network) -> TcpListener {
    network.in_server(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT)).unwrap())
}

/// Waits until something is so.
fn wait(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(300);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} did not come in time");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The states of this namespace's sockets of connections from [`CLIENT_PORT`].
fn states() -> Vec<String> {
    let text = ["tcp", "tcp6"]
        .map(|file| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap());
    let port = format!(":{CLIENT_PORT:04X}");
    let state = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        fields[1..3]
            .iter()
            .any(|address| address.ends_with(&port))
            .then(|| fields[3].to_owned())
    };
    text.iter()
        .flat_map(|text| text.lines())
        .filter_map(state)
        .collect()
}

/// A socket with this address.
fn bound(flags: SockFlag, address: SocketAddr) -> OwnedFd {
    let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
    setsockopt(&socket, sockopt::ReuseAddr, &true).unwrap();
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address)).unwrap();
    socket
}

/// The same four addresses and ports, with a later sequence number. If the server has closed first, it is in TIME_WAIT, and
/// its kernel opens the connection without a cookie; else it knows nothing of the former one.
fn addresses_and_ports_of_a_closed_connection_open_another() {
    let network = network("2", "native");
    // A client that closes first is in TIME_WAIT, too, and would reuse its port only after a second.
    network.in_client(|| std::fs::write("/proc/sys/net/ipv4/tcp_max_tw_buckets", "0").unwrap());
    let agent = network.start(
        "attach = \"native\"",
        &format!("{LIMIT}rate = \"1000/s\"\n"),
    );
    let listener = listen(&network);
    let (server, client) = (
        SocketAddr::from(([10, 77, 0, 1], PORT)),
        SocketAddr::from(([10, 77, 0, 2], CLIENT_PORT)),
    );
    for (nth, (closes_first, proven)) in [(true, 1), (true, 1), (false, 1), (false, 2)]
        .into_iter()
        .enumerate()
    {
        let mut open: TcpStream = network.in_client(|| {
            let socket = bound(SockFlag::empty(), client);
            connect(socket.as_raw_fd(), &SockaddrStorage::from(server)).unwrap();
            socket.into()
        });
        open.write_all(b"x").unwrap();
        let (mut accepted, from) = listener.accept().unwrap();
        accepted.read_exact(&mut [0]).unwrap();
        assert_eq!(from.port(), CLIENT_PORT);
        assert_eq!(
            (agent.counts("web"), proofs(&agent, "acks_accepted")),
            ((nth as u64 + 1, 0), proven),
            "{nth}"
        );
        let (mut first, mut second) = if closes_first {
            (accepted, open)
        } else {
            (open, accepted)
        };
        first.shutdown(Shutdown::Write).unwrap();
        assert_eq!(second.read(&mut [0]).unwrap(), 0);
        drop(second);
        assert_eq!(first.read(&mut [0]).unwrap(), 0);
        drop(first);
        wait("the client's end", || network.in_client(states).is_empty());
        let remains: &[&str] = if closes_first { &[TIME_WAIT] } else { &[] };
        wait("the server's end", || network.in_server(states) == remains);
    }
    assert_eq!(proofs(&agent, "acks_refused"), 0);
}

/// TCP Fast Open: the client has a cookie of the server's kernel, and its SYN has data. Weir's answer does not acknowledge
/// them, so that the client sends them again.
fn data_in_a_syn_arrives() {
    let network = network("1", "native");
    let agent = network.start(
        "attach = \"native\"",
        &format!("{LIMIT}rate = \"1000/s\"\n"),
    );
    network.in_client(|| std::fs::write("/proc/sys/net/ipv4/tcp_fastopen", "1").unwrap());
    network.in_server(|| std::fs::write("/proc/sys/net/ipv4/tcp_fastopen", "2").unwrap());
    let listener = listen(&network);
    let queue: libc::c_int = 16;
    // SAFETY: a live socket, and a value of the length that is given.
    let result = unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_FASTOPEN,
            (&raw const queue).cast(),
            4,
        )
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    let to = SockaddrStorage::from(SocketAddr::from(([10, 77, 0, 1], PORT)));
    // Data in SYNs that a server has acknowledged (`TcpExt: TCPFastOpenActive`).
    let acknowledged = || {
        let text =
            network.in_client(|| std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap());
        let mut lines = text
            .lines()
            .filter_map(|line| line.strip_prefix("TcpExt: "));
        let column = lines
            .next()
            .unwrap()
            .split(' ')
            .position(|name| name == "TCPFastOpenActive")
            .unwrap();
        lines
            .next()
            .unwrap()
            .split(' ')
            .nth(column)
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    // Without Weir's answers: the first connection has the server's cookie, the second sends data with it.
    for (cookies, answered, in_syn) in [("1", 0, 0), ("1", 0, 1), ("2", 1, 1), ("2", 2, 1)] {
        network.in_server(|| std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", cookies).unwrap());
        let client = network.in_client(|| {
            let socket = socket(
                AddressFamily::Inet,
                SockType::Stream,
                SockFlag::empty(),
                None,
            )
            .unwrap();
            assert_eq!(
                sendto(
                    socket.as_raw_fd(),
                    b"early",
                    &to,
                    MsgFlags::from_bits_retain(libc::MSG_FASTOPEN)
                ),
                Ok(5)
            );
            TcpStream::from(socket)
        });
        client.shutdown(Shutdown::Write).unwrap();
        let mut text = String::new();
        listener
            .accept()
            .unwrap()
            .0
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(
            (
                text.as_str(),
                proofs(&agent, "syns_answered"),
                acknowledged()
            ),
            ("early", answered, in_syn)
        );
    }
    assert_eq!(
        (agent.counts("web"), proofs(&agent, "acks_refused")),
        ((4, 0), 0)
    );
}

/// A simultaneous open: each side's SYN finds a socket that has sent one itself.
fn sockets_that_connect_to_each_other_need_no_proof() {
    let network = network("2", "native");
    let agent = network.start(
        "attach = \"native\"",
        &format!("{LIMIT}rate = \"1000/s\"\n"),
    );
    let (server, client) = (
        SocketAddr::from(([10, 77, 0, 1], PORT)),
        SocketAddr::from(([10, 77, 0, 2], CLIENT_PORT)),
    );
    let neighbours = |macs: [&str; 2]| {
        let set = |namespace: &str, address: &str, mac: &str, device: &str| {
            run(
                "ip",
                &[
                    "-n",
                    namespace,
                    "neigh",
                    "replace",
                    address,
                    "lladdr",
                    mac,
                    "dev",
                    device,
                    "nud",
                    "permanent",
                ],
            );
        };
        set(network.server(), "10.77.0.2", macs[1], INTERFACE);
        set(network.client(), "10.77.0.1", macs[0], "client0");
    };
    // The first SYN of each is lost, so that both have sent one before either receives one.
    neighbours(["02:00:00:00:77:98", "02:00:00:00:77:99"]);
    let begin = |own: SocketAddr, other: SocketAddr| {
        let socket = bound(SockFlag::SOCK_NONBLOCK, own);
        let begun = connect(socket.as_raw_fd(), &SockaddrStorage::from(other));
        assert_eq!(begun, Err(nix::errno::Errno::EINPROGRESS));
        socket
    };
    let ends = [
        network.in_server(|| begin(server, client)),
        network.in_client(|| begin(client, server)),
    ];
    neighbours(["02:00:00:00:77:01", "02:00:00:00:77:02"]);
    wait("both ends", || {
        ends.iter()
            .all(|end| getpeername::<SockaddrStorage>(end.as_raw_fd()).is_ok())
    });
    let [mut server, mut client] = ends.map(TcpStream::from);
    for stream in [&server, &client] {
        stream.set_nonblocking(false).unwrap();
    }
    let mut received = [0; 2];
    server.write_all(b"s").unwrap();
    client.write_all(b"c").unwrap();
    client.read_exact(&mut received[..1]).unwrap();
    server.read_exact(&mut received[1..]).unwrap();
    assert_eq!((&received, agent.counts("web").1), (b"sc", 0));
    assert_eq!(
        ["syns_answered", "acks_accepted", "acks_refused"].map(|name| proofs(&agent, name)),
        [0; 3]
    );
}

/// The content that each side sends: three megabytes, less where the CPU is emulated.
fn content(seed: u8) -> Vec<u8> {
    let mut state = u32::from(seed);
    let byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(byte)
        .take(if is_virtual() { 1 << 19 } else { 3 << 20 })
        .collect()
}

/// Sends and receives at once, so that neither side waits for the other.
fn exchange(stream: &TcpStream, sent: &[u8], expected: &[u8]) {
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    stream
        .set_write_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            (&*stream).write_all(sent).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        (&*stream).read_to_end(&mut received).unwrap();
        assert!(
            received == expected,
            "{} bytes, and not those that were sent",
            received.len()
        );
    });
}

/// Sends [`content`] in both directions, over a new connection to each of these addresses.
fn exchange_with(network: &Network, addresses: &[&str]) {
    let listener = listen(network);
    let (to_server, to_client) = (content(1), content(2));
    for address in addresses {
        let to: SocketAddr = format!("{address}:{PORT}").parse().unwrap();
        let client = network
            .in_client(|| TcpStream::connect_timeout(&to, Duration::from_secs(60)))
            .unwrap();
        thread::scope(|scope| {
            scope.spawn(|| exchange(&listener.accept().unwrap().0, &to_client, &to_server));
            exchange(&client, &to_server, &to_client);
        });
    }
}

/// With the devices' offloads, which veth has by default, and with packets as small as links of the Internet have them.
fn megabytes_arrive_whole(attach: &str) {
    let network = network("2", attach);
    let agent = network.start(
        &format!("attach = {attach:?}"),
        &format!("{LIMIT}rate = \"1000/s\"\n"),
    );
    let both = &["10.77.0.1", "[fd77::1]"][..];
    let mut connections = 0;
    // IPv6 requires links of 1,280 bytes.
    for (mtu, addresses) in [(1_500, both), (1_280, both), (576, &both[..1])] {
        network.set_mtu(mtu);
        exchange_with(&network, addresses);
        connections += addresses.len() as u64;
        assert_eq!(
            (agent.counts("web"), proofs(&agent, "syns_answered")),
            ((connections, 0), connections),
            "{mtu}"
        );
    }
    assert_eq!(
        ["acks_accepted", "acks_refused"].map(|name| proofs(&agent, name)),
        [connections, 0]
    );
}

fn megabytes_arrive_whole_by_native_xdp() {
    megabytes_arrive_whole("native");
}

fn megabytes_arrive_whole_by_traffic_control() {
    megabytes_arrive_whole("tc");
}

/// Whether a tag is in the frame or in the packet's metadata depends on the hook and the driver; a SYN passes unanswered
/// where it is not seen.
fn megabytes_arrive_whole_on_a_vlan() {
    for attach in ["native", "tc"] {
        let network = network("2", attach);
        let vlan = |device: &str| format!("link add link {device} name vlan0 type vlan id 7");
        for (namespace, device, last) in [
            (network.server(), INTERFACE, 1),
            (network.client(), "client0", 2),
        ] {
            let ip = |command: &str| {
                run(
                    "ip",
                    &[
                        &["-n", namespace][..],
                        &command.split(' ').collect::<Vec<_>>(),
                    ]
                    .concat(),
                );
            };
            ip(&vlan(device));
            ip(&format!("addr add 10.79.0.{last}/24 dev vlan0"));
            ip("link set vlan0 up");
        }
        let agent = network.start(
            &format!("attach = {attach:?}"),
            &format!("{LIMIT}rate = \"1000/s\"\n"),
        );
        exchange_with(&network, &["10.79.0.1", "10.77.0.1"]);
        assert_eq!(
            (agent.counts("web"), proofs(&agent, "acks_refused")),
            ((2, 0), 0),
            "{attach}"
        );
        assert!(
            proofs(&agent, "syns_answered") >= 1,
            "{attach}: without a tag"
        );
    }
}
