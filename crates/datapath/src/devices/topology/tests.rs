use proptest::prelude::*;

use super::*;

fn device(index: u32, name: &str, kind: &str) -> Device {
    Device {
        index,
        name: name.to_owned(),
        kind: kind.to_owned(),
        ..Device::default()
    }
}

fn port(index: u32, name: &str, kind: &str, master: u32) -> Device {
    Device {
        master: Some(master),
        ..device(index, name, kind)
    }
}

fn on(index: u32, name: &str, kind: &str, lower: u32) -> Device {
    Device {
        lower: Some(lower),
        ..device(index, name, kind)
    }
}

/// The configured interfaces that charge, those whose packets others charge, and the paths without a limit.
fn decided(
    devices: &[Device],
    configured: &[&str],
) -> (Vec<String>, Vec<(String, String)>, Vec<String>) {
    let configured: Vec<String> = configured.iter().map(|name| (*name).to_owned()).collect();
    let placements = place(devices, &configured);
    assert!(
        placements
            .iter()
            .map(|placement| &placement.interface)
            .eq(&configured)
    );
    let charging = placements.iter().filter(|placement| placement.enforces());
    let covered = placements.iter().filter(|placement| !placement.enforces());
    (
        charging
            .map(|placement| placement.interface.clone())
            .collect(),
        covered
            .map(|placement| (placement.interface.clone(), placement.enforced_by.join(" ")))
            .collect(),
        placements
            .iter()
            .filter_map(|placement| placement.gap.clone())
            .collect(),
    )
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|(name, by)| ((*name).to_owned(), (*by).to_owned()))
        .collect()
}

#[test]
fn a_vlan_is_charged_on_its_device_where_both_are_configured() {
    let devices = [device(2, "eth0", ""), on(3, "eth0.100", "vlan", 2)];
    assert_eq!(
        decided(&devices, &["eth0.100", "eth0"]),
        (
            vec!["eth0".to_owned()],
            pairs(&[("eth0.100", "eth0")]),
            vec![]
        )
    );
    assert_eq!(decided(&devices, &["eth0.100"]).0, ["eth0.100"]);
    assert_eq!(decided(&devices, &["eth0"]).0, ["eth0"]);
    let placement = &place(&devices, &["eth0.100".to_owned(), "eth0".to_owned()])[0];
    assert_eq!(
        placement.reason.as_deref(),
        Some("eth0.100 is a VLAN on eth0")
    );
}

#[test]
fn a_bond_charges_for_its_members_and_for_what_lies_on_it() {
    let devices = [
        port(2, "eth0", "", 4),
        port(3, "eth1", "", 4),
        device(4, "bond0", "bond"),
        on(5, "bond0.7", "vlan", 4),
    ];
    let all = ["bond0", "bond0.7", "eth0", "eth1"];
    let covered = pairs(&[("bond0.7", "bond0"), ("eth0", "bond0"), ("eth1", "bond0")]);
    assert_eq!(
        decided(&devices, &all),
        (vec!["bond0".to_owned()], covered, vec![])
    );
    // One member is enough: the bond receives packets of the others.
    assert_eq!(
        decided(&devices, &["eth0", "bond0"]),
        (
            vec!["bond0".to_owned()],
            pairs(&[("eth0", "bond0")]),
            vec![]
        )
    );
    let (charging, covered, gaps) = decided(&devices, &["eth0", "bond0.7"]);
    assert_eq!(
        (charging, covered),
        (vec!["eth0".to_owned()], pairs(&[("bond0.7", "eth0")]))
    );
    assert_eq!(gaps.len(), 1);
    assert!(gaps[0].contains("add eth1 to"), "{}", gaps[0]);
}

#[test]
fn a_drivers_own_pair_is_charged_on_the_upper_device() {
    // Like netvsc: some packets only pass eth0.
    let devices = [
        device(2, "eth0", ""),
        port(3, "enP1", "", 2),
        on(4, "eth0.5", "vlan", 2),
    ];
    assert_eq!(decided(&devices, &["eth0", "enP1", "eth0.5"]).0, ["eth0"]);
    let (charging, _, gaps) = decided(&devices, &["enP1", "eth0.5"]);
    assert_eq!(charging, ["enP1"]);
    assert!(
        gaps[0].contains("that pass eth0 are not limited"),
        "{}",
        gaps[0]
    );
}

