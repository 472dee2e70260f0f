//! Dumps of sockets by netlink.

use std::io;
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP, IPPROTO_UDP};
use netlink_packet_sock_diag::inet::nlas::Nla;
use netlink_packet_sock_diag::inet::{
    ExtensionFlags, InetRequest, InetResponse, SocketId, StateFlags,
};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket as Netlink, SocketAddr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::Ports;

/// As many ports are requested one by one; of more, all sockets are dumped.
const FEW_PORTS: usize = 4;
/// The longest that the kernel may take for a part of a reply.
const PATIENCE: Duration = Duration::from_millis(200);

/// What a socket takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Listener,
    /// UDP.
    Datagrams,
}

/// What waits at a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// The kernel's number of it, which no other socket gets.
    pub cookie: u64,
    pub port: u16,
    pub kind: Kind,
    /// Connections, or bytes of memory.
    pub waiting: u32,
    /// The backlog in connections, or the buffer in bytes of memory.
    pub room: u32,
    /// Connections or datagrams that were dropped, in all.
    pub drops: u32,
}

/// A connection to a local port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Connection {
    pub cookie: u64,
    /// Whether a program has accepted it.
    pub is_accepted: bool,
}

#[derive(Debug)]
pub(super) struct Reader {
    socket: Netlink,
    sequence: u32,
}

impl Reader {
    pub fn new() -> io::Result<Self> {
        let mut socket = Netlink::new(NETLINK_SOCK_DIAG)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// Adds the sockets of a kind on these ports.
    pub fn sockets(
        &mut self,
        kind: Kind,
        ports: &Ports,
        sockets: &mut Vec<Socket>,
    ) -> io::Result<()> {
        let (protocol, states) = match kind {
            Kind::Listener => (IPPROTO_TCP, StateFlags::LISTEN),
            Kind::Datagrams => (IPPROTO_UDP, StateFlags::all()),
        };
        // Port 0 stands for all.
        for port in ports.few(FEW_PORTS).unwrap_or_else(|| vec![0]) {
            self.dump(
                protocol,
                &states,
                ExtensionFlags::SKMEMINFO,
                port,
                |response| {
                    let id = &response.header.socket_id;
                    let memory = response.nlas.iter().find_map(|attribute| match attribute {
                        Nla::MemInfo(memory) => Some(memory),
                        _ => None,
                    });
                    if let Some(memory) = memory.filter(|_| ports.contains(id.source_port)) {
                        sockets.push(Socket {
                            cookie: u64::from_ne_bytes(id.cookie),
                            port: id.source_port,
                            kind,
                            waiting: response.header.recv_queue,
                            room: match kind {
                                Kind::Listener => response.header.send_queue,
                                Kind::Datagrams => memory.receive_queue_max,
                            },
                            drops: memory.drops,
                        });
                    }
                },
            )?;
        }
        Ok(())
    }

    /// The connections to a local port.
    pub fn connections(&mut self, port: u16) -> io::Result<Vec<Connection>> {
        let mut connections = Vec::new();
        let states = StateFlags::ESTABLISHED | StateFlags::CLOSE_WAIT;
        self.dump(
            IPPROTO_TCP,
            &states,
            ExtensionFlags::empty(),
            port,
            |response| {
                connections.push(Connection {
                    cookie: u64::from_ne_bytes(response.header.socket_id.cookie),
                    is_accepted: response.header.inode != 0,
                });
            },
        )?;
        Ok(connections)
    }

    fn dump(
        &mut self,
        protocol: u8,
        states: &StateFlags,
        extensions: ExtensionFlags,
        port: u16,
        mut each: impl FnMut(&InetResponse),
    ) -> io::Result<()> {
        for family in [AF_INET, AF_INET6] {
            let mut id = if family == AF_INET {
                SocketId::new_v4()
            } else {
                SocketId::new_v6()
            };
            id.source_port = port;
            let request = SockDiagMessage::InetRequest(InetRequest {
                family,
                protocol,
                extensions: extensions.clone(),
                states: states.clone(),
                socket_id: id,
            });
            self.exchange(request, &mut each)?;
        }
        Ok(())
    }

    fn exchange(
        &mut self,
        request: SockDiagMessage,
        each: &mut impl FnMut(&InetResponse),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        loop {
            let (part, _) = self.socket.recv_from_full()?;
            let mut rest = part.as_slice();
            while !rest.is_empty() {
                let message = NetlinkMessage::<SockDiagMessage>::deserialize(rest)
                    .map_err(io::Error::other)?;
                // Messages are aligned to four bytes, and none is shorter than its header.
                let length = (message.header.length as usize).next_multiple_of(4).max(16);
                rest = rest.get(length..).unwrap_or(&[]);
                // The rest of a reply that was late.
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::Done(_) => return Ok(()),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response)) => {
                        each(&response);
                    }
                    _ => {}
                }
            }
        }
    }
}
