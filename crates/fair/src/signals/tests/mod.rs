//! Real sockets on loopback, of a network namespace of each test.

mod drops;
mod service;
mod taken;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use std::time::Duration;

use super::dumps::processor_time;
use super::reader::Bound;
use super::*;
use drops::own_network;

const PACKETS: Scale = Scale {
    unit: Unit::Packets,
    bytes: 100.0,
};
const CONNECTIONS: Scale = Scale {
    unit: Unit::Connections,
    bytes: 100.0,
};

fn signals(port: u16, listeners: bool) -> Signals {
    patient(Signals::new(Ports::new(vec![port..=port]), listeners, !listeners).unwrap())
}

/// Signals whose dumps and looks end however long they take.
fn patient(mut signals: Signals) -> Signals {
    (signals.dumps.longest, signals.dumps.rest) = (Duration::from_secs(60), 0.0);
    (signals.looks.longest, signals.looks.rest) = (Duration::from_secs(60), 0.0);
    signals
}

#[test]
fn a_udp_socket_has_a_queue_a_buffer_and_drops() {
    let Some(_network) = own_network() else {
        return;
    };
    for address in [
        SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        SocketAddr::from((Ipv6Addr::LOCALHOST, 0)),
    ] {
        let server = UdpSocket::bind(address).unwrap();
        let target = server.local_addr().unwrap();
        let client = UdpSocket::bind(address).unwrap();
        let mut signals = signals(target.port(), false);
        let queue = signals.read(0.0, PACKETS).unwrap();
        let room = queue.buffer.unwrap();
        assert!(
            queue.waiting <= 0.0 && queue.dropped <= 0.0 && room > 50.0,
            "{queue:?}"
        );
        let sent = 2 * room as usize;
        for _ in 0..sent {
            client.send_to(b"x", target).unwrap();
        }
        let queue = signals.read(0.05, PACKETS).unwrap();
        assert!(queue.waiting > 0.5 * room, "{queue:?}");
        let mut received = 0.0;
        server.set_nonblocking(true).unwrap();
        while server.recv(&mut [0; 9]).is_ok() {
            received += 1.0;
        }
        // Exact: each was received or dropped.
        assert!(
            (queue.dropped + received - sent as f64).abs() < 1e-9,
            "{queue:?} {received}"
        );
        assert!(
            (0.5..1.5).contains(&(queue.waiting / received)),
            "{queue:?} {received}"
        );
        let queue = signals.read(0.1, PACKETS).unwrap();
        assert!(queue.waiting <= 0.0 && queue.dropped <= 0.0, "{queue:?}");
    }
}

#[test]
fn a_port_that_is_named_twice_is_read_once() {
    let Some(_network) = own_network() else {
        return;
    };
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = server.local_addr().unwrap();
    let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = address.port();
    let ports = Ports::new(vec![port..=port, port..=port, port..=port]);
    let mut signals = patient(Signals::new(ports, false, true).unwrap());
    let room = signals.read(0.0, PACKETS).unwrap().buffer.unwrap();
    let sent = 2 * room as usize;
    for _ in 0..sent {
        client.send_to(b"x", address).unwrap();
    }
    let queue = signals.read(0.05, PACKETS).unwrap();
    assert_eq!(signals.watched().len(), 1);
    assert!(queue.waiting < 1.1 * room, "{queue:?}");
    assert!(queue.dropped > 0.3 * sent as f64, "{queue:?}");
}

#[test]
fn a_listener_has_a_queue_of_connections() {
    let Some(_network) = own_network() else {
        return;
    };
    let listener = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let mut signals = signals(address.port(), true);
    let clients: Vec<TcpStream> = (0..7)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let queue = signals.read(0.0, CONNECTIONS).unwrap();
    assert!(
        (queue.waiting - 7.0).abs() < 1e-9 && queue.buffer.is_none(),
        "{queue:?}"
    );
    let accepted = [listener.accept().unwrap(), listener.accept().unwrap()];
    let queue = signals.read(0.05, CONNECTIONS).unwrap();
    assert!((queue.waiting - 5.0).abs() < 1e-9, "{queue:?}");
    let bound = Bound {
        connections: 100,
        until: processor_time() + Duration::from_secs(60),
    };
    let connections = signals.reader.connections(address.port(), bound).unwrap();
    assert!(connections.are_all);
    let count = |is_accepted| {
        connections
            .found
            .iter()
            .filter(|one| one.is_accepted == is_accepted)
            .count()
    };
    assert_eq!(
        (count(true), count(false)),
        (accepted.len(), clients.len() - accepted.len())
    );
}

