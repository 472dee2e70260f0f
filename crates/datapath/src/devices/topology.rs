//! Decides which of the configured devices charges packets that pass several devices.
//!
//! Two relations make a *stack*: a packet passes the hooks of both devices, unchanged but for a tag.
//!
//! | upper | lower | also passes the lower |
//! |---|---|---|
//! | bridge | its ports | what is forwarded between ports |
//! | VRF | its ports | nothing; its own hooks see nothing of what they receive |
//! | bond, team, the driver's own pairing (netvsc, net_failover) | its members | nothing |
//! | VLAN, macvlan, ipvlan | the device that it was made on | everything else on that device |
//!
//! A tunnel (WireGuard, VXLAN, GRE, tun) is not a stack: its inner packets are separate packets. Neither is a veth
//! pair, whose ends see one direction each.
//!
//! [`place`] follows two rules.
//!
//! 1. Of a bond and its members the bond charges: all packets of each member pass it, also of one that joins later.
//! 2. Otherwise the lowest configured device charges, since it sees most packets. Packets that reach a device above it
//!    by another path are not limited; [`Placement::gap`] names that path and the fix.
//!
//! The ports of a configured VRF are configured, too: see [`with_ports_of_vrfs`].
//!
//! No two devices that charge are then above each other, so a packet is charged once in each direction.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use api::interface::Placement;
use config::policy::InterfacePattern;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkInfo, LinkMessage, Prop};

use crate::devices::netlink::dump;

/// A network device and the devices below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    pub index: u32,
    pub name: String,
    /// Its alternative names (`ip link property add altname`), such as those that systemd gives.
    pub alternative_names: Vec<String>,
    /// Its kind (`IFLA_INFO_KIND`); empty for the device of a driver.
    pub kind: String,
    /// The index of the device that it is a port or member of.
    pub master: Option<u32>,
    /// The index of the device in this namespace that it was made on.
    pub lower: Option<u32>,
}

impl Device {
    /// Whether all packets of its members pass it.
    fn is_aggregate(&self) -> bool {
        matches!(self.kind.as_str(), "bond" | "team" | "")
    }

    /// Whether the packets of its ports pass it.
    fn has_ports(&self) -> bool {
        self.kind == "bridge" || self.is_vrf() || self.is_aggregate()
    }

    /// Whether it only routes: what its ports receive passes none of its hooks.
    fn is_vrf(&self) -> bool {
        self.kind == "vrf"
    }

    /// Its name and its alternative names.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        std::iter::once(&self.name)
            .chain(&self.alternative_names)
            .map(String::as_str)
    }

    /// Whether one of the patterns matches it, by its name or an alternative one.
    #[must_use]
    pub fn is_named_by(&self, patterns: &[InterfacePattern]) -> bool {
        patterns
            .iter()
            .any(|pattern| pattern.matches_any(self.names()))
    }

    /// Whether its packets pass the device that it was made on.
    fn is_made_on_another(&self) -> bool {
        matches!(
            self.kind.as_str(),
            "vlan" | "macvlan" | "macvtap" | "ipvlan" | "ipvtap"
        )
    }

    /// Its kind, with an article.
    fn noun(&self) -> String {
        match self.kind.as_str() {
            "vlan" => "a VLAN".to_owned(),
            "vrf" => "a VRF".to_owned(),
            "" => "a device with members".to_owned(),
            "ipvlan" | "ipvtap" => format!("an {}", self.kind),
            kind => format!("a {kind}"),
        }
    }
}

/// All devices of this network namespace.
///
/// # Errors
///
/// When netlink fails.
pub fn devices() -> io::Result<Vec<Device>> {
    let replies = dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
    Ok(replies
        .into_iter()
        .filter_map(|reply| match reply {
            RouteNetlinkMessage::NewLink(link) => Some(device(&link)),
            _ => None,
        })
        .collect())
}

/// A device as the kernel describes it.
#[must_use]
pub fn device(link: &LinkMessage) -> Device {
    let mut device = Device {
        index: link.header.index,
        ..Device::default()
    };
    let mut is_elsewhere = false;
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => device.name.clone_from(name),
            LinkAttribute::PropList(properties) => {
                device
                    .alternative_names
                    .extend(properties.iter().filter_map(|property| match property {
                        Prop::AltIfName(name) => Some(name.clone()),
                        _ => None,
                    }));
            }
            LinkAttribute::Controller(master) => device.master = Some(*master),
            LinkAttribute::Link(lower) => device.lower = Some(*lower),
            LinkAttribute::LinkNetNsId(_) => is_elsewhere = true,
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    if let LinkInfo::Kind(kind) = info {
                        device.kind = kind.to_string();
                    }
                }
            }
            _ => {}
        }
    }
    // Then the index is that of another namespace's device.
    device.lower = device.lower.filter(|_| !is_elsewhere);
    device
}

