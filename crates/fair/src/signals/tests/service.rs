//! Listeners that nobody serves, beside ones that are served.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketType, bind, listen, socket, sockopt};

use super::*;

/// Whether each listener counts as served, after each of so many ticks of 50 ms. `tick` acts before each.
fn served(listeners: &[&TcpListener], ticks: u32, mut tick: impl FnMut(u32)) -> Vec<Vec<bool>> {
    let port = listeners[0].local_addr().unwrap().port();
    let mut signals = signals(port, true);
    let cookies: Vec<u64> = listeners
        .iter()
        .map(|listener| sockopt::socket_cookie(listener).unwrap())
        .collect();
    let mut all = Vec::new();
    for number in 0..ticks {
        tick(number);
        signals.read(f64::from(number) * 0.05, CONNECTIONS).unwrap();
        let is_served = |cookie: &u64| {
            let mut watched = signals.watched().iter();
            let watched = watched.find(|watched| watched.socket.cookie == *cookie);
            watched.unwrap().is_served
        };
        all.push(cookies.iter().map(is_served).collect());
    }
    all
}

/// A listener of 127.0.0.2 on the port of one of 127.0.0.1.
fn two_addresses() -> [TcpListener; 2] {
    loop {
        let first = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = first.local_addr().unwrap().port();
        if let Ok(second) = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 2), port)) {
            return [first, second];
        }
    }
}