#[test]
fn a_listener_that_nobody_serves_is_ignored_and_one_that_is_served_is_not() {
    let Some(_network) = own_network() else {
        return;
    };
    let listeners = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let addresses = listeners
        .each_ref()
        .map(|listener| listener.local_addr().unwrap());
    let mut clients: Vec<TcpStream> = Vec::new();
    for address in [0, 0, 0, 0, 0, 1, 1, 1].map(|k: usize| addresses[k]) {
        clients.push(TcpStream::connect(address).unwrap());
    }
    let ports = addresses.map(|address| address.port()..=address.port());
    let mut signals = patient(Signals::new(Ports::new(ports.to_vec()), true, false).unwrap());
    let mut waiting = Vec::new();
    for tick in 0..40 {
        for _ in 0..2 {
            if tick % 2 == 0 {
                clients.push(TcpStream::connect(addresses[1]).unwrap());
            } else {
                drop(listeners[1].accept().unwrap());
            }
        }
        let now = f64::from(tick) * 0.05;
        waiting.push(signals.read(now, CONNECTIONS).unwrap().waiting);
    }
    let served = |port: u16| {
        let mut watched = signals.watched().iter();
        watched
            .find(|watched| watched.socket.port == port)
            .unwrap()
            .is_served
    };
    assert!(!served(addresses[0].port()) && served(addresses[1].port()));
    // Five of the one and five of the other; in the end three of the other.
    assert!((waiting[0] - 10.0).abs() < 1e-9, "{waiting:?}");
    assert!((waiting[39] - 3.0).abs() < 1e-9, "{waiting:?}");
}

#[test]
fn a_socket_that_is_closed_and_opened_again_drops_nothing_by_that() {
    let Some(_network) = own_network() else {
        return;
    };
    let mut server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = server.local_addr().unwrap();
    let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut signals = signals(address.port(), false);
    let room = signals.read(0.0, PACKETS).unwrap().buffer.unwrap();
    for _ in 0..2 * room as usize {
        client.send_to(b"x", address).unwrap();
    }
    drop(server);
    assert_eq!(signals.read(0.05, PACKETS).unwrap(), Queue::default());
    server = UdpSocket::bind(address).unwrap();
    let queue = signals.read(0.1, PACKETS).unwrap();
    assert!(queue.dropped <= 0.0 && queue.waiting <= 0.0, "{queue:?}");
    drop(server);
}

#[test]
fn many_ports_are_read_at_once() {
    let Some(_network) = own_network() else {
        return;
    };
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = server.local_addr().unwrap().port();
    let ports = Ports::new(vec![1..=u16::MAX]);
    let mut signals = patient(Signals::new(ports, false, true).unwrap());
    signals.read(0.0, PACKETS).unwrap();
    let has = |signals: &Signals| {
        signals
            .watched()
            .iter()
            .any(|watched| watched.socket.port == port)
    };
    assert!(has(&signals));
    drop(server);
    signals.read(0.05, PACKETS).unwrap();
    assert!(!has(&signals));
}

/// A socket for all addresses of IPv4, and one of its port on the loopback address of IPv6.
fn server_and_other() -> (UdpSocket, UdpSocket) {
    loop {
        let server = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = server.local_addr().unwrap().port();
        if let Ok(other) = UdpSocket::bind((Ipv6Addr::LOCALHOST, port)) {
            return (server, other);
        }
    }
}

/// A user of this host opens the port of a server on another address, and floods it.
#[test]
fn a_loopback_socket_on_the_port_of_a_server_does_not_count() {
    let Some(_network) = own_network() else {
        return;
    };
    let (server, other) = server_and_other();
    let address = other.local_addr().unwrap();
    let mut signals = signals(address.port(), false);
    let room = signals.read(0.0, PACKETS).unwrap().buffer.unwrap();
    let client = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
    (0..2 * room as usize).for_each(|_| {
        client.send_to(b"x", address).unwrap();
    });
    let queue = signals.read(0.05, PACKETS).unwrap();
    let [watched] = signals.watched() else {
        panic!("{:?}", signals.watched());
    };
    let cookie = rustix::net::sockopt::socket_cookie(&server).unwrap();
    assert_eq!(watched.socket.cookie, cookie);
    assert!(queue.waiting <= 0.0 && queue.dropped <= 0.0, "{queue:?}");
}

/// As after a restart of the agent: both are there at its first reading.
#[test]
fn a_socket_of_another_user_does_not_displace_a_named_backend() {
    drops::alone(|| {
        // No process adds the address: it would have copies of other tests' sockets.
        std::fs::write("/proc/sys/net/ipv4/ip_nonlocal_bind", "1").unwrap();
        let open = |user: u32, address: SocketAddr| {
            let listener = TcpListener::bind(address).unwrap();
            std::os::unix::fs::fchown(&listener, Some(user), None).unwrap();
            listener
        };
        let backend = open(998, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let port = backend.local_addr().unwrap().port();
        let stranger = open(1001, SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), port)));
        let own = Ports::new(vec![port..=port]);
        let named = Ports::default().and_backends(&[port]);
        for (ports, counts, strangers) in [
            (own, &stranger, vec![]),
            (named, &backend, vec![(port, true, 1001)]),
        ] {
            let mut signals = patient(Signals::new(ports, true, false).unwrap());
            signals.read(0.0, CONNECTIONS).unwrap();
            let watched = signals.watched().iter();
            let cookies: Vec<u64> = watched.map(|watched| watched.socket.cookie).collect();
            let expected = rustix::net::sockopt::socket_cookie(counts).unwrap();
            assert_eq!(cookies, [expected]);
            let found = signals.strangers().iter();
            let found = found.map(|one| (one.port, one.is_listener, one.user));
            assert_eq!(found.collect::<Vec<_>>(), strangers);
        }
    });
}

