//! What a device says of itself that matters to XDP: its driver, MTU, queues, offloads, and what is attached.

use std::fs;
use std::io;

use aya::programs::tc::TcAttachType;
use aya::programs::{SchedClassifier, loaded_programs};
use ethtool::{EthtoolAttr, EthtoolChannelAttr, EthtoolFeatureAttr};
use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NlaBuffer, NlasIterator};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage, LinkXdp};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};
use serde::Serialize;

use super::device;

/// One device, as far as it and the kernel tell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceFacts {
    /// The driver, or the kind of a device that is made in software.
    pub driver: Option<String>,
    /// In bytes.
    pub mtu: Option<u32>,
    /// Queues in use: (those that receive, those that send).
    pub queues: Option<(u32, u32)>,
    /// Queues there could be.
    pub most_queues: Option<(u32, u32)>,
    /// Whether the driver merges what it receives into packets longer than any frame.
    pub lro: Option<bool>,
    /// The same by hardware, in a way that can be undone.
    pub gro_hardware: Option<bool>,
    /// Whether the driver runs XDP programs itself; kernels from 6.3 on tell.
    pub native_xdp: Option<bool>,
    /// Whether it does so for frames in several buffers.
    pub native_xdp_fragments: Option<bool>,
    /// The XDP program that is attached, and how.
    pub xdp: Option<AttachedProgram>,
    /// Programs in the TCX chains, ingress and egress.
    pub tcx: Vec<AttachedProgram>,
    /// Whether there is a clsact discipline, which older kernels' programs hang on.
    pub clsact: bool,
    /// The queueing disciplines of what is sent.
    pub queueing: Vec<String>,
}

/// A program that is attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AttachedProgram {
    /// The kernel's number of it.
    pub id: u32,
    /// Its name, if the kernel tells.
    pub name: Option<String>,
    /// `native`, `generic`, `hardware`, `ingress` or `egress`.
    pub at: &'static str,
}

impl AttachedProgram {
    fn new(id: u32, at: &'static str) -> Self {
        let info = loaded_programs().filter_map(Result::ok).find(|info| info.id() == id);
        let name = info.and_then(|info| info.name_as_str().map(str::to_owned)).filter(|name| !name.is_empty());
        Self { id, name, at }
    }

    /// Whether it is one of Weir's.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.name.as_deref().is_some_and(|name| name.starts_with("weir_"))
    }
}

impl std::fmt::Display for AttachedProgram {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} (program {}, {})", self.name.as_deref().unwrap_or("unnamed"), self.id, self.at)
    }
}

/// Everything that can be learned of a device; what nobody tells stays empty.
///
/// # Errors
///
/// When there is no such device, or the kernel does not answer at all.
pub fn facts(interface: &str) -> io::Result<DeviceFacts> {
    let index = nix::net::if_::if_nametoindex(interface)?;
    let mut facts = DeviceFacts::default();
    link_facts(index, interface, &mut facts)?;
    ethtool_facts(interface, &mut facts);
    if let Some(features) = xdp_features(index) {
        const BASIC: u64 = 1;
        const RX_FRAGMENTS: u64 = 1 << 5;
        facts.native_xdp = Some(features & BASIC != 0);
        facts.native_xdp_fragments = Some(features & RX_FRAGMENTS != 0);
    }
    for (hook, at) in [(TcAttachType::Ingress, "ingress"), (TcAttachType::Egress, "egress")] {
        // Kernels before 6.6 have no such chain, and say so.
        let programs = SchedClassifier::query_tcx(interface, hook).map(|(_, programs)| programs).unwrap_or_default();
        facts.tcx.extend(programs.iter().map(|info| AttachedProgram {
            id: info.id(),
            name: info.name_as_str().map(str::to_owned),
            at,
        }));
    }
    let disciplines = device::disciplines(index).unwrap_or_default();
    facts.clsact = disciplines.iter().any(|kind| kind == "clsact" || kind == "ingress");
    facts.queueing = device::queueing(index).unwrap_or_default().into_iter().map(|queueing| queueing.kind).collect();
    Ok(facts)
}

fn link_facts(index: u32, interface: &str, facts: &mut DeviceFacts) -> io::Result<()> {
    let answers = device::ask(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
    let link = answers.into_iter().find_map(|answer| match answer {
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
        facts.driver = driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
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
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else { return };
    runtime.block_on(async {
        let Ok((connection, mut handle, _)) = ethtool::new_connection() else { return };
        tokio::spawn(connection);
        let mut attributes = Vec::new();
        let answers = handle.feature().get(Some(interface)).execute().await;
        collect(answers, &mut attributes).await;
        let answers = handle.channel().get(Some(interface)).execute().await;
        collect(answers, &mut attributes).await;
        read_attributes(&attributes, facts);
    });
}

async fn collect<S>(answers: Result<S, ethtool::EthtoolError>, attributes: &mut Vec<EthtoolAttr>)
where
    S: tokio_stream::Stream<
            Item = Result<netlink_packet_generic::GenlMessage<ethtool::EthtoolMessage>, ethtool::EthtoolError>,
        >,
{
    use tokio_stream::StreamExt as _;
    let Ok(answers) = answers else { return };
    let mut answers = std::pin::pin!(answers);
    // A device without channels answers with an error, which is an answer.
    while let Some(Ok(message)) = answers.next().await {
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
        let [receiving, sending, both, most_receiving, most_sending, most_both] = channels;
        facts.queues = Some((receiving + both, sending + both));
        facts.most_queues = Some((most_receiving + most_both, most_sending + most_both));
    }
}

/// What XDP the driver does, as the kernel's `netdev` family tells from Linux 6.3 on.
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
    let features = generic(family, DEVICE_GET, DEVICE_INDEX, &index.to_ne_bytes(), DEVICE_XDP_FEATURES)?;
    Some(u64::from_ne_bytes(features.get(..8)?.try_into().ok()?))
}

/// Asks a generic netlink family with one attribute, for one attribute.
fn generic(family: u16, command: u8, attribute: u16, value: &[u8], wanted: u16) -> Option<Vec<u8>> {
    const HEADERS: usize = 16 + 4;
    const ERROR: u16 = 2;
    let padded = (4 + value.len()).next_multiple_of(4);
    let mut request = Vec::with_capacity(HEADERS + padded);
    request.extend(u32::try_from(HEADERS + padded).ok()?.to_ne_bytes());
    request.extend(family.to_ne_bytes());
    request.extend((NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    // Sequence number and sender, which one exchange on a socket of its own does not need; then the family's header.
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
