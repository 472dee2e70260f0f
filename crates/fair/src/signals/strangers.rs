//! Sockets that other users opened on the port of a server, to which they send themselves what the server is limited for.
//!
//! Beside a socket of root on all addresses, none of others counts. Beside another one that is not bound to a loopback
//! address, none that is counts unless it was there before: a backend on loopback is not displaced by whoever opens its port
//! on another address. A socket of root on one address says nothing of others: a resolver of virtual machines may be there.
//!
//! A port that the operator has named is that of a backend, which usually listens on a loopback address. Only a socket of
//! root displaces one there. A socket on one other address, of a user without one on loopback, does not count beside it
//! unless it was there before. One on all addresses does: which of both is the backend is not known.

use std::collections::{BTreeMap, BTreeSet};

use super::ports::Ports;
use super::reader::{Found, Kind};

/// A socket that does not count, whose user has no other on its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stranger {
    pub port: u16,
    pub is_listener: bool,
    pub user: u32,
}

/// The sockets of a kind on one port.
#[derive(Debug, Default)]
struct Port {
    /// Whether one is of root and has all addresses.
    is_of_root: bool,
    /// The time from which one is known that displaces those on loopback.
    open_since: Option<f64>,
    /// Users of sockets on loopback that count on the port of a backend, and the times from which these are known.
    backends: Vec<(u32, f64)>,
}

impl Port {
    fn displaces(&self, since: f64) -> bool {
        self.open_since.is_some_and(|open| open <= since)
    }

    /// Whether a socket of this user on one address that is not loopback does not count.
    fn has_backend_of_other(&self, user: u32, since: f64) -> bool {
        let first = |is_own: bool| {
            let of = self.backends.iter();
            let of = of.filter(move |(owner, _)| (*owner == user) == is_own);
            of.map(|(_, known)| *known).fold(f64::INFINITY, f64::min)
        };
        // One that its user opens later on loopback makes it no backend.
        first(false) <= since && first(true) > first(false)
    }
}

/// The cookies of sockets that do not count. `since`: the time from which a socket is known.
pub(super) fn strangers(
    found: &[Found],
    named: &Ports,
    since: impl Fn(u64) -> f64,
) -> BTreeSet<u64> {
    let since = |one: &Found| since(one.socket.cookie);
    let is_loopback = |one: &Found| one.local.address.is_loopback();
    let is_of_backend = |one: &Found| named.is_of_backend(one.socket.port);
    let mut ports: BTreeMap<(u16, bool), Port> = BTreeMap::new();
    for one in found {
        let port = ports.entry(key(one)).or_default();
        port.is_of_root |= one.user == 0 && one.local.address.is_unspecified();
    }
    let is_beside_root = |port: &Port, one: &Found| port.is_of_root && one.user != 0;
    for one in found.iter().filter(|one| !is_loopback(one)) {
        let port = ports.entry(key(one)).or_default();
        let displaces = one.user == 0 || !(port.is_of_root || is_of_backend(one));
        if displaces {
            let first = port.open_since.unwrap_or(f64::INFINITY);
            port.open_since = Some(first.min(since(one)));
        }
    }
    for one in found
        .iter()
        .filter(|one| is_loopback(one) && is_of_backend(one))
    {
        let port = ports.entry(key(one)).or_default();
        if !is_beside_root(port, one) && !port.displaces(since(one)) {
            port.backends.push((one.user, since(one)));
        }
    }
    let is_stranger = |one: &&Found| {
        ports.get(&key(one)).is_some_and(|port| {
            let is_other = if is_loopback(one) {
                port.displaces(since(one))
            } else {
                one.user != 0
                    && !one.local.address.is_unspecified()
                    && port.has_backend_of_other(one.user, since(one))
            };
            is_other || is_beside_root(port, one)
        })
    };
    let strangers = found.iter().filter(is_stranger);
    strangers.map(|one| one.socket.cookie).collect()
}

