//! Dumps of sockets by netlink.

use std::io;
use std::ops::ControlFlow;
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

use super::dumps::{Left, processor_time};
use super::owner::Local;
use super::ports::Ports;

/// As many ports are requested one by one; of more, all sockets are dumped.
const FEW_PORTS: usize = 4;
/// The longest that the kernel may take for a part of a reply.
const PATIENCE: Duration = Duration::from_millis(200);

/// The kind of a socket: it takes connections or datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Listener,
    /// UDP.
    Datagrams,
}

/// A socket and its queue.
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

/// A socket as it was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub socket: Socket,
    pub local: Local,
    /// The user who opened it.
    pub user: u32,
}

/// Connections to a local port.
#[derive(Debug, Default)]
pub(super) struct Connections {
    pub found: Vec<Connection>,
    /// Whether these are all.
    pub are_all: bool,
}

/// A connection to a local port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Connection {
    pub cookie: u64,
    pub local: Local,
    /// Whether a program has accepted it.
    pub is_accepted: bool,
}

/// Where a dump ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    pub connections: usize,
    /// Processor time of the thread.
    pub until: Duration,
}

/// The sockets of a dump.
struct Wanted {
    protocol: u8,
    states: StateFlags,
    extensions: ExtensionFlags,
    /// 0: all.
    port: u16,
}

#[derive(Debug)]
pub(super) struct Reader {
    /// None after a reply that was not read to its end: the kernel would go on with it.
    socket: Option<Netlink>,
    sequence: u32,
}

impl Reader {
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            socket: Some(open()?),
            sequence: 0,
        })
    }

    /// Adds the sockets of a kind on these ports, as far as there is time.
    pub fn sockets(
        &mut self,
        kind: Kind,
        ports: &Ports,
        left: &mut Left,
        found: &mut Vec<Found>,
    ) -> io::Result<()> {
        let (protocol, states) = match kind {
            Kind::Listener => (IPPROTO_TCP, StateFlags::LISTEN),
            Kind::Datagrams => (IPPROTO_UDP, StateFlags::all()),
        };

        for port in ports.few(FEW_PORTS).unwrap_or_else(|| vec![0]) {
            let wanted = Wanted {
                protocol,
                states: states.clone(),
                extensions: ExtensionFlags::SKMEMINFO,
                port,
            };
            self.dump(&wanted, None, |response| {
                if !left.take() {
                    return ControlFlow::Break(());
                }
                found.extend(socket(kind, response).filter(|one| ports.contains(one.socket.port)));
                ControlFlow::Continue(())
            })?;
        }
        Ok(())
    }

    /// The connections to a local port, up to a bound.
    pub fn connections(&mut self, port: u16, bound: Bound) -> io::Result<Connections> {
        let mut found = Vec::new();
        let wanted = Wanted {
            protocol: IPPROTO_TCP,
            states: StateFlags::ESTABLISHED | StateFlags::CLOSE_WAIT,
            extensions: ExtensionFlags::empty(),
            port,
        };
        let are_all = self.dump(&wanted, Some(bound.until), |response| {
            if found.len() >= bound.connections {
                return ControlFlow::Break(());
            }
            let id = &response.header.socket_id;
            found.push(Connection {
                cookie: u64::from_ne_bytes(id.cookie),
                local: Local::new(id, false),
                is_accepted: response.header.inode != 0,
            });
            ControlFlow::Continue(())
        })?;
        Ok(Connections { found, are_all })
    }

    fn dump(
        &mut self,
        wanted: &Wanted,
        until: Option<Duration>,
        mut each: impl FnMut(&InetResponse) -> ControlFlow<()>,
    ) -> io::Result<bool> {
        for family in [AF_INET, AF_INET6] {
            let mut id = if family == AF_INET {
                SocketId::new_v4()
            } else {
                SocketId::new_v6()
            };
            id.source_port = wanted.port;
            let request = SockDiagMessage::InetRequest(InetRequest {
                family,
                protocol: wanted.protocol,
                extensions: wanted.extensions.clone(),
                states: wanted.states.clone(),
                socket_id: id,
            });
            if !self.exchange(request, until, &mut each)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sends a request, and reads the reply up to this processor time, or to where `each` breaks. Returns whether to its end.
    fn exchange(
        &mut self,
        request: SockDiagMessage,
        until: Option<Duration>,
        each: &mut impl FnMut(&InetResponse) -> ControlFlow<()>,
    ) -> io::Result<bool> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => open()?,
        };
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        socket.send(&bytes, 0)?;
        loop {
            let (part, _) = socket.recv_from_full()?;
            if until.is_some_and(|until| processor_time() > until) {
                return Ok(false);
            }
            let mut rest = part.as_slice();
            while !rest.is_empty() {
                let message = NetlinkMessage::<SockDiagMessage>::deserialize(rest)
                    .map_err(io::Error::other)?;
                // Messages are aligned to four bytes, and none is shorter than its header.
                let length = (message.header.length as usize).next_multiple_of(4).max(16);
                rest = rest.get(length..).unwrap_or(&[]);
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::Done(_) => {
                        self.socket = Some(socket);
                        return Ok(true);
                    }
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response))
                        if each(&response).is_break() =>
                    {
                        return Ok(false);
                    }
                    _ => {}
                }
            }
        }
    }
}

fn open() -> io::Result<Netlink> {
    let mut socket = Netlink::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
    Ok(socket)
}

/// A listener or a UDP socket, if the kernel reports its memory.
fn socket(kind: Kind, response: &InetResponse) -> Option<Found> {
    let header = &response.header;
    let attributes = || response.nlas.iter();
    let memory = attributes().find_map(|attribute| match attribute {
        Nla::MemInfo(memory) => Some(memory),
        _ => None,
    })?;
    let is_v6_only = attributes().any(|attribute| *attribute == Nla::SkV6Only(true));
    Some(Found {
        socket: Socket {
            cookie: u64::from_ne_bytes(header.socket_id.cookie),
            port: header.socket_id.source_port,
            kind,
            waiting: header.recv_queue,
            room: match kind {
                Kind::Listener => header.send_queue,
                Kind::Datagrams => memory.receive_queue_max,
            },
            drops: memory.drops,
        },
        local: Local::new(&header.socket_id, is_v6_only),
        user: header.uid,
    })
}
