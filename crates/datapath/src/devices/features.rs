//! Properties of a device that concern XDP: driver, MTU, queues, offloads, attached programs.

use std::fs;
use std::io;

use aya::programs::tc::TcAttachType;
use aya::programs::{ProgramError, SchedClassifier, loaded_programs};
use aya::util::KernelVersion;
use ethtool::{EthtoolAttr, EthtoolChannelAttr, EthtoolFeatureAttr};
use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NlaBuffer, NlasIterator};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage, LinkXdp};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};
use serde::Serialize;

use super::device::{self, VETH};
use super::netlink::dump;
use super::topology;

/// Bits of the `netdev` family's `xdp-features` (uapi/linux/netdev.h).
const XDP_BASIC: u64 = 1;
const XDP_TRANSMIT: u64 = 1 << 2;
const XDP_RX_FRAGMENTS: u64 = 1 << 5;

/// The known properties of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceFacts {
    /// The driver, or the kind of a virtual device.
    pub driver: Option<String>,
    /// In bytes.
    pub mtu: Option<u32>,
    /// Queues in use: (receive, transmit).
    pub queues: Option<(u32, u32)>,
    /// The most queues: (receive, transmit).
    pub most_queues: Option<(u32, u32)>,
    /// Whether large receive offload is on.
    pub lro: Option<bool>,
    /// Whether generic receive offload by hardware is on.
    pub gro_hardware: Option<bool>,
    /// Whether the driver has native XDP; reported from Linux 6.3 on.
    pub native_xdp: Option<bool>,
    /// Whether it has native XDP for frames in several buffers.
    pub native_xdp_fragments: Option<bool>,
    /// Whether the other end of a veth pair has an XDP program or GRO, without which it receives no packet that XDP
    /// sends. With only GRO, it receives them late or not at all. Reported from Linux 6.5 on.
    pub peer_receives_xdp: Option<bool>,
    /// The XDP program that is attached, and how.
    pub xdp: Option<AttachedProgram>,
    /// Programs in the TCX chains, ingress and egress.
    pub tcx: Vec<AttachedProgram>,
    /// Whether it has a clsact discipline, to which programs are attached before Linux 6.6.
    pub clsact: bool,
    /// The queueing disciplines of egress.
    pub queueing: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AttachedProgram {
    pub id: u32,
    /// Its name; `None` if it has none or this user may not read it.
    pub name: Option<String>,
    pub owner: Owner,
    /// `native`, `generic`, `hardware`, `ingress` or `egress`.
    pub at: &'static str,
}

/// The owner of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Owner {
    /// A Weir agent.
    Weir,
    /// Another program.
    Other,
    /// Unknown: the kernel does not allow this user to read names of programs.
    Hidden,
}

impl AttachedProgram {
    /// A program whose name the kernel has reported.
    #[must_use]
    pub fn named(id: u32, name: Option<&str>, at: &'static str) -> Self {
        let name = name.filter(|name| !name.is_empty());
        let owner = if name.is_some_and(|name| name.starts_with("weir_")) {
            Owner::Weir
        } else {
            Owner::Other
        };
        Self {
            id,
            name: name.map(str::to_owned),
            owner,
            at,
        }
    }

    pub(crate) fn new(id: u32, at: &'static str) -> Self {
        for info in loaded_programs() {
            match info {
                Ok(info) if info.id() == id => return Self::named(id, info.name_as_str(), at),
                // The kernel lists programs only to CAP_SYS_ADMIN.
                Err(ProgramError::SyscallError(error))
                    if error.io_error.kind() == io::ErrorKind::PermissionDenied =>
                {
                    return Self {
                        id,
                        name: None,
                        owner: Owner::Hidden,
                        at,
                    };
                }
                Ok(_) | Err(_) => {}
            }
        }
        Self::named(id, None, at)
    }
}

impl std::fmt::Display for AttachedProgram {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self.owner {
            Owner::Hidden => "a program whose name only root can read",
            Owner::Weir | Owner::Other => self.name.as_deref().unwrap_or("an unnamed program"),
        };
        write!(formatter, "{name} (program {}, {})", self.id, self.at)
    }
}

