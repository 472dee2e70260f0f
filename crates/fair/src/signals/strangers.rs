//! Sockets that other users opened on the port of a server, to which they send themselves what the server is limited for.
//!
//! Beside a socket of root on all addresses, none of others counts. Beside another one that is not bound to a loopback
//! address, none that is counts unless it was there before: a backend on loopback is not displaced by whoever opens its port
//! on another address. A socket of root on one address says nothing of others: a resolver of virtual machines may be there.

use std::collections::{BTreeMap, BTreeSet};

use super::reader::{Found, Kind};

/// Of the sockets of a kind on one port.
#[derive(Debug, Default)]
struct Port {
    /// Whether one is of root and has all addresses.
    is_of_root: bool,
    /// The time from which one that is not bound to loopback is known.
    open_since: Option<f64>,
}

/// The cookies of sockets that do not count. `since`: the time from which a socket is known.
pub(super) fn strangers(found: &[Found], since: impl Fn(u64) -> f64) -> BTreeSet<u64> {
    let key = |one: &Found| (one.socket.port, one.socket.kind == Kind::Listener);
    let mut ports: BTreeMap<(u16, bool), Port> = BTreeMap::new();
    for one in found {
        let port = ports.entry(key(one)).or_default();
        port.is_of_root |= one.user == 0 && one.local.address.is_unspecified();
    }
    for one in found {
        let port = ports.entry(key(one)).or_default();
        let counts = one.user == 0 || !port.is_of_root;
        if counts && !one.local.address.is_loopback() {
            let since = since(one.socket.cookie);
            port.open_since = Some(port.open_since.map_or(since, |first| first.min(since)));
        }
    }
    let is_stranger = |one: &&Found| {
        let Some(port) = ports.get(&key(one)) else {
            return false;
        };
        let is_displaced = one.local.address.is_loopback()
            && port
                .open_since
                .is_some_and(|open| open <= since(one.socket.cookie));
        is_displaced || (port.is_of_root && one.user != 0)
    };
    let strangers = found.iter().filter(is_stranger);
    strangers.map(|one| one.socket.cookie).collect()
}

#[cfg(test)]
mod tests {
    use super::super::owner::Local;
    use super::super::reader::Socket;
    use super::*;

    /// The numbers of those that do not count, of sockets with an address, a user and the time from which they are known.
    fn ignored(sockets: &[(&str, u32, f64)]) -> Vec<u64> {
        let found = |(cookie, (address, user, _)): (usize, &(&str, u32, f64))| Found {
            socket: Socket {
                cookie: cookie as u64,
                port: 27_015,
                kind: Kind::Datagrams,
                waiting: 0,
                room: 212_992,
                drops: 0,
            },
            local: Local {
                address: address.parse().unwrap(),
                port: 27_015,
                device: 0,
                is_v6_only: false,
            },
            user: *user,
        };
        let found: Vec<Found> = sockets.iter().enumerate().map(found).collect();
        let since = |cookie: u64| sockets[cookie as usize].2;
        strangers(&found, since).into_iter().collect()
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
            []
        );
        assert_eq!(ignored(&[("127.0.0.1", 998, 0.0), ("::1", 998, 5.0)]), []);
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
        assert_eq!(ignored(&sockets), []);
        assert_eq!(ignored(&[("192.0.2.1", 0, 0.0), ("0.0.0.0", 998, 5.0)]), []);
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
}