#[test]
fn a_bridge_is_charged_on_its_ports_and_open_ways_are_named() {
    let devices = [
        device(1, "br0", "bridge"),
        port(2, "eth0", "", 1),
        port(3, "tap0", "tun", 1),
    ];
    assert_eq!(
        decided(&devices, &["br0", "eth0", "tap0"]),
        (
            vec!["eth0".to_owned(), "tap0".to_owned()],
            pairs(&[("br0", "eth0 tap0")]),
            vec![]
        )
    );
    let (charging, covered, gaps) = decided(&devices, &["br0", "eth0"]);
    assert_eq!(
        (charging, covered),
        (vec!["eth0".to_owned()], pairs(&[("br0", "eth0")]))
    );
    assert_eq!(
        gaps,
        [
            "packets of br0 that pass tap0 are not limited, since eth0 enforces for br0: add tap0 to [agent] interfaces, or \
          remove eth0"
        ]
    );
    assert_eq!(
        decided(&devices, &["br0"]),
        (vec!["br0".to_owned()], vec![], vec![])
    );
    // A bridge without ports, and one that does not exist yet.
    assert_eq!(decided(&devices[..1], &["br0", "eth0"]).0, ["br0", "eth0"]);
}

#[test]
fn stacks_of_several_floors_are_charged_once() {
    let devices = [
        port(2, "eth0", "", 4),
        port(3, "eth1", "", 4),
        device(4, "bond0", "bond"),
        Device {
            master: Some(6),
            ..on(5, "bond0.7", "vlan", 4)
        },
        device(6, "br7", "bridge"),
        port(7, "veth1", "veth", 6),
    ];
    let all = ["eth0", "eth1", "bond0", "bond0.7", "br7", "veth1"];
    let (charging, _, gaps) = decided(&devices, &all);
    assert_eq!(
        (charging, gaps),
        (vec!["bond0".to_owned(), "veth1".to_owned()], vec![])
    );
    // Devices between the two that are not configured change nothing.
    let (charging, covered, gaps) = decided(&devices, &["eth0", "br7"]);
    assert_eq!(
        (charging, covered),
        (vec!["eth0".to_owned()], pairs(&[("br7", "eth0")]))
    );
    assert!(
        gaps[0].contains("that pass eth1, veth1 are not limited"),
        "{}",
        gaps[0]
    );
}

#[test]
fn a_vlan_between_a_member_and_its_aggregate_is_a_gap() {
    let devices = [
        port(0, "eth0", "", 1),
        port(1, "bond0", "bond", 2),
        device(2, "team0", "team"),
        on(3, "bond0.7", "vlan", 1),
    ];
    let (charging, covered, gaps) = decided(&devices, &["eth0", "team0"]);
    assert_eq!(
        (charging, covered),
        (vec!["team0".to_owned()], pairs(&[("eth0", "team0")]))
    );
    assert!(
        gaps[0].contains("packets of eth0 that bond0.7 receives are not limited"),
        "{gaps:?}"
    );
    // With the VLAN, all are.
    let (charging, _, gaps) = decided(&devices, &["eth0", "team0", "bond0.7"]);
    assert_eq!(
        (charging, gaps),
        (vec!["team0".to_owned(), "bond0.7".to_owned()], vec![])
    );
}

#[test]
fn pairs_and_tunnels_are_no_stacks() {
    let devices = [
        device(1, "eth0", ""),
        on(2, "veth0", "veth", 3),
        on(3, "veth1", "veth", 2),
        on(4, "vxlan0", "vxlan", 1),
        on(5, "gre0", "gre", 1),
        device(8, "ovs-system", "openvswitch"),
        port(9, "eth2", "", 8),
    ];
    let all: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(decided(&devices, &all).0, all);
}

#[test]
fn a_device_of_another_namespace_is_not_confused_with_one_of_this() {
    let mut link = LinkMessage::default();
    link.header.index = 7;
    link.attributes = vec![
        LinkAttribute::IfName("mv0".to_owned()),
        LinkAttribute::Link(2),
        LinkAttribute::Controller(5),
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(
            netlink_packet_route::link::InfoKind::MacVlan,
        )]),
    ];
    let here = Device {
        master: Some(5),
        ..on(7, "mv0", "macvlan", 2)
    };
    assert_eq!(super::device(&link), here);
    link.attributes.push(LinkAttribute::LinkNetNsId(0));
    assert_eq!(
        super::device(&link),
        Device {
            lower: None,
            ..here
        }
    );
}

/// Devices of any kind on any others, possibly with cycles.
fn any_devices() -> impl Strategy<Value = Vec<Device>> {
    let kinds = prop::sample::select(vec!["", "bond", "bridge", "vlan", "macvlan", "veth", "vrf"]);
    let one = (
        kinds,
        prop::option::of(0..12u32),
        prop::option::of(0..12u32),
    );
    prop::collection::vec(one, 1..12).prop_map(|all| {
        let device =
            |(index, (kind, master, lower)): (u32, (&str, Option<u32>, Option<u32>))| Device {
                index,
                name: format!("d{index}"),
                kind: kind.to_owned(),
                master: master.filter(|master| *master != index),
                lower: lower.filter(|lower| *lower != index),
                ..Device::default()
            };
        (0..).zip(all).map(device).collect()
    })
}