/// The properties of a device; those that are not reported stay empty.
///
/// # Errors
///
/// When the device does not exist, or netlink fails.
pub fn facts(interface: &str) -> io::Result<DeviceFacts> {
    let index = nix::net::if_::if_nametoindex(interface)?;
    let mut facts = DeviceFacts::default();
    link_facts(index, interface, &mut facts)?;
    ethtool_facts(interface, &mut facts);
    if let Some(features) = xdp_features(index) {
        facts.native_xdp = Some(features & XDP_BASIC != 0);
        facts.native_xdp_fragments = Some(features & XDP_RX_FRAGMENTS != 0);
        if facts.driver.as_deref() == Some(VETH) && reports_veth_peers() {
            facts.peer_receives_xdp = Some(features & XDP_TRANSMIT != 0);
        }
    }
    for (hook, at) in [
        (TcAttachType::Ingress, "ingress"),
        (TcAttachType::Egress, "egress"),
    ] {
        // Kernels before 6.6 return an error, since they lack TCX.
        let programs = SchedClassifier::query_tcx(interface, hook)
            .map(|(_, programs)| programs)
            .unwrap_or_default();
        facts.tcx.extend(
            programs
                .iter()
                .map(|info| AttachedProgram::named(info.id(), info.name_as_str(), at)),
        );
    }
    let disciplines = device::disciplines(index).unwrap_or_default();
    facts.clsact = disciplines
        .iter()
        .any(|kind| kind == "clsact" || kind == "ingress");
    facts.queueing = device::queueing(index)
        .unwrap_or_default()
        .into_iter()
        .map(|queueing| queueing.kind)
        .collect();
    Ok(facts)
}

/// Native XDP on a veth whose peer does not receive packets that XDP sends: the driver drops them unless the peer has
/// an XDP program (`veth_xdp_xmit`). With only GRO they fill the peer's queue and stay there, until the peer receives
/// another packet (`veth_xdp_flush`). Without `attach = "native"`, such replies leave by traffic control.
#[derive(Clone, Copy, Debug)]
pub struct LostReplies<'n>(pub &'n str);

impl LostReplies<'_> {
    pub const FIX: &'static str = "set attach = \"tc\", or attach an XDP program to the other end";

    /// A description of the problem.
    #[must_use]
    pub fn found(self) -> String {
        let Self(interface) = self;
        format!(
            "native XDP sends no replies: {interface} is a veth whose peer does not receive what XDP sends"
        )
    }
}

impl std::fmt::Display for LostReplies<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}: {}", self.found(), Self::FIX)
    }
}

/// Whether the replies of native XDP on a device are known to be lost.
#[must_use]
pub fn loses_replies(index: u32) -> bool {
    reports_veth_peers()
        && xdp_features(index).is_some_and(|features| features & XDP_TRANSMIT == 0)
        && topology::devices().is_ok_and(|devices| {
            devices
                .iter()
                .any(|it| it.index == index && it.kind == VETH)
        })
}

/// A veth's transmit feature reports its peer's ability to receive from Linux 6.5 on (8267fc71abb2), before that its
/// own.
fn reports_veth_peers() -> bool {
    KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(6, 5, 0))
}

fn link_facts(index: u32, interface: &str, facts: &mut DeviceFacts) -> io::Result<()> {
    let replies = dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
    let link = replies.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewLink(link) if link.header.index == index => Some(link),
        _ => None,
    });
    let link = link.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    let (mut receiving, mut sending) = (None, None);
    for attribute in link.attributes {
        match attribute {
            LinkAttribute::Mtu(mtu) => facts.mtu = Some(mtu),
            LinkAttribute::NumRxQueues(number) => receiving = Some(number),
            LinkAttribute::NumTxQueues(number) => sending = Some(number),
            LinkAttribute::LinkInfo(infos) => {
                facts.driver = infos.iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind_name(kind)),
                    _ => None,
                });
            }
            LinkAttribute::Xdp(xdp) => facts.xdp = attached(&xdp),
            _ => {}
        }
    }
    facts.queues = receiving.zip(sending);
    if facts.driver.is_none() {
        let path = format!("/sys/class/net/{interface}/device/driver");
        let driver = fs::read_link(path).ok();
        facts.driver =
            driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    }
    Ok(())
}

fn kind_name(kind: &InfoKind) -> String {
    // The crate prints kinds as the kernel names them.
    kind.to_string()
}

fn attached(xdp: &[LinkXdp]) -> Option<AttachedProgram> {
    xdp.iter().find_map(|attribute| match attribute {
        LinkXdp::DrvProgId(id) => Some(AttachedProgram::new(*id, "native")),
        LinkXdp::SkbProgId(id) => Some(AttachedProgram::new(*id, "generic")),
        LinkXdp::HwProgId(id) => Some(AttachedProgram::new(*id, "hardware")),
        _ => None,
    })
}

/// Offloads and channels, from ethtool's netlink family.
fn ethtool_facts(interface: &str, facts: &mut DeviceFacts) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
    else {
        return;
    };
    runtime.block_on(async {
        let Ok((connection, mut handle, _)) = ethtool::new_connection() else {
            return;
        };
        tokio::spawn(connection);
        let mut attributes = Vec::new();
        let replies = handle.feature().get(Some(interface)).execute().await;
        collect(replies, &mut attributes).await;
        let replies = handle.channel().get(Some(interface)).execute().await;
        collect(replies, &mut attributes).await;
        read_attributes(&attributes, facts);
    });
}

