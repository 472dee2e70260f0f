//! Drops that are an overload, and others. Each test has a network namespace of its own: the counters of one are shared.

use std::fs::File;
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkFlags, LinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::sched::{CloneFlags, setns, unshare};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recv, sendto,
    socket_with,
};

use super::*;

/// A network namespace of this thread's own, until dropped. Nobody else takes a port that a test has given back.
pub(super) struct OwnNetwork {
    before: File,
}

/// `None` if not run as root.
pub(super) fn own_network() -> Option<OwnNetwork> {
    if !nix::unistd::geteuid().is_root() {
        return None;
    }
    let before = File::open("/proc/thread-self/ns/net").unwrap();
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    let own = OwnNetwork { before };
    set_loopback_up();
    Some(own)
}

/// Without a process: until one has started its program, it has copies of all descriptors, and so a socket that another test
/// closes stays open.
fn set_loopback_up() {
    let mut link = LinkMessage::default();
    // The index in a new namespace.
    link.header.index = 1;
    (link.header.flags, link.header.change_mask) = (LinkFlags::Up, LinkFlags::Up);
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_ACK;
    let request = RouteNetlinkMessage::SetLink(link);
    let mut request = NetlinkMessage::new(header, NetlinkPayload::from(request));
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    let socket = netlink_sys::Socket::new(NETLINK_ROUTE).unwrap();
    let kernel = netlink_sys::SocketAddr::new(0, 0);
    socket.send_to(&bytes, &kernel, 0).unwrap();
    let (reply, _) = socket.recv_from_full().unwrap();
    let reply = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&reply).unwrap();
    match reply.payload {
        NetlinkPayload::Error(error) => assert_eq!(error.code, None, "{error:?}"),
        other => panic!("{other:?}"),
    }
}

impl Drop for OwnNetwork {
    fn drop(&mut self) {
        setns(&self.before, CloneFlags::CLONE_NEWNET).unwrap();
    }
}

/// Runs a test in a network namespace of its own, as root.
pub(super) fn alone(test: fn()) {
    if let Some(_network) = own_network() {
        test();
    }
}

/// Sends what no socket would, to a port of 127.0.0.1.
pub(super) fn send_raw(protocol: rustix::net::Protocol, packet: &[u8]) {
    let flags = SocketFlags::CLOEXEC;
    let raw = socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(protocol)).unwrap();
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    sendto(&raw, packet, SendFlags::empty(), &to).unwrap();
}

/// The Internet checksum of a TCP segment between two sockets of 127.0.0.1.
fn checksum(segment: &[u8]) -> u16 {
    let mut sum = 2 * (0x7f00 + 1) + 6 + segment.len() as u32;
    for pair in segment.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
    }
    !((sum >> 16) + (sum & 0xffff)) as u16
}

/// A TCP segment with these flags and nothing else.
pub(super) fn segment(port: u16, flags: u8) -> Vec<u8> {
    let mut segment = vec![0; 20];
    segment[..2].copy_from_slice(&4000_u16.to_be_bytes());
    segment[2..4].copy_from_slice(&port.to_be_bytes());
    (segment[12], segment[13]) = (5 << 4, flags);
    let checksum = checksum(&segment);
    segment[16..18].copy_from_slice(&checksum.to_be_bytes());
    segment
}

/// The drops of the only socket that is watched.
fn drops(signals: &Signals) -> u32 {
    let [Watched { socket, .. }] = signals.watched() else {
        panic!("{:?}", signals.watched());
    };
    socket.drops
}

