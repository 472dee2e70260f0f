//! Devices as netlink reports them: header of their frames, filters, queueing disciplines.

use std::io;
use std::net::IpAddr;

use common::packet::{Direction, Link};
use netlink_packet_core::{Nla as _, NlasIterator};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoData, InfoGre, InfoGre6, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
    LinkXdp,
};
use netlink_packet_route::tc::{TcAttribute, TcFilterBpfOption, TcHandle, TcMessage, TcOption};
use thiserror::Error;

use crate::devices::netlink::dump;
use crate::devices::topology::{self, Device};

/// An interface as the kernel reports it at one instant.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Its index, which is stable when it is renamed.
    pub index: u32,
    /// Its present name.
    pub name: String,
    /// The header of its frames; `Err` with the reason if limits do not support them.
    pub link: Result<Link, Unsupported>,
    /// Whether it is set up.
    pub is_up: bool,
    /// Whether it is a bond. With an XDP program on it, the kernel rejects new members with their own program or with a
    /// driver without XDP (`bond_enslave`).
    pub is_bond: bool,
    /// Its kind, and the devices below it.
    pub device: Device,
}

impl Interface {
    /// Whether it is an end of a virtual Ethernet pair.
    #[must_use]
    pub fn is_veth(&self) -> bool {
        self.device.kind == VETH
    }
}

/// Why limits do not support a device's frames.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unsupported {
    /// They have another link header: the name of its type.
    #[error("its frames are of type {0}, neither Ethernet nor IP")]
    Header(String),
    /// A tunnel's programs see headers of the packets that carry it.
    #[error("{0}; limit the interface that carries it")]
    Tunnel(&'static str),
}

/// The kind of virtual Ethernet pairs.
pub const VETH: &str = "veth";

/// The interfaces of the agent's network namespace.
///
/// # Errors
///
/// When netlink fails.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let replies = dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
    Ok(replies.into_iter().filter_map(interface).collect())
}

fn interface(reply: RouteNetlinkMessage) -> Option<Interface> {
    let RouteNetlinkMessage::NewLink(link) = reply else {
        return None;
    };
    let name = link
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        });
    let is_up = link.header.flags.contains(LinkFlags::Up);
    let device = topology::device(&link);
    let frames = frames(&link, &device.kind);
    let is_bond = device.kind == "bond";
    Some(Interface {
        index: link.header.index,
        name: name?,
        link: frames,
        is_up,
        is_bond,
        device,
    })
}

/// The header of a device's frames.
fn frames(link: &LinkMessage, kind: &str) -> Result<Link, Unsupported> {
    if matches!(kind, "vti" | "vti6" | "xfrm") {
        // The link header of the packet that carried it stays before a received one (`skb_mac_header_rebuild`).
        return Err(Unsupported::Tunnel(
            "it is an IPsec interface, whose received packets keep the link header of the packets that carried them",
        ));
    }
    match link.header.link_layer_type {
        LinkLayerType::Ether | LinkLayerType::Loopback => Ok(Link::Ethernet),
        LinkLayerType::Ipgre | LinkLayerType::Ip6gre if !has_one_remote(link) => {
            Err(Unsupported::Tunnel(
                "it is a GRE tunnel without one `remote` address, whose frames begin with the tunnel's own headers",
            ))
        }
        // Tunnels: tun, WireGuard, IP in IP, GRE over IPv4 and IPv6, SIT.
        LinkLayerType::None
        | LinkLayerType::Tunnel
        | LinkLayerType::Tunnel6
        | LinkLayerType::Sit
        | LinkLayerType::Ipgre
        | LinkLayerType::Ip6gre
        | LinkLayerType::Ppp
        | LinkLayerType::Rawip => Ok(Link::RawIp),
        other => Err(Unsupported::Header(format!("{other:?}"))),
    }
}

/// Whether a GRE tunnel has one remote address, or has that of each packet from elsewhere (`external`). With none, or a
/// multicast group, its link header is the tunnel's own (`ipgre_header_ops` of net/ipv4/ip_gre.c, `ip6gre_header_ops`).
fn has_one_remote(link: &LinkMessage) -> bool {
    let infos = link
        .attributes
        .iter()
        .filter_map(|attribute| match attribute {
            LinkAttribute::LinkInfo(infos) => Some(infos),
            _ => None,
        });
    let is_one = |address: IpAddr| !address.is_unspecified() && !address.is_multicast();
    infos.flatten().any(|info| match info {
        LinkInfo::Data(InfoData::GreTun(parts)) => parts.iter().any(|part| match part {
            InfoGre::Remote(address) => is_one((*address).into()),
            InfoGre::CollectMetadata => true,
            _ => false,
        }),
        LinkInfo::Data(InfoData::GreTun6(parts)) => parts.iter().any(|part| match part {
            InfoGre6::Remote(address) => is_one((*address).into()),
            InfoGre6::CollectMetadata => true,
            _ => false,
        }),
        _ => false,
    })
}