async fn collect<S>(replies: Result<S, ethtool::EthtoolError>, attributes: &mut Vec<EthtoolAttr>)
where
    S: tokio_stream::Stream<
            Item = Result<
                netlink_packet_generic::GenlMessage<ethtool::EthtoolMessage>,
                ethtool::EthtoolError,
            >,
        >,
{
    use tokio_stream::StreamExt as _;
    let Ok(replies) = replies else { return };
    let mut replies = std::pin::pin!(replies);
    // A device without channels replies with an error, which ends the stream.
    while let Some(Ok(message)) = replies.next().await {
        attributes.extend(message.payload.nlas);
    }
}

fn read_attributes(attributes: &[EthtoolAttr], facts: &mut DeviceFacts) {
    let mut channels = [0; 6];
    let mut has_channels = false;
    for attribute in attributes {
        match attribute {
            EthtoolAttr::Feature(EthtoolFeatureAttr::Active(bits)) => {
                let is_on = |name: &str| bits.iter().any(|bit| bit.name == name && bit.value);
                facts.lro = Some(is_on("rx-lro"));
                facts.gro_hardware = Some(is_on("rx-gro-hw"));
            }
            EthtoolAttr::Channel(channel) => {
                has_channels = true;
                match channel {
                    EthtoolChannelAttr::RxCount(count) => channels[0] = *count,
                    EthtoolChannelAttr::TxCount(count) => channels[1] = *count,
                    EthtoolChannelAttr::CombinedCount(count) => channels[2] = *count,
                    EthtoolChannelAttr::RxMax(count) => channels[3] = *count,
                    EthtoolChannelAttr::TxMax(count) => channels[4] = *count,
                    EthtoolChannelAttr::CombinedMax(count) => channels[5] = *count,
                    _ => {}
                }
            }
            _ => {}
        }
    }
    if has_channels {
        let [
            receiving,
            sending,
            both,
            most_receiving,
            most_sending,
            most_both,
        ] = channels;
        facts.queues = Some((receiving + both, sending + both));
        facts.most_queues = Some((most_receiving + most_both, most_sending + most_both));
    }
}

/// The driver's XDP features, which the kernel's `netdev` family reports from Linux 6.3 on.
fn xdp_features(index: u32) -> Option<u64> {
    const CONTROLLER: u16 = 16;
    const GET_FAMILY: u8 = 3;
    const FAMILY_ID: u16 = 1;
    const FAMILY_NAME: u16 = 2;
    const DEVICE_GET: u8 = 1;
    const DEVICE_INDEX: u16 = 1;
    const DEVICE_XDP_FEATURES: u16 = 3;
    let family = generic(CONTROLLER, GET_FAMILY, FAMILY_NAME, b"netdev\0", FAMILY_ID)?;
    let family = u16::from_ne_bytes(family.get(..2)?.try_into().ok()?);
    let features = generic(
        family,
        DEVICE_GET,
        DEVICE_INDEX,
        &index.to_ne_bytes(),
        DEVICE_XDP_FEATURES,
    )?;
    Some(u64::from_ne_bytes(features.get(..8)?.try_into().ok()?))
}

/// Sends a request with one attribute to a generic netlink family, and returns one attribute of the reply.
fn generic(family: u16, command: u8, attribute: u16, value: &[u8], wanted: u16) -> Option<Vec<u8>> {
    const HEADERS: usize = 16 + 4;
    const ERROR: u16 = 2;
    let padded = (4 + value.len()).next_multiple_of(4);
    let mut request = Vec::with_capacity(HEADERS + padded);
    request.extend(u32::try_from(HEADERS + padded).ok()?.to_ne_bytes());
    request.extend(family.to_ne_bytes());
    request.extend((NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    // An exchange on its own socket needs no sequence number and no sender; the family's header follows.
    request.extend([0; 8]);
    request.extend([command, 1, 0, 0]);
    request.extend(u16::try_from(4 + value.len()).ok()?.to_ne_bytes());
    request.extend(attribute.to_ne_bytes());
    request.extend(value);
    request.resize(HEADERS + padded, 0);
    let mut socket = Socket::new(NETLINK_GENERIC).ok()?;
    socket.bind_auto().ok()?;
    socket.connect(&SocketAddr::new(0, 0)).ok()?;
    socket.send(&request, 0).ok()?;
    let (answer, _) = socket.recv_from_full().ok()?;
    if u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?) == ERROR {
        return None;
    }
    let length = u32::from_ne_bytes(answer.get(..4)?.try_into().ok()?) as usize;
    let attributes = answer.get(HEADERS..length)?;
    NlasIterator::new(attributes)
        .filter_map(Result::ok)
        .find(|found: &NlaBuffer<&[u8]>| found.kind() == wanted)
        .map(|found| found.value().to_vec())
}