/// Connects and accepts, so that the queue never becomes shorter.
fn serve(listener: &TcpListener, clients: &mut Vec<TcpStream>) {
    clients.push(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
    clients.push(listener.accept().unwrap().0);
}

#[test]
fn a_listener_that_hangs_beside_one_of_another_address_is_ignored() {
    let Some(_network) = own_network() else {
        return;
    };
    let [hangs, lives] = two_addresses();
    let mut clients: Vec<TcpStream> = Vec::new();
    for listener in [&hangs, &lives] {
        let address = listener.local_addr().unwrap();
        clients.extend((0..5).map(|_| TcpStream::connect(address).unwrap()));
    }
    let served = served(&[&hangs, &lives], 60, |_| serve(&lives, &mut clients));
    assert!(served[..20].iter().all(|served| served[0]));
    assert!(served[20..].iter().all(|served| !served[0]));
    assert!(served.iter().all(|served| served[1]));
}

#[test]
fn a_listener_for_all_addresses_has_the_connections_of_ipv4() {
    let Some(_network) = own_network() else {
        return;
    };
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    for address in [
        IpAddr::from(Ipv4Addr::LOCALHOST),
        IpAddr::from(Ipv6Addr::LOCALHOST),
    ] {
        let connect = || TcpStream::connect((address, port)).unwrap();
        let mut clients: Vec<TcpStream> = (0..5).map(|_| connect()).collect();
        let all = served(&[&listener], 60, |_| {
            clients.extend([connect(), listener.accept().unwrap().0]);
        });
        assert!(all.iter().all(|served| served[0]), "{address}");
        // Then it hangs.
        let all = served(&[&listener], 60, |_| ());
        assert!(all[19][0] && all[20..].iter().all(|served| !served[0]));
    }
}

/// Two listeners of one address and port.
fn two_workers() -> [TcpListener; 2] {
    let worker = |address: SocketAddr| {
        let worker: OwnedFd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        sockopt::set_socket_reuseport(&worker, true).unwrap();
        bind(&worker, &address).unwrap();
        listen(&worker, 1000).unwrap();
        TcpListener::from(worker)
    };
    let first = worker(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let second = worker(first.local_addr().unwrap());
    [first, second]
}

#[test]
fn a_worker_that_hangs_beside_another_is_ignored() {
    let Some(_network) = own_network() else {
        return;
    };
    let workers = two_workers();
    let address = workers[0].local_addr().unwrap();
    workers[1].set_nonblocking(true).unwrap();
    let mut clients: Vec<TcpStream> = Vec::new();
    let connect = |clients: &mut Vec<TcpStream>| {
        clients.push(TcpStream::connect(address).unwrap());
    };
    // The kernel chooses the worker.
    (0..40).for_each(|_| connect(&mut clients));
    let served = served(&[&workers[0], &workers[1]], 100, |_| {
        connect(&mut clients);
        clients.extend(workers[1].accept().ok().map(|(client, _)| client));
    });
    assert!(served.iter().any(|served| served[0]), "for a while");
    assert!(served[80..].iter().all(|served| !served[0]));
    assert!(served.iter().all(|served| served[1]));
}

#[test]
fn two_workers_that_hang_are_ignored() {
    let Some(_network) = own_network() else {
        return;
    };
    let workers = two_workers();
    let address = workers[0].local_addr().unwrap();
    let _clients: Vec<TcpStream> = (0..40)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let served = served(&[&workers[0], &workers[1]], 60, |_| ());
    assert!(served[20..].iter().flatten().all(|served| !served));
}

#[test]
fn a_dump_that_is_broken_off_does_not_disturb_the_next_one() {
    let Some(_network) = own_network() else {
        return;
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let mut reader = Reader::new().unwrap();
    // Several parts of a reply.
    let connect = |_| {
        let client = TcpStream::connect(address).unwrap();
        [client, listener.accept().unwrap().0]
    };
    let _connections: Vec<_> = (0..120).map(connect).collect();
    let _waiting: Vec<_> = (0..7)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let later = processor_time() + Duration::from_secs(60);
    let bounds = [
        (20, later, 20, false),
        (10_000, processor_time(), 0, false),
        (10_000, later, 127, true),
    ];
    for (connections, until, expected, are_all) in bounds {
        let bound = Bound { connections, until };
        let seen = reader.connections(address.port(), bound).unwrap();
        assert_eq!((seen.found.len(), seen.are_all), (expected, are_all));
        let mut found = Vec::new();
        let ports = Ports::new(vec![address.port()..=address.port()]);
        let mut left = Dumps::new().begin(0.0).unwrap();
        reader
            .sockets(Kind::Listener, &ports, &mut left, &mut found)
            .unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].socket.waiting, 7);
    }
}

/// An attacker holds more connections than are looked at: a listener that hangs is ignored, if later, and one that is
/// served is not.
#[test]
fn more_connections_than_a_look_has_room_for_hide_nothing() {
    let Some(_network) = own_network() else {
        return;
    };
    let [hangs, lives] = two_addresses();
    let mut clients: Vec<TcpStream> = Vec::new();
    let mut accepted = Vec::new();
    for listener in [&hangs, &lives] {
        for _ in 0..30 {
            serve(listener, &mut accepted);
        }
        let address = listener.local_addr().unwrap();
        clients.extend((0..5).map(|_| TcpStream::connect(address).unwrap()));
    }
    let address = lives.local_addr().unwrap();
    let mut signals = signals(address.port(), true);
    signals.looks.most_connections = 20;
    let mut served = Vec::new();
    for tick in 0..100 {
        // Shorter every second, else longer.
        if tick % 20 == 0 {
            accepted.push(lives.accept().unwrap().0);
        } else if tick % 20 == 1 {
            clients.push(TcpStream::connect(address).unwrap());
        }
        signals.read(f64::from(tick) * 0.05, CONNECTIONS).unwrap();
        let of = |listener: &TcpListener| {
            let cookie = sockopt::socket_cookie(listener).unwrap();
            let mut watched = signals.watched().iter();
            let watched = watched.find(|watched| watched.socket.cookie == cookie);
            watched.unwrap().is_served
        };
        served.push((of(&hangs), of(&lives)));
    }
    assert!(served[20..60].iter().all(|(hangs, _)| *hangs), "not known");
    assert!(served[60..].iter().all(|(hangs, _)| !hangs));
    assert!(served.iter().all(|(_, lives)| *lives));
}
