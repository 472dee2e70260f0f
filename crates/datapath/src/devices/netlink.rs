//! Requests to the kernel over netlink.

use std::io;
use std::net::IpAddr;

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// Attempts to read a list that changes during the read.
const ATTEMPTS: u32 = 20;
/// From Linux's uapi/linux/netlink.h; in requests this bit has another meaning.
const NLM_F_DUMP_INTR: u16 = 0x10;

/// Requests a netlink dump, and returns all of its messages.
pub(crate) fn dump(question: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
    dump_of(question, |_| true)
}

/// The same of those messages that are wanted: a router has a million routes.
pub(crate) fn dump_of(
    question: RouteNetlinkMessage,
    is_wanted: impl Fn(&RouteNetlinkMessage) -> bool,
) -> io::Result<Vec<RouteNetlinkMessage>> {
    for _ in 0..ATTEMPTS {
        match exchange(question.clone(), NLM_F_DUMP | NLM_F_REQUEST, &is_wanted) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            replies => return replies,
        }
    }
    Err(io::Error::other(
        "the kernel's list kept changing while it was read",
    ))
}

/// Sends a netlink request that changes something, and waits for its acknowledgement, which `flags` must request.
pub(crate) fn execute(request: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
    exchange(request, flags, |_| true).map(drop)
}

/// The host's own address in a message.
pub(crate) fn local(message: &AddressMessage) -> Option<IpAddr> {
    let attributes = || message.attributes.iter();
    let local = attributes().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    // On a point-to-point link, this one is the peer's.
    let any = attributes().find_map(|attribute| match attribute {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    });
    local.or(any)
}

fn exchange(
    question: RouteNetlinkMessage,
    flags: u16,
    is_wanted: impl Fn(&RouteNetlinkMessage) -> bool,
) -> io::Result<Vec<RouteNetlinkMessage>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    let mut request = NetlinkMessage::new(header, NetlinkPayload::from(question));
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let mut replies = Vec::new();
    loop {
        let (part, _) = socket.recv_from_full()?;
        let mut rest = part.as_slice();
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                .map_err(io::Error::other)?;
            // A list that changed during the read may be incomplete.
            if message.header.flags & NLM_F_DUMP_INTR != 0 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            match message.payload {
                NetlinkPayload::Done(_) => return Ok(replies),
                // An error with code 0 is the acknowledgement.
                NetlinkPayload::Error(error) if error.code.is_none() => return Ok(replies),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                NetlinkPayload::InnerMessage(reply) if is_wanted(&reply) => replies.push(reply),
                _ => {}
            }
            // Messages are aligned to four bytes, and none is shorter than its header.
            let length = (message.header.length as usize).next_multiple_of(4).max(16);
            rest = rest.get(length..).unwrap_or(&[]);
        }
    }
}