/// The configured interfaces, and the ports of those that are VRFs.
#[must_use]
pub fn with_ports_of_vrfs(devices: &[Device], configured: Vec<String>) -> Vec<String> {
    let mut all = configured;
    let is_of = |port: &Device, names: &[String]| {
        devices.iter().any(|device| {
            device.is_vrf() && port.master == Some(device.index) && names.contains(&device.name)
        })
    };
    for port in devices {
        if is_of(port, &all) && !all.contains(&port.name) {
            all.push(port.name.clone());
        }
    }
    all
}

/// Decides for each configured interface which device charges its packets, in the order given. An interface that does not
/// exist charges its own, once it appears.
#[must_use]
pub fn place(devices: &[Device], configured: &[String]) -> Vec<Placement> {
    let stacks = Stacks::new(devices, configured);
    configured
        .iter()
        .map(|name| stacks.placement(name))
        .collect()
}

/// The devices, what lies below each, and which of the configured ones charge.
struct Stacks<'a> {
    devices: BTreeMap<u32, &'a Device>,
    lowers: BTreeMap<u32, Vec<u32>>,
    configured: BTreeSet<u32>,
    enforcing: BTreeSet<u32>,
}

impl<'a> Stacks<'a> {
    fn new(devices: &'a [Device], configured: &[String]) -> Self {
        let by_index: BTreeMap<u32, &Device> = devices
            .iter()
            .map(|device| (device.index, device))
            .collect();
        let mut lowers: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for device in devices {
            let master = device.master.filter(|master| {
                by_index
                    .get(master)
                    .is_some_and(|master| master.has_ports())
            });
            if let Some(master) = master {
                lowers.entry(master).or_default().push(device.index);
            }
            let lower = device
                .lower
                .filter(|lower| device.is_made_on_another() && by_index.contains_key(lower));
            if let Some(lower) = lower {
                lowers.entry(device.index).or_default().push(lower);
            }
        }
        let is_configured = |device: &&Device| configured.contains(&device.name);
        let configured = devices
            .iter()
            .filter(is_configured)
            .map(|device| device.index)
            .collect();
        let mut stacks = Self {
            devices: by_index,
            lowers,
            configured,
            enforcing: BTreeSet::new(),
        };
        let kept: BTreeSet<u32> = stacks
            .configured
            .iter()
            .copied()
            .filter(|index| stacks.aggregate_of(*index).is_none())
            .collect();
        stacks.enforcing = kept
            .iter()
            .copied()
            .filter(|index| stacks.below(*index).is_disjoint(&kept))
            .collect();
        stacks
    }