/// What the operator should know of these: a loopback socket gets nothing of what comes to a limit, unless it is that of a backend.
pub(super) fn reported(
    found: &[Found],
    ignored: &BTreeSet<u64>,
    named: &Ports,
) -> BTreeSet<Stranger> {
    let of = |one: &Found| Stranger {
        port: one.socket.port,
        is_listener: one.socket.kind == Kind::Listener,
        user: one.user,
    };
    let counts = |one: &&Found| !ignored.contains(&one.socket.cookie);
    let counted: BTreeSet<Stranger> = found.iter().filter(counts).map(of).collect();
    let matters = |one: &&Found| {
        let is_backend = named.is_of_backend(one.socket.port);
        one.user != 0 && (is_backend || !one.local.address.is_loopback())
    };
    let ignored = found.iter().filter(|one| !counts(one)).filter(matters);
    ignored
        .map(of)
        .filter(|one| !counted.contains(one))
        .collect()
}

fn key(one: &Found) -> (u16, bool) {
    (one.socket.port, one.socket.kind == Kind::Listener)
}

#[cfg(test)]
mod tests {
    use super::super::owner::Local;
    use super::super::reader::Socket;
    use super::*;

    const PORT: u16 = 27_015;

    /// The numbers of those that do not count, of sockets with an address, a user and the time from which they are known.
    fn ignored(sockets: &[(&str, u32, f64)]) -> Vec<u64> {
        ignored_on(sockets, &Ports::new(vec![PORT..=PORT]))
    }

    /// On the port of a backend.
    fn ignored_beside_backend(sockets: &[(&str, u32, f64)]) -> Vec<u64> {
        ignored_on(sockets, &Ports::default().and_backends(&[PORT]))
    }

    fn ignored_on(sockets: &[(&str, u32, f64)], ports: &Ports) -> Vec<u64> {
        let since = |cookie: u64| sockets[cookie as usize].2;
        strangers(&found(sockets), ports, since)
            .into_iter()
            .collect()
    }

    fn found(sockets: &[(&str, u32, f64)]) -> Vec<Found> {
        let found = |(cookie, (address, user, _)): (usize, &(&str, u32, f64))| Found {
            socket: Socket {
                cookie: cookie as u64,
                port: PORT,
                kind: Kind::Datagrams,
                waiting: 0,
                room: 212_992,
                drops: 0,
            },
            local: Local {
                address: address.parse().unwrap(),
                port: PORT,
                device: 0,
                is_v6_only: false,
            },
            user: *user,
        };
        sockets.iter().enumerate().map(found).collect()
    }

    #[test]
    fn a_loopback_socket_beside_a_server_does_not_count() {
        assert_eq!(
            ignored(&[("192.0.2.1", 998, 0.0), ("127.0.0.2", 1001, 5.0)]),
            [1]
        );
        assert_eq!(ignored(&[("0.0.0.0", 998, 3.0), ("::1", 1001, 3.0)]), [1]);
    }

    #[test]
    fn a_backend_on_loopback_is_not_displaced() {
        assert_eq!(
            ignored(&[("127.0.0.1", 998, 0.0), ("192.0.2.1", 1001, 5.0)]),
            [0_u64; 0]
        );
        assert_eq!(
            ignored(&[("127.0.0.1", 998, 0.0), ("::1", 998, 5.0)]),
            [0_u64; 0]
        );
    }

    #[test]
    fn beside_a_socket_of_root_on_all_addresses_none_of_others_counts() {
        let sockets = [("0.0.0.0", 0, 5.0), ("192.0.2.2", 1001, 0.0)];
        assert_eq!(ignored(&sockets), [1]);
        let sockets = [("::", 0, 5.0), ("127.0.0.2", 1001, 0.0)];
        assert_eq!(ignored(&sockets), [1]);
    }

    #[test]
    fn a_server_beside_a_socket_of_root_on_another_address_counts() {
        let sockets = [("192.0.2.1", 0, 0.0), ("192.0.2.2", 998, 5.0)];
        assert_eq!(ignored(&sockets), [0_u64; 0]);
        assert_eq!(
            ignored(&[("192.0.2.1", 0, 0.0), ("0.0.0.0", 998, 5.0)]),
            [0_u64; 0]
        );
    }

