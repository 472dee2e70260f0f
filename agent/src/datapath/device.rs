//! What the kernel says of a device: what its frames begin with, and how it queues what it sends.

use std::io;

use common::packet::{Direction, Link};
use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload, Nla as _};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkLayerType, LinkMessage, LinkXdp};
use netlink_packet_route::tc::{TcAttribute, TcFilterBpfOption, TcHandle, TcMessage, TcOption};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// What the frames of a device begin with.
///
/// # Errors
///
/// When the kernel does not tell, or the device's frames begin with something that is neither Ethernet nor IP.
pub fn link(index: u32) -> io::Result<Link> {
    let answers = ask(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
    let link_layer = answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewLink(link) if link.header.index == index => Some(link.header.link_layer_type),
        _ => None,
    });
    match link_layer.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))? {
        LinkLayerType::Ether | LinkLayerType::Loopback => Ok(Link::Ethernet),
        // Tunnels: tun, WireGuard, IP in IP, GRE, SIT.
        LinkLayerType::None
        | LinkLayerType::Tunnel
        | LinkLayerType::Tunnel6
        | LinkLayerType::Sit
        | LinkLayerType::Ipgre
        | LinkLayerType::Ppp
        | LinkLayerType::Rawip => Ok(Link::RawIp),
        other => Err(io::Error::other(format!("its frames are of type {other:?}, neither Ethernet nor IP"))),
    }
}

/// The XDP programs of a device, by their numbers.
///
/// # Errors
///
/// When the kernel does not tell.
pub fn xdp_programs(index: u32) -> io::Result<Vec<u32>> {
    let answers = ask(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
    let of_device = answers.into_iter().filter_map(|answer| match answer {
        RouteNetlinkMessage::NewLink(link) if link.header.index == index => Some(link.attributes),
        _ => None,
    });
    let programs = of_device.flatten().filter_map(|attribute| match attribute {
        LinkAttribute::Xdp(attributes) => Some(attributes),
        _ => None,
    });
    Ok(programs
        .flatten()
        .filter_map(|attribute| match attribute {
            LinkXdp::ProgId(id) | LinkXdp::DrvProgId(id) | LinkXdp::SkbProgId(id) => Some(id),
            _ => None,
        })
        .collect())
}

/// The programs that are filters of the clsact queueing discipline on one side of a device, by their numbers.
///
/// # Errors
///
/// When the kernel does not tell.
pub fn filter_programs(index: u32, direction: Direction) -> io::Result<Vec<u32>> {
    let minor = match direction {
        Direction::Ingress => TcHandle::MIN_INGRESS,
        Direction::Egress => TcHandle::MIN_EGRESS,
    };
    let mut question = TcMessage::with_index(index as i32);
    question.header.parent = TcHandle { major: u16::MAX, minor };
    let answers = ask(RouteNetlinkMessage::GetTrafficFilter(question))?;
    let attributes = answers.into_iter().filter_map(|answer| match answer {
        RouteNetlinkMessage::NewTrafficFilter(filter) => Some(filter.attributes),
        _ => None,
    });
    let options = attributes.flatten().filter_map(|attribute| match attribute {
        TcAttribute::Options(options) => Some(options),
        _ => None,
    });
    Ok(options
        .flatten()
        .filter_map(|option| match option {
            TcOption::Bpf(TcFilterBpfOption::ProgId(id)) => Some(id),
            _ => None,
        })
        .collect())
}

/// The queueing disciplines of a device that packets pass before they are sent: the root's, and those of the queues
/// under it.
///
/// # Errors
///
/// When the kernel does not tell.
pub fn queueing(index: u32) -> io::Result<Vec<Queueing>> {
    let answers = ask(RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default()))?;
    Ok(answers
        .into_iter()
        .filter_map(|answer| match answer {
            RouteNetlinkMessage::NewQueueDiscipline(discipline) => egress_kind(&discipline, index)
                .map(|kind| Queueing { flow_limit: flow_limit(&discipline).filter(|_| kind == "fq"), kind }),
            _ => None,
        })
        .collect())
}

/// A queueing discipline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queueing {
    /// Its kind.
    pub kind: String,
    /// Of `fq`: the most buffers that wait in one flow.
    pub flow_limit: Option<u32>,
}

/// TCA_FQ_FLOW_PLIMIT of include/uapi/linux/pkt_sched.h.
fn flow_limit(discipline: &TcMessage) -> Option<u32> {
    const FLOW_LIMIT: u16 = 2;
    let options = discipline.attributes.iter().find_map(|attribute| match attribute {
        TcAttribute::Options(options) => Some(options),
        _ => None,
    })?;
    let raw = options.iter().find_map(|option| match option {
        TcOption::Other(raw) if raw.kind() == FLOW_LIMIT => Some(raw),
        _ => None,
    })?;
    let mut value = [0; 4];
    if raw.value_len() != value.len() {
        return None;
    }
    raw.emit_value(&mut value);
    Some(u32::from_ne_bytes(value))
}

/// All disciplines of a device, also those for programs and for what comes in.
///
/// # Errors
///
/// When the kernel does not tell.
pub fn disciplines(index: u32) -> io::Result<Vec<String>> {
    let answers = ask(RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default()))?;
    Ok(answers
        .into_iter()
        .filter_map(|answer| match answer {
            RouteNetlinkMessage::NewQueueDiscipline(discipline) if discipline.header.index == index as i32 => {
                kind(&discipline)
            }
            _ => None,
        })
        .collect())
}

/// The kind of a discipline of this device, unless it is the hook for programs, or one for what comes in.
fn egress_kind(discipline: &TcMessage, index: u32) -> Option<String> {
    const CLSACT: TcHandle = TcHandle { major: 0xffff, minor: 0xfff1 };
    if discipline.header.index != index as i32 || discipline.header.parent == CLSACT {
        return None;
    }
    kind(discipline)
}

fn kind(discipline: &TcMessage) -> Option<String> {
    discipline.attributes.iter().find_map(|attribute| match attribute {
        TcAttribute::Kind(kind) => Some(kind.clone()),
        _ => None,
    })
}

/// Asks the kernel for a list, and waits for all of it.
pub(super) fn ask(question: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_DUMP | NLM_F_REQUEST;
    let mut request = NetlinkMessage::new(header, NetlinkPayload::from(question));
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let mut answers = Vec::new();
    loop {
        let (part, _) = socket.recv_from_full()?;
        let mut rest = part.as_slice();
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(io::Error::other)?;
            match message.payload {
                NetlinkPayload::Done(_) => return Ok(answers),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                _ => {}
            }
            // Messages begin at multiples of four, and none is shorter than its header.
            let length = (message.header.length as usize).next_multiple_of(4).max(16);
            rest = rest.get(length..).unwrap_or(&[]);
        }
    }
}
