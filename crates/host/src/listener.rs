//! Listening sockets on addresses that the host may not have yet: an agent starts before the network.

use std::io;
use std::net::{SocketAddr, TcpListener};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

/// How many clients the kernel keeps until they are accepted, as the standard library has it.
const BACKLOG: i32 = 128;

/// A socket that listens.
#[derive(Debug)]
pub struct Listener {
    pub socket: TcpListener,
    /// Whether the host has the address. If not, clients reach the socket once it has.
    pub is_present: bool,
}

impl Listener {
    /// Listens on an address, also if the host does not have it yet.
    ///
    /// # Errors
    ///
    /// When another program listens there, or the port is not permitted.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Ok(Self {
                socket: bind_in_advance(address)?,
                is_present: false,
            }),
            bound => Ok(Self {
                socket: bound?,
                is_present: true,
            }),
        }
    }
}

fn bind_in_advance(address: SocketAddr) -> io::Result<TcpListener> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    match address {
        SocketAddr::V4(_) => sockopt::set_ip_freebind(&socket, true)?,
        SocketAddr::V6(_) => sockopt::set_ipv6_freebind(&socket, true)?,
    }
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_come_later_and_a_port_in_use_is_an_error() {
        let own = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        assert!(own.is_present);
        let taken = own.socket.local_addr().unwrap();
        let error = Listener::bind(taken).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        for documentation in ["192.0.2.1:0", "[2001:db8::1]:0"] {
            let later = Listener::bind(documentation.parse().unwrap()).unwrap();
            assert!(!later.is_present, "{documentation}");
            let again = later.socket.local_addr().unwrap();
            let error = Listener::bind(again).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{documentation}");
        }
    }
}