    #[test]
    fn a_socket_that_does_not_count_displaces_none() {
        // Of root on all addresses of IPv6, and on loopback; of a user on another address.
        let sockets = [
            ("::", 0, 5.0),
            ("127.0.0.1", 0, 4.0),
            ("192.0.2.2", 1001, 0.0),
        ];
        assert_eq!(ignored(&sockets), [2]);
    }

    #[test]
    fn a_later_socket_on_loopback_makes_no_stranger_a_backend() {
        let sockets = [
            ("127.0.0.1", 998, 0.0),
            ("192.0.2.1", 1001, 5.0),
            ("127.0.0.2", 1001, 6.0),
        ];
        assert_eq!(ignored_beside_backend(&sockets), [1]);
    }

    /// After the agent's or the backend's start.
    #[test]
    fn a_backend_on_loopback_is_not_displaced_on_a_port_that_is_named() {
        for since in [0.0, 5.0] {
            let sockets = [("127.0.0.1", 998, since), ("192.0.2.1", 1001, since)];
            assert_eq!(ignored_beside_backend(&sockets), [1]);
            assert_eq!(ignored(&sockets), [0]);
        }
        // It was there before: which of both is the backend is not known.
        let sockets = [("127.0.0.1", 998, 5.0), ("192.0.2.1", 1001, 0.0)];
        assert_eq!(ignored_beside_backend(&sockets), [0_u64; 0]);
        let sockets = [("127.0.0.1", 998, 5.0), ("::", 1001, 0.0)];
        assert_eq!(ignored_beside_backend(&sockets), [0_u64; 0]);
    }

    #[test]
    fn a_backend_on_all_addresses_counts_beside_a_loopback_socket() {
        let sockets = [("0.0.0.0", 998, 0.0), ("::1", 1001, 0.0)];
        assert_eq!(ignored_beside_backend(&sockets), [0_u64; 0]);
        let sockets = [("0.0.0.0", 0, 5.0), ("::1", 1001, 0.0)];
        assert_eq!(ignored_beside_backend(&sockets), [1]);
    }

    #[test]
    fn a_backend_counts_on_each_of_its_addresses() {
        let sockets = [
            ("127.0.0.1", 998, 0.0),
            ("192.0.2.1", 998, 0.0),
            ("192.0.2.2", 1001, 0.0),
            ("192.0.2.3", 0, 5.0),
        ];
        assert_eq!(ignored_beside_backend(&sockets), [2]);
        // One of root that was there before displaces loopback, which then displaces none.
        let sockets = [
            ("192.0.2.3", 0, 0.0),
            ("127.0.0.1", 998, 0.0),
            ("192.0.2.2", 1001, 0.0),
        ];
        assert_eq!(ignored_beside_backend(&sockets), [1]);
    }

    #[test]
    fn strangers_are_reported_unless_they_get_nothing_anyway() {
        let of = |sockets: &[(&str, u32, f64)], ports: &Ports| {
            let found = found(sockets);
            let ignored = strangers(&found, ports, |cookie| sockets[cookie as usize].2);
            let reported = reported(&found, &ignored, ports).into_iter();
            reported.map(|one| one.user).collect::<Vec<_>>()
        };
        let (own, backend) = (
            Ports::new(vec![PORT..=PORT]),
            Ports::default().and_backends(&[PORT]),
        );
        let resolvers = [("192.0.2.1", 53, 0.0), ("127.0.0.53", 101, 0.0)];
        assert_eq!(of(&resolvers, &own), [0_u32; 0]);
        let beside_root = [("0.0.0.0", 0, 0.0), ("192.0.2.1", 1001, 0.0)];
        assert_eq!(of(&beside_root, &own), [1001]);
        let sockets = [("127.0.0.1", 998, 0.0), ("192.0.2.1", 1001, 0.0)];
        assert_eq!(of(&sockets, &backend), [1001]);
        let sockets = [("0.0.0.0", 0, 0.0), ("127.0.0.1", 998, 0.0)];
        assert_eq!(of(&sockets, &backend), [998]);
    }
}
