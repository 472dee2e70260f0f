//! What the kernel says of a device: what its frames begin with, and how it queues what it sends.

use std::io;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::ifaddrs::getifaddrs;

use common::packet::Link;

/// What the frames of a device begin with.
///
/// # Errors
///
/// When the kernel does not tell, or the device's frames begin with something that is neither Ethernet nor IP.
pub fn link(interface: &str) -> io::Result<Link> {
    let hardware = getifaddrs()?
        .filter(|entry| entry.interface_name == interface)
        .find_map(|entry| Some(entry.address?.as_link_addr()?.hatype()))
        .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    match hardware {
        libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => Ok(Link::Ethernet),
        // Tunnels: tun, WireGuard, IP in IP, GRE, SIT.
        libc::ARPHRD_NONE
        | libc::ARPHRD_TUNNEL
        | libc::ARPHRD_TUNNEL6
        | libc::ARPHRD_SIT
        | libc::ARPHRD_IPGRE
        | libc::ARPHRD_PPP => Ok(Link::RawIp),
        other => Err(io::Error::other(format!("its frames are of type {other}, neither Ethernet nor IP"))),
    }
}

/// The queueing disciplines of a device that packets pass before they are sent: the root's, and those of the queues
/// under it.
///
/// # Errors
///
/// When the kernel does not tell.
pub fn queueing(index: u32) -> io::Result<Vec<String>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_DUMP | NLM_F_REQUEST;
    let mut asked = TcMessage::default();
    asked.header.index = index as i32;
    let mut request = NetlinkMessage::new(header, NetlinkPayload::from(RouteNetlinkMessage::GetQueueDiscipline(asked)));
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send(&bytes, 0)?;

    let mut kinds = Vec::new();
    loop {
        let (answer, _) = socket.recv_from_full()?;
        let mut rest = answer.as_slice();
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(io::Error::other)?;
            match message.payload {
                NetlinkPayload::Done(_) => return Ok(kinds),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewQueueDiscipline(discipline)) => {
                    kinds.extend(egress_kind(&discipline, index));
                }
                _ => {}
            }
            let length = (message.header.length as usize).next_multiple_of(4).max(16);
            rest = rest.get(length..).unwrap_or(&[]);
        }
    }
}

/// The kind of a discipline of this device, unless it is the hook for programs, or one for what comes in.
fn egress_kind(discipline: &TcMessage, index: u32) -> Option<String> {
    const CLSACT: TcHandle = TcHandle { major: 0xffff, minor: 0xfff1 };
    if discipline.header.index != index as i32 || discipline.header.parent == CLSACT {
        return None;
    }
    discipline.attributes.iter().find_map(|attribute| match attribute {
        TcAttribute::Kind(kind) => Some(kind.clone()),
        _ => None,
    })
}