/// The IDs of the XDP programs on a device.
///
/// # Errors
///
/// When netlink fails.
pub fn xdp_programs(index: u32) -> io::Result<Vec<u32>> {
    let replies = dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
    let of_device = replies.into_iter().filter_map(|reply| match reply {
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
    pub handle: TcHandle,
    /// Filters with a lower priority run first.
    pub priority: u16,
    /// Its name, given by its owner.
    pub name: String,
    /// The program's ID.
    pub program: Option<u32>,
}

/// The parent of the filters of one direction.
pub fn side(direction: Direction) -> TcHandle {
    let minor = match direction {
        Direction::Ingress => TcHandle::MIN_INGRESS,
        Direction::Egress => TcHandle::MIN_EGRESS,
    };
    TcHandle {
        major: u16::MAX,
        minor,
    }
}

/// The programs that are filters of the clsact queueing discipline on one side of a device.
///
/// # Errors
///
/// When netlink fails.
pub fn filters(index: u32, direction: Direction) -> io::Result<Vec<Filter>> {
    let mut question = TcMessage::with_index(index as i32);
    question.header.parent = side(direction);
    let replies = dump(RouteNetlinkMessage::GetTrafficFilter(question))?;
    Ok(replies.into_iter().filter_map(program_filter).collect())
}

fn program_filter(reply: RouteNetlinkMessage) -> Option<Filter> {
    let RouteNetlinkMessage::NewTrafficFilter(message) = reply else {
        return None;
    };
    let (handle, priority) = (message.header.handle, (message.header.info >> 16) as u16);
    let options = message
        .attributes
        .into_iter()
        .find_map(|attribute| match attribute {
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
    Some(Filter {
        handle,
        priority,
        name,
        program,
    })
}

/// The queueing disciplines that a device's packets pass before they are sent: the root's, and those of the queues
/// below it.
///
/// # Errors
///
/// When netlink fails.
pub fn queueing(index: u32) -> io::Result<Vec<Queueing>> {
    let replies = dump(RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default()))?;
    Ok(replies
        .into_iter()
        .filter_map(|reply| match reply {
            RouteNetlinkMessage::NewQueueDiscipline(discipline) => egress_kind(&discipline, index)
                .map(|kind| Queueing {
                    flow_limit: flow_limit(&discipline).filter(|_| kind == "fq"),
                    kind,
                }),
            _ => None,
        })
        .collect())
}

/// A queueing discipline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queueing {
    pub kind: String,
    /// For `fq`: the most buffers that it queues per flow.
    pub flow_limit: Option<u32>,
}

/// TCA_FQ_FLOW_PLIMIT of include/uapi/linux/pkt_sched.h.
fn flow_limit(discipline: &TcMessage) -> Option<u32> {
    const FLOW_LIMIT: u16 = 2;
    let options = discipline
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            TcAttribute::Options(options) => Some(options),
            _ => None,
        })?;
    // netlink-packet-route does not parse fq: all its options are in one attribute.
    let raw = options.iter().find_map(|option| match option {
        TcOption::Other(raw) => Some(raw),
        _ => None,
    })?;
    let mut content = vec![0; raw.value_len()];
    raw.emit_value(&mut content);
    let limit = NlasIterator::new(&content)
        .flatten()
        .find(|option| option.kind() == FLOW_LIMIT)?;
    limit.value().try_into().ok().map(u32::from_ne_bytes)
}

/// All disciplines of a device, including those of programs and of ingress.
///
/// # Errors
///
/// When netlink fails.
pub fn disciplines(index: u32) -> io::Result<Vec<String>> {
    let replies = dump(RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default()))?;
    Ok(replies
        .into_iter()
        .filter_map(|reply| match reply {
            RouteNetlinkMessage::NewQueueDiscipline(discipline)
                if discipline.header.index == index as i32 =>
            {
                kind(&discipline)
            }
            _ => None,
        })
        .collect())
}

/// The kind of a discipline of this device; `None` for clsact and ingress.
fn egress_kind(discipline: &TcMessage, index: u32) -> Option<String> {
    const CLSACT: TcHandle = TcHandle {
        major: 0xffff,
        minor: 0xfff1,
    };
    if discipline.header.index != index as i32 || discipline.header.parent == CLSACT {
        return None;
    }
    kind(discipline)
}

fn kind(discipline: &TcMessage) -> Option<String> {
    discipline
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            TcAttribute::Kind(kind) => Some(kind.clone()),
            _ => None,
        })
}