#[test]
fn datagrams_with_invalid_checksums_are_no_overload() {
    alone(|| {
        let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let target = server.local_addr().unwrap();
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut signals = signals(target.port(), false);
        let room = signals.read(0.0, PACKETS).unwrap().buffer.unwrap();
        // Longer than 76 bytes, they are only checked when they are received.
        let mut datagram = vec![b'x'; 208];
        datagram[..2].copy_from_slice(&4000_u16.to_be_bytes());
        datagram[2..4].copy_from_slice(&target.port().to_be_bytes());
        datagram[4..6].copy_from_slice(&208_u16.to_be_bytes());
        datagram[6..8].copy_from_slice(&0x1234_u16.to_be_bytes());
        let mut now = 0.0;
        // Before an empty queue, and before a long one.
        for waiting in [0.0, 0.7 * room] {
            (0..50).for_each(|_| send_raw(ipproto::UDP, &datagram));
            let before = drops(&signals);
            let none = recv(&server, &mut [0; 300][..], RecvFlags::DONTWAIT);
            assert_eq!(none.unwrap_err(), rustix::io::Errno::AGAIN);
            for _ in 0..waiting as usize {
                client.send_to(b"x", target).unwrap();
            }
            now += 0.05;
            let queue = signals.read(now, PACKETS).unwrap();
            assert!(queue.waiting >= 0.9 * waiting, "{queue:?}");
            assert_eq!(drops(&signals) - before, 50);
            assert!(queue.dropped <= 0.0, "{queue:?}");
        }
    });
}

#[test]
fn datagrams_for_which_a_buffer_has_no_room_are_an_overload() {
    alone(|| {
        let addresses = [
            SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            SocketAddr::from((Ipv6Addr::LOCALHOST, 0)),
        ];
        for address in addresses {
            let server = UdpSocket::bind(address).unwrap();
            let target = server.local_addr().unwrap();
            let client = UdpSocket::bind(address).unwrap();
            let mut signals = signals(target.port(), false);
            let room = signals.read(0.0, PACKETS).unwrap().buffer.unwrap();
            for tick in 1..4 {
                for _ in 0..2 * room as usize {
                    client.send_to(b"x", target).unwrap();
                }
                let before = drops(&signals);
                let queue = signals.read(f64::from(tick) * 0.05, PACKETS).unwrap();
                let moved = f64::from(drops(&signals) - before);
                assert!(moved > room / 2.0 && (queue.dropped - moved).abs() < 1e-9);
            }
        }
    });
}

#[test]
fn segments_that_a_listener_does_not_expect_are_no_overload() {
    alone(|| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        // The backlog is set again.
        rustix::net::listen(&listener, 20).unwrap();
        let address = listener.local_addr().unwrap();
        let mut signals = signals(address.port(), true);
        signals.read(0.0, CONNECTIONS).unwrap();
        let mut clients = Vec::new();
        let mut now = 0.0;
        // Before an empty queue, and before a long one. FIN and SYN, RST, none.
        for flags in [3, 4, 0, 3, 4, 0] {
            (0..10).for_each(|_| send_raw(ipproto::TCP, &segment(address.port(), flags)));
            let before = drops(&signals);
            now += 0.05;
            let queue = signals.read(now, CONNECTIONS).unwrap();
            assert_eq!(drops(&signals) - before, 10, "flags {flags}");
            assert!(queue.dropped <= 0.0, "{queue:?}");
            clients.extend((0..3).map(|_| TcpStream::connect(address).unwrap()));
        }
    });
}

#[test]
fn connections_for_which_a_backlog_has_no_room_are_an_overload() {
    alone(|| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        rustix::net::listen(&listener, 3).unwrap();
        let address = listener.local_addr().unwrap();
        let mut signals = signals(address.port(), true);
        signals.read(0.0, CONNECTIONS).unwrap();
        let timeout = Duration::from_millis(50);
        let _clients: Vec<_> = (0..8)
            .map(|_| TcpStream::connect_timeout(&address, timeout))
            .collect();
        let queue = signals.read(0.05, CONNECTIONS).unwrap();
        let moved = f64::from(drops(&signals));
        assert!(
            moved >= 1.0 && (queue.dropped - moved).abs() < 1e-9,
            "{queue:?}"
        );
    });
}