#[test]
fn more_sockets_than_a_reading_has_room_for_cannot_be_read() {
    let Some(_network) = own_network() else {
        return;
    };
    let servers = [(); 6].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let ports = servers
        .each_ref()
        .map(|server| server.local_addr().unwrap().port());
    let ranges = ports.map(|port| port..=port).to_vec();
    let mut signals = patient(Signals::new(Ports::new(ranges), false, true).unwrap());
    signals.read(0.0, PACKETS).unwrap();
    assert!(signals.watched().len() == 6 && !signals.is_cut());
    let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    client
        .send_to(b"x", (Ipv4Addr::LOCALHOST, ports[0]))
        .unwrap();
    signals.dumps.most_sockets = 3;
    let error = signals.read(0.05, PACKETS).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::QuotaExceeded);
    assert!(signals.is_cut());
    // The next reading has what happened since the last whole one.
    signals.dumps.most_sockets = 64_000;
    let queue = signals.read(0.1, PACKETS).unwrap();
    assert!(queue.growth > 0.0 && !signals.is_cut(), "{queue:?}");
    // After a reading that took long there is none for a while.
    (signals.dumps.longest, signals.dumps.rest) = (Duration::from_nanos(1), 1e18);
    assert!(signals.read(0.15, PACKETS).is_err() && signals.is_cut());
    let error = signals.read(0.2, PACKETS).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn a_listener_without_connections_leaves_a_udp_socket_its_buffer() {
    let Some(_network) = own_network() else {
        return;
    };
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let ports = [server.local_addr().unwrap().port(), address.port()];
    let ports = Ports::new(ports.map(|port| port..=port).to_vec());
    let mut signals = patient(Signals::new(ports, true, true).unwrap());
    assert!(signals.read(0.0, PACKETS).unwrap().buffer.is_some());
    let client = TcpStream::connect(address).unwrap();
    let queue = signals.read(0.05, PACKETS).unwrap();
    let waiting = queue.connections.waiting;
    assert!(waiting > 0.0 && queue.buffer.is_none(), "{queue:?}");
    drop(client);
}

#[test]
fn growth_is_that_of_sockets_that_were_served_at_both_readings() {
    let Some(_network) = own_network() else {
        return;
    };
    let listeners = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let addresses = listeners
        .each_ref()
        .map(|listener| listener.local_addr().unwrap());
    let ports = addresses.map(|address| address.port()..=address.port());
    let mut signals = patient(Signals::new(Ports::new(ports.to_vec()), true, false).unwrap());
    let mut clients: Vec<TcpStream> = Vec::new();
    let mut connect = |nth: usize, number| {
        clients.extend((0..number).map(|_| TcpStream::connect(addresses[nth]).unwrap()));
    };
    let mut now = 0.0;
    let mut read = || {
        now += 0.05;
        signals.read(now, CONNECTIONS).unwrap()
    };
    let is = |value: f64, expected: f64| (value - expected).abs() < 1e-9;
    // Both are new, with a queue.
    connect(0, 7);
    connect(1, 3);
    let queue = read();
    assert!(
        is(queue.waiting, 10.0) && is(queue.growth, 0.0),
        "{queue:?}"
    );
    connect(1, 2);
    let queue = read();
    assert!(
        is(queue.waiting, 12.0) && is(queue.growth, 2.0),
        "{queue:?}"
    );
    // The first is not served any more, the second is; and the first is again.
    let mut unserved = 0;
    for _ in 0..30 {
        drop(listeners[1].accept().unwrap());
        connect(1, 1);
        drop(listeners[1].accept().unwrap());
        let queue = read();
        connect(1, 1);
        read();
        assert!(queue.growth > -1.5 && queue.growth < 1.5, "{queue:?}");
        unserved += u32::from(queue.waiting < 6.0);
    }
    assert!(unserved > 5);
    drop(listeners[0].accept().unwrap());
    let queue = read();
    assert!(
        is(queue.waiting, 11.0) && is(queue.growth, 0.0),
        "{queue:?}"
    );
    connect(0, 1);
    assert!(is(read().growth, 1.0));
}