/// The same without cycles: each is on earlier ones.
fn stacked_devices() -> impl Strategy<Value = Vec<Device>> {
    any_devices().prop_map(|mut devices| {
        for device in &mut devices {
            let index = device.index;
            device.lower = device.lower.filter(|lower| *lower < index);
            device.master = device.master.filter(|master| *master > index);
        }
        devices
    })
}

/// The paths of packets from a device without lowers up to one without uppers.
fn ways(devices: &[Device]) -> Vec<Vec<u32>> {
    let stacks = Stacks::new(devices, &[]);
    let mut open: Vec<Vec<u32>> = devices
        .iter()
        // A driver's device with members has packets of its own.
        .filter(|device| stacks.lowers(device.index).is_empty() || device.kind.is_empty())
        .map(|device| vec![device.index])
        .collect();
    let mut whole = Vec::new();
    while let Some(way) = open.pop() {
        let last = *way.last().unwrap();
        let uppers = devices
            .iter()
            .filter(|device| stacks.lowers(device.index).contains(&last));
        let longer: Vec<Vec<u32>> = uppers
            .map(|upper| [&way[..], &[upper.index]].concat())
            .collect();
        // A packet may end on any device.
        whole.push(way);
        open.extend(longer);
    }
    whole
}

proptest! {
    #[test]
    fn no_packet_is_charged_twice_and_none_escapes_unnamed(devices in stacked_devices(), chosen in prop::collection::vec(any::<bool>(), 12)) {
        let configured: Vec<String> =
            devices.iter().zip(&chosen).filter(|(_, chosen)| **chosen).map(|(device, _)| device.name.clone()).collect();
        let placements = place(&devices, &configured);
        let of = |index: u32| placements.iter().find(|placement| placement.interface == format!("d{index}"));
        for way in ways(&devices) {
            let charged = way.iter().filter(|index| of(**index).is_some_and(Placement::enforces)).count();
            prop_assert!(charged <= 1, "{way:?} is charged {charged} times: {placements:?}");
            let last = &devices[*way.last().unwrap() as usize];
            // Packets of a member continue to its bond: they end on the member only in this model.
            let goes_on = last.master.is_some_and(|master| devices.get(master as usize).is_some_and(Device::is_aggregate));
            if charged == 0 && !goes_on && way.iter().any(|index| of(*index).is_some()) {
                let is_named = way.iter().any(|index| of(*index).is_some_and(|placement| placement.gap.is_some()));
                prop_assert!(is_named, "{way:?} escapes: {placements:?}");
            }
        }
    }

    #[test]
    fn any_devices_have_a_placement(devices in any_devices(), chosen in prop::collection::vec(any::<bool>(), 12)) {
        let configured: Vec<String> =
            devices.iter().zip(&chosen).filter(|(_, chosen)| **chosen).map(|(device, _)| device.name.clone()).collect();
        let placements = place(&devices, &configured);
        prop_assert_eq!(placements.len(), configured.len());
        prop_assert!(configured.is_empty() || placements.iter().any(Placement::enforces));
    }
}

#[test]
fn the_ports_of_a_vrf_charge_for_it() {
    let devices = [
        device(1, "vrf0", "vrf"),
        port(2, "eth0", "", 1),
        port(3, "eth1", "", 1),
        device(4, "eth2", ""),
    ];
    let all = with_ports_of_vrfs(&devices, vec!["vrf0".to_owned(), "eth1".to_owned()]);
    assert_eq!(all, ["vrf0", "eth1", "eth0"]);
    let names: Vec<&str> = all.iter().map(String::as_str).collect();
    let (charging, covered, gaps) = decided(&devices, &names);
    assert_eq!(charging, ["eth1", "eth0"]);
    assert_eq!(covered, pairs(&[("vrf0", "eth0 eth1")]));
    assert_eq!(gaps, [""; 0]);
    // Without ports it sees nothing, and says so.
    let (_, _, gaps) = decided(&devices[..1], &["vrf0"]);
    assert!(gaps[0].contains("a VRF without ports"), "{gaps:?}");
}

#[test]
fn a_pattern_that_excludes_a_name_excludes_its_device() {
    let card = Device {
        alternative_names: vec!["enp4s0".to_owned()],
        ..device(1, "eth1", "")
    };
    let is_named = |pattern: &str| {
        let text = format!("[agent]\nallow_empty = true\ninterfaces = [{pattern:?}]\n");
        let config = config::parse(std::path::Path::new("limits.toml"), &text)
            .unwrap()
            .config;
        card.is_named_by(&config.agent.interfaces)
    };
    assert!(is_named("eth1") && is_named("enp4s0") && is_named("enp*") && is_named("!eth2"));
    assert!(!is_named("!eth1") && !is_named("!enp*") && !is_named("eth2"));
}
