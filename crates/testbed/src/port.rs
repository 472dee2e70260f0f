//! Reserved TCP ports on loopback, for servers with a port on their command line.

use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, getsockname, setsockopt, socket, sockopt,
};

/// The distance from the port of a Redis Cluster's node to its port for other nodes.
const BUS: u16 = 10_000;

/// A free port, and the one [`BUS`] above it, reserved until this is dropped: a bound socket that does not listen keeps
/// the kernel from giving the port to others, and lets a server with `SO_REUSEADDR` listen.
pub struct Port {
    number: u16,
    _reserved: [OwnedFd; 2],
}

impl Port {
    pub fn reserve() -> Self {
        loop {
            let (first, number) = bound(0).unwrap();
            if let Some(bus) = number.checked_add(BUS)
                && let Ok((second, _)) = bound(bus)
            {
                return Self {
                    number,
                    _reserved: [first, second],
                };
            }
        }
    }

    pub fn number(&self) -> u16 {
        self.number
    }
}

/// A socket bound to this port, or to a free one for 0; and its port.
fn bound(port: u16) -> nix::Result<(OwnedFd, u16)> {
    let socket = socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    let fd = socket.as_raw_fd();
    bind(fd, &SockaddrIn::new(127, 0, 0, 1, port))?;
    let address: SockaddrIn = getsockname(fd)?;
    Ok((socket, address.port()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_port_is_given_once_and_its_server_can_listen_and_restart() {
        let ports: Vec<Port> = (0..200).map(|_| Port::reserve()).collect();
        let numbers: BTreeSet<u16> = ports.iter().map(Port::number).collect();
        assert_eq!(numbers.len(), ports.len());
        let others: Vec<TcpListener> = (0..200)
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        for other in &others {
            assert!(!numbers.contains(&other.local_addr().unwrap().port()));
        }
        let address = ("127.0.0.1", ports[0].number());
        for _ in 0..2 {
            assert!(TcpStream::connect(address).is_err());
            let server = TcpListener::bind(address).unwrap();
            TcpStream::connect(address).unwrap();
            server.accept().unwrap();
        }
    }
}