    /// The devices above this one that all its packets pass; the next one first.
    fn aggregates_above(&self, index: u32) -> impl Iterator<Item = &'a Device> {
        let above = |device: &&'a Device| {
            let master = *self.devices.get(&device.master?)?;
            master.is_aggregate().then_some(master)
        };
        // A list that changed during the read may contain a cycle.
        std::iter::successors(self.devices.get(&index).copied(), above)
            .skip(1)
            .take(self.devices.len())
    }

    /// The uppermost configured device that all packets of this one pass, directly or through others.
    fn aggregate_of(&self, index: u32) -> Option<&'a Device> {
        self.aggregates_above(index)
            .filter(|aggregate| self.configured.contains(&aggregate.index))
            .last()
            .filter(|aggregate| aggregate.index != index)
    }

    fn lowers(&self, index: u32) -> &[u32] {
        self.lowers.get(&index).map_or(&[], Vec::as_slice)
    }

    /// All devices below a device.
    fn below(&self, index: u32) -> BTreeSet<u32> {
        let mut below = BTreeSet::new();
        let mut open = self.lowers(index).to_vec();
        while let Some(next) = open.pop() {
            if below.insert(next) {
                open.extend(self.lowers(next));
            }
        }
        below.remove(&index);
        below
    }

    /// The first charging devices on each path down from this one, and those through which packets bypass all of them.
    fn ways_down(&self, index: u32) -> (Vec<&'a str>, Vec<&'a str>) {
        let (mut charging, mut open_ways) = (BTreeSet::new(), BTreeSet::new());
        let mut seen = BTreeSet::from([index]);
        let mut open = self.lowers(index).to_vec();
        // A driver's own device also receives packets that none of its members has seen.
        let has_its_own = |device: &&&Device| device.kind.is_empty();
        open_ways.extend(
            self.devices
                .get(&index)
                .filter(has_its_own)
                .map(|device| device.name.as_str()),
        );
        while let Some(next) = open.pop() {
            if !seen.insert(next) {
                continue;
            }
            let Some(device) = self.devices.get(&next) else {
                continue;
            };
            if self.enforcing.contains(&next) {
                charging.insert(device.name.as_str());
                continue;
            }
            if self.lowers(next).is_empty() || has_its_own(&device) {
                open_ways.insert(device.name.as_str());
            }
            open.extend(self.lowers(next));
        }
        (
            charging.into_iter().collect(),
            open_ways.into_iter().collect(),
        )
    }

    fn placement(&self, name: &str) -> Placement {
        let placement = Placement {
            interface: name.to_owned(),
            ..Placement::default()
        };
        let device = self.devices.values().find(|device| device.name == name);
        let Some(device) = device.filter(|device| !self.enforcing.contains(&device.index)) else {
            return Placement {
                // Its ports are configured as well: it has none.
                gap: device.filter(|device| device.is_vrf()).map(|_| {
                    format!("{name} is a VRF without ports: limits are in effect on its ports once it has some")
                }),
                ..placement
            };
        };
        if let Some(aggregate) = self.aggregate_of(device.index) {
            return self.on_aggregate(device, aggregate);
        }
        let (charging, open_ways) = self.ways_down(device.index);
        let charging_list = charging.join(", ");
        let reason = format!("{name} is {} on {}", device.noun(), list(&charging));
        let reason = match device.kind.as_str() {
            "macvlan" | "macvtap" | "ipvlan" | "ipvtap" => {
                format!(
                    "{reason}; packets from another {} on the same device are not limited",
                    device.kind
                )
            }
            _ => reason,
        };
        let gap = (!open_ways.is_empty()).then(|| {
            let ways = list(&open_ways);
            format!(
                "packets of {name} that pass {ways} are not limited, since {charging_list} enforces for {name}: add {ways} to \
                 [agent] interfaces, or remove {charging_list}"
            )
        });
        Placement {
            enforced_by: charging.into_iter().map(str::to_owned).collect(),
            reason: Some(reason),
            gap,
            ..placement
        }
    }

    /// The placement of a member whose packets all pass another configured device.
    fn on_aggregate(&self, member: &Device, aggregate: &Device) -> Placement {
        let name = &member.name;
        let enforced_by: Vec<&str> = if self.enforcing.contains(&aggregate.index) {
            vec![&aggregate.name]
        } else {
            self.ways_down(aggregate.index).0
        };
        // A VLAN on a member, or on a bond between the two, receives its packets before the aggregate does.
        let before: BTreeSet<u32> = self
            .aggregates_above(member.index)
            .map(|device| device.index)
            .take_while(|index| *index != aggregate.index)
            .filter(|index| !self.configured.contains(index))
            .chain([member.index])
            .collect();
        let is_before = |lower| before.contains(&lower);
        let made_on_it: Vec<&str> = self
            .devices
            .values()
            .filter(|device| device.is_made_on_another() && device.lower.is_some_and(is_before))
            .filter(|device| !self.configured.contains(&device.index))
            .map(|device| device.name.as_str())
            .collect();
        let gap = (!made_on_it.is_empty()).then(|| {
            let (made_on_it, by) = (list(&made_on_it), list(&enforced_by));
            format!(
                "packets of {name} that {made_on_it} receives are not limited, since {by} enforces for {name}: add \
                 {made_on_it} to [agent] interfaces"
            )
        });
        Placement {
            interface: name.clone(),
            reason: Some(format!(
                "all packets of its member {name} pass {}",
                aggregate.name
            )),
            enforced_by: enforced_by.into_iter().map(str::to_owned).collect(),
            gap,
        }
    }
}

/// The first few names.
fn list(names: &[&str]) -> String {
    const MOST: usize = 4;
    let shown = names
        .iter()
        .take(MOST)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > MOST {
        format!("{shown} and {} more", names.len() - MOST)
    } else {
        shown
    }
}

#[cfg(test)]
mod tests;
