//! Units that the kernel counts as taken from queues, and others. Each test has a network namespace of its own.

use rustix::net::{ipproto, listen};

use super::drops::{alone, segment, send_raw};
use super::*;

const SYN: u8 = 2;

#[test]
fn connections_are_taken_when_they_are_accepted() {
    alone(|| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let mut signals = signals(address.port(), true);
        let mut now = 0.0;
        let mut read = |scale| {
            now += 0.05;
            signals.read(now, scale).unwrap()
        };
        assert_eq!(read(CONNECTIONS).taken, Some(0.0));
        let connect = || TcpStream::connect(address).unwrap();
        let mut clients: Vec<TcpStream> = (0..7).map(|_| connect()).collect();
        let queue = read(CONNECTIONS);
        assert!((queue.growth - 7.0).abs() < 1e-9, "{queue:?}");
        assert_eq!(queue.taken, Some(0.0), "they wait");
        (0..2).for_each(|_| clients.push(listener.accept().unwrap().0));
        assert_eq!(read(CONNECTIONS).taken, Some(2.0));
        // One more comes and two are accepted.
        clients.push(connect());
        (0..2).for_each(|_| clients.push(listener.accept().unwrap().0));
        assert_eq!(read(PACKETS).connections.taken, Some(2.0));
        // Handshakes that do not end, and to a port at which nobody listens.
        for port in [address.port(), 9] {
            (0..20).for_each(|_| send_raw(ipproto::TCP, &segment(port, SYN)));
        }
        let queue = read(CONNECTIONS);
        assert_eq!((queue.taken, queue.dropped), (Some(0.0), 0.0), "{queue:?}");
    });
}

/// A connection that a full queue drops does not count, however often its last acknowledgment is repeated.
#[test]
fn dropped_connections_are_not_taken() {
    alone(|| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listen(&listener, 5).unwrap();
        let address = listener.local_addr().unwrap();
        let mut signals = signals(address.port(), true);
        signals.read(0.0, CONNECTIONS).unwrap();
        let timeout = Duration::from_millis(30);
        let _clients: Vec<_> = (0..12)
            .map(|_| TcpStream::connect_timeout(&address, timeout))
            .collect();
        let queue = signals.read(0.05, CONNECTIONS).unwrap();
        assert!(queue.dropped >= 1.0 && queue.waiting >= 5.0, "{queue:?}");
        assert_eq!(queue.taken, Some(0.0), "{queue:?}");
    });
}

#[test]
fn datagrams_are_taken_when_they_are_read() {
    alone(|| {
        for address in [
            SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            SocketAddr::from((Ipv6Addr::LOCALHOST, 0)),
        ] {
            let server = UdpSocket::bind(address).unwrap();
            let target = server.local_addr().unwrap();
            let client = UdpSocket::bind(address).unwrap();
            let mut signals = signals(target.port(), false);
            assert_eq!(signals.read(0.0, PACKETS).unwrap().taken, Some(0.0));
            (0..20).for_each(|_| {
                client.send_to(b"x", target).unwrap();
            });
            (0..4).for_each(|_| {
                server.recv(&mut [0; 9]).unwrap();
            });
            let queue = signals.read(0.05, PACKETS).unwrap();
            assert_eq!(queue.taken, Some(4.0), "{queue:?}");
            // To a port that nobody has opened.
            let closed = SocketAddr::new(target.ip(), 9);
            for _ in 0..20 {
                let _ = client.send_to(b"x", closed);
            }
            let bytes = Scale {
                unit: Unit::Bytes,
                bytes: 100.0,
            };
            assert_eq!(signals.read(0.1, bytes).unwrap().taken, Some(0.0));
            server.recv(&mut [0; 9]).unwrap();
            assert_eq!(signals.read(0.15, bytes).unwrap().taken, Some(100.0));
        }
    });
}

/// Merged datagrams, which a program reads as one, are as many as the limit counts.
#[test]
fn datagrams_that_are_read_at_once_are_taken_one_by_one() {
    use nix::sys::socket::{setsockopt, sockopt};
    alone(|| {
        for address in [
            SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            SocketAddr::from((Ipv6Addr::LOCALHOST, 0)),
        ] {
            let server = UdpSocket::bind(address).unwrap();
            let target = server.local_addr().unwrap();
            let client = UdpSocket::bind(address).unwrap();
            setsockopt(&server, sockopt::UdpGroSegment, &true).unwrap();
            setsockopt(&client, sockopt::UdpGsoSegment, &100).unwrap();
            let mut signals = signals(target.port(), false);
            signals.read(0.0, PACKETS).unwrap();
            for tick in 1..6 {
                client.send_to(&[b'x'; 1000], target).unwrap();
                assert_eq!(server.recv(&mut [0; 2000]).unwrap(), 1000);
                let queue = signals.read(f64::from(tick), PACKETS).unwrap();
                assert_eq!(queue.taken, Some(10.0), "{queue:?}");
            }
        }
    });
}
