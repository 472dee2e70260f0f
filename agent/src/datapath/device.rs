//! What the kernel says of a device: what its frames begin with, and how it queues what it sends.

use std::io;

use common::packet::{Direction, Link};
use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload, Nla as _, NlasIterator,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage, LinkXdp};
use netlink_packet_route::tc::{TcAttribute, TcFilterBpfOption, TcHandle, TcMessage, TcOption};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// How often a list that changes while it is read is read again.
const ATTEMPTS: u32 = 20;
/// From Linux's uapi/linux/netlink.h; in requests this bit means something else.
const NLM_F_DUMP_INTR: u16 = 0x10;

/// An interface as the kernel reports it at one instant.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Its index, which stays the same while it is renamed.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// What its frames begin with; `Err` with their type if that is neither Ethernet nor IP.
    pub link: Result<Link, String>,
    /// Whether it is set up.
    pub is_up: bool,
    /// Whether it is a bond. With an XDP program on it the kernel refuses new members that have a program of their own or
    /// a driver without XDP (`bond_enslave`).
    pub is_bond: bool,
}

/// This host's interfaces, which are those of the agent's network namespace.
///
/// # Errors
///
/// When the kernel does not tell.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let answers = ask(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
    Ok(answers.into_iter().filter_map(interface).collect())
}

fn interface(answer: RouteNetlinkMessage) -> Option<Interface> {
    let RouteNetlinkMessage::NewLink(link) = answer else { return None };
    let name = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.clone()),
        _ => None,
    });
    let kind = match link.header.link_layer_type {
        LinkLayerType::Ether | LinkLayerType::Loopback => Ok(Link::Ethernet),
        // Tunnels: tun, WireGuard, IP in IP, GRE, SIT.
        LinkLayerType::None
        | LinkLayerType::Tunnel
        | LinkLayerType::Tunnel6
        | LinkLayerType::Sit
        | LinkLayerType::Ipgre
        | LinkLayerType::Ppp
        | LinkLayerType::Rawip => Ok(Link::RawIp),
        other => Err(format!("{other:?}")),
    };
    let is_up = link.header.flags.contains(LinkFlags::Up);
    let is_bond = super::topology::device(&link).kind == "bond";
    Some(Interface { index: link.header.index, name: name?, link: kind, is_up, is_bond })
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

/// A filter of the clsact queueing discipline that is a program.
#[derive(Clone, Debug)]
pub struct Filter {
    /// Its place.
    pub handle: TcHandle,
    /// Filters of a smaller one come first.
    pub priority: u16,
    /// As who made it named it.
    pub name: String,
    /// The program's number.
    pub program: Option<u32>,
}

/// The parent of the filters of one direction.
pub fn side(direction: Direction) -> TcHandle {
    let minor = match direction {
        Direction::Ingress => TcHandle::MIN_INGRESS,
        Direction::Egress => TcHandle::MIN_EGRESS,
    };
    TcHandle { major: u16::MAX, minor }
}

/// The programs that are filters of the clsact queueing discipline on one side of a device.
///
/// # Errors
///
/// When the kernel does not tell.
pub fn filters(index: u32, direction: Direction) -> io::Result<Vec<Filter>> {
    let mut question = TcMessage::with_index(index as i32);
    question.header.parent = side(direction);
    let answers = ask(RouteNetlinkMessage::GetTrafficFilter(question))?;
    Ok(answers.into_iter().filter_map(program_filter).collect())
}

fn program_filter(answer: RouteNetlinkMessage) -> Option<Filter> {
    let RouteNetlinkMessage::NewTrafficFilter(message) = answer else { return None };
    let (handle, priority) = (message.header.handle, (message.header.info >> 16) as u16);
    let options = message.attributes.into_iter().find_map(|attribute| match attribute {
        TcAttribute::Options(options) => Some(options),
        _ => None,
    })?;
    let (mut name, mut program) = (String::new(), None);
    for option in options {
        match option {
            TcOption::Bpf(TcFilterBpfOption::ProgName(text)) => name = text,
            TcOption::Bpf(TcFilterBpfOption::ProgId(id)) => program = Some(id),
            _ => {}
        }
    }
    Some(Filter { handle, priority, name, program })
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
    // netlink-packet-route knows nothing of fq: all its options are the content of one.
    let raw = options.iter().find_map(|option| match option {
        TcOption::Other(raw) => Some(raw),
        _ => None,
    })?;
    let mut content = vec![0; raw.value_len()];
    raw.emit_value(&mut content);
    let limit = NlasIterator::new(&content).flatten().find(|option| option.kind() == FLOW_LIMIT)?;
    limit.value().try_into().ok().map(u32::from_ne_bytes)
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
    for _ in 0..ATTEMPTS {
        match exchange(question.clone(), NLM_F_DUMP | NLM_F_REQUEST) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            answers => return answers,
        }
    }
    Err(io::Error::other("the kernel's list kept changing while it was read"))
}

/// Has the kernel change something, and waits until it has. `flags` ask for an acknowledgement.
pub(super) fn order(order: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
    exchange(order, flags).map(drop)
}

fn exchange(question: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
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
    let mut answers = Vec::new();
    loop {
        let (part, _) = socket.recv_from_full()?;
        let mut rest = part.as_slice();
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(io::Error::other)?;
            // Something may be missing from a list that changed meanwhile.
            if message.header.flags & NLM_F_DUMP_INTR != 0 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            match message.payload {
                NetlinkPayload::Done(_) => return Ok(answers),
                // An error of none is the acknowledgement.
                NetlinkPayload::Error(error) if error.code.is_none() => return Ok(answers),
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
