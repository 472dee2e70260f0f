//! Devices on top of others: a packet that passes several is charged once.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::packet::build::Frame;
use serde_json::{Value, json};
use testbed::tests;
use testbed::trials::Test;

use crate::interfaces::{rename, state};
use crate::support::{Agent, CLIENT_MAC, INTERFACE, Network, SERVER_MAC, StopWhenDropped};
use crate::traffic::{PORT, burst, udp_from};
use crate::wire::Sender;

pub const TESTS: &[Test] = tests![
    a_bridge_and_its_port_charge_a_packet_once,
    a_bridge_and_its_port_charge_a_packet_once_by_traffic_control,
    a_bridge_and_its_port_charge_what_is_sent_once,
    a_way_into_a_bridge_that_nothing_limits_is_named,
    a_port_that_joins_a_bridge_charges_for_it,
    a_macvlan_and_its_device_charge_a_packet_once,
    a_device_that_charges_for_another_is_let_go_of_once_that_does,
    a_device_stays_limited_until_another_charges_for_it,
    a_rename_during_a_reload_lets_nothing_pass,
];

/// Tests that require VLAN devices.
pub const WITH_VLAN: &[Test] = tests![a_vlan_and_its_device_charge_a_packet_once,];

/// Tests that require VRF devices.
pub const WITH_VRF: &[Test] = tests![a_vrfs_ports_charge_for_it,];

/// Tests that require bonds.
pub const WITH_BOND: &[Test] = tests![a_bond_and_its_member_charge_a_packet_once,];

const LIMIT: &str = "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 801\n";
const BRIDGE: &str = "br0";

/// Puts a bridge on the server's interface; the address goes along.
fn add_bridge(network: &Network) {
    network.server_ip(&[
        "link",
        "add",
        BRIDGE,
        "address",
        "02:00:00:00:77:01",
        "type",
        "bridge",
    ]);
    network.server_ip(&["addr", "flush", "dev", INTERFACE]);
    network.server_ip(&["link", "set", INTERFACE, "master", BRIDGE]);
    network.configure_server(BRIDGE, "10.77.0.1/16");
    network.ip(&[
        "neigh",
        "replace",
        "10.77.0.2",
        "lladdr",
        "02:00:00:00:77:02",
        "dev",
        BRIDGE,
        "nud",
        "permanent",
    ]);
}

/// Which interfaces charge, and which others these charge for.
fn placements(agent: &Agent<'_>) -> (Vec<Value>, Vec<(Value, Value)>) {
    let status = agent.json(&["status"]);
    let rows = status["interfaces"].as_array().unwrap();
    let (charging, covered): (Vec<&Value>, Vec<&Value>) =
        rows.iter().partition(|row| row["enforced_by"] == json!([]));
    assert!(
        charging.iter().all(|row| row["attach"].is_string()),
        "{status}"
    );
    assert!(
        covered
            .iter()
            .all(|row| row["attach"].is_null() && row["reason"].is_string()),
        "{status}"
    );
    (
        charging.iter().map(|row| row["name"].clone()).collect(),
        covered
            .iter()
            .map(|row| (row["name"].clone(), row["enforced_by"].clone()))
            .collect(),
    )
}

/// Sends more than the limit, and expects exactly what it says to arrive.
fn expect_once(network: &Network, agent: &Agent<'_>, frame: &[u8], source: u8) {
    let receiver = network.receiver(PORT);
    let mut received = 0;
    // In parts that fit into the receiver's buffer.
    for _ in 0..5 {
        burst(network, &[frame.to_vec()], 200);
        received += receiver.counts()[usize::from(source)];
    }
    assert_eq!(received, 801, "of a limit of 801");
    assert_eq!(agent.counts("packets"), (801, 199));
}

fn bridge_with(agent: &str) {
    let network = Network::new();
    add_bridge(&network);
    let agent = network.start_on(&[BRIDGE, INTERFACE], agent, LIMIT);
    assert_eq!(
        placements(&agent),
        (
            vec![json!(INTERFACE)],
            vec![(json!(BRIDGE), json!([INTERFACE]))]
        )
    );
    expect_once(&network, &agent, &udp_from(7), 7);
}

fn a_bridge_and_its_port_charge_a_packet_once() {
    bridge_with("attach = \"native\"");
}

fn a_bridge_and_its_port_charge_a_packet_once_by_traffic_control() {
    bridge_with("attach = \"tc\"");
}

fn a_bridge_and_its_port_charge_what_is_sent_once() {
    let network = Network::new();
    add_bridge(&network);
    // The host's own packets, such as multicast reports, are not UDP.
    let limit = format!("{LIMIT}direction = \"egress\"\nprotocol = \"udp\"\n");
    let agent = network.start_on(&[BRIDGE, INTERFACE], "", &limit);
    let receiver = network.client_receiver("10.77.0.2:9000");
    let mut received = 0;
    for _ in 0..5 {
        network.in_server(|| {
            let socket = UdpSocket::bind("10.77.0.1:9000").unwrap();
            for _ in 0..200 {
                // A refused packet is an error to its sender.
                let _ = socket.send_to(&[0; 22], "10.77.0.2:9000");
            }
        });
        received += receiver.counts()[1];
    }
    assert_eq!(received, 801, "of a limit of 801");
    assert_eq!(agent.counts("packets"), (801, 199));
}

fn a_way_into_a_bridge_that_nothing_limits_is_named() {
    let network = Network::new();
    add_bridge(&network);
    network.add_link("weir1", "client1");
    network.server_ip(&["link", "set", "weir1", "master", BRIDGE]);
    let agent = network.start_on(&[BRIDGE, INTERFACE], "", LIMIT);
    let gap = "packets of br0 that pass weir1 are not limited, since weir0 enforces for br0: add weir1 to [agent] \
               interfaces, or remove weir0";
    let notes = agent.json(&["status"])["notes"].clone();
    assert!(notes.as_array().unwrap().contains(&json!(gap)), "{notes}");
    let config = network.config_on(&[BRIDGE, INTERFACE], "", LIMIT);
    let checked = network.command(&["check", "--json", config.to_str().unwrap()]);
    let checked: Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert!(
        checked["warnings"]
            .as_array()
            .unwrap()
            .contains(&json!(gap)),
        "{checked}"
    );
    assert_eq!(
        checked["interfaces"][0]["enforced_by"],
        json!([INTERFACE]),
        "{checked}"
    );
    // The note's advice closes it.
    network.config_on(&[BRIDGE, INTERFACE, "weir1"], "", LIMIT);
    network.told(&["reload"]);
    let (charging, covered) = placements(&agent);
    assert_eq!(charging, [json!(INTERFACE), json!("weir1")]);
    assert_eq!(covered, [(json!(BRIDGE), json!([INTERFACE, "weir1"]))]);
    assert_eq!(agent.json(&["status"])["notes"], json!([]));
    expect_once(&network, &agent, &udp_from(7), 7);
}

fn a_port_that_joins_a_bridge_charges_for_it() {
    let network = Network::new();
    network.server_ip(&[
        "link",
        "add",
        BRIDGE,
        "address",
        "02:00:00:00:77:01",
        "type",
        "bridge",
    ]);
    network.configure_server(BRIDGE, "10.78.0.1/16");
    let agent = network.start_on(&[BRIDGE, INTERFACE], "", LIMIT);
    assert_eq!(
        placements(&agent),
        (vec![json!(BRIDGE), json!(INTERFACE)], vec![])
    );
    network.server_ip(&["addr", "flush", "dev", INTERFACE]);
    network.server_ip(&["link", "set", INTERFACE, "master", BRIDGE]);
    network.configure_server(BRIDGE, "10.77.0.1/16");
    network.told(&["reload"]);
    assert_eq!(
        placements(&agent),
        (
            vec![json!(INTERFACE)],
            vec![(json!(BRIDGE), json!([INTERFACE]))]
        )
    );
    expect_once(&network, &agent, &udp_from(7), 7);
    network.server_ip(&["link", "set", INTERFACE, "nomaster"]);
    network.told(&["reload"]);
    assert_eq!(
        placements(&agent),
        (vec![json!(BRIDGE), json!(INTERFACE)], vec![])
    );
}

fn a_macvlan_and_its_device_charge_a_packet_once() {
    let network = Network::new();
    network.server_ip(&[
        "link", "add", "link", INTERFACE, "name", "upper0", "type", "macvlan",
    ]);
    network.server_ip(&["link", "set", "upper0", "address", "02:00:00:00:77:03"]);
    network.configure_server("upper0", "10.77.0.3/16");
    let agent = network.start_on(&["upper0", INTERFACE], "", LIMIT);
    assert_eq!(
        placements(&agent),
        (
            vec![json!(INTERFACE)],
            vec![(json!("upper0"), json!([INTERFACE]))]
        )
    );
    let frame =
        Frame::between(CLIENT_MAC, [2, 0, 0, 0, 0x77, 3]).ipv4([10, 77, 0, 7], [10, 77, 0, 3]);
    expect_once(
        &network,
        &agent,
        &frame.udp(5000, PORT, &[0; 22]).build(),
        7,
    );
}

/// A macvlan and the device below it, which is one of the config's while its name is `weir1`.
struct OnMacvlan {
    network: Network,
    frame: Vec<u8>,
}

impl OnMacvlan {
    const LIMIT: &str = "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 100\n";

    fn new() -> Self {
        let network = Network::new();
        network.server_ip(&[
            "link", "add", "link", INTERFACE, "name", "upper0", "type", "macvlan",
        ]);
        network.server_ip(&["link", "set", "upper0", "address", "02:00:00:00:77:03"]);
        network.configure_server("upper0", "10.77.0.3/16");
        let frame = Frame::between(CLIENT_MAC, [2, 0, 0, 0, 0x77, 3])
            .ipv4([10, 77, 0, 7], [10, 77, 0, 3])
            .udp(5000, PORT, &[0; 22])
            .build();
        Self { network, frame }
    }

    fn start(&self, attach: &str) -> Agent<'_> {
        let settings = format!("attach = {attach:?}");
        self.network
            .start_on(&["upper0", "weir1"], &settings, Self::LIMIT)
    }

    /// The packets that pass above the limit while `change` goes on.
    fn passed_during(&self, change: impl FnOnce()) -> u64 {
        let Self { network, frame } = self;
        let receiver = network.receiver(PORT);
        burst(network, std::slice::from_ref(frame), 300);
        assert_eq!(receiver.counts()[7], 100);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let stopping = StopWhenDropped(&stop);
            let counting = scope.spawn(|| receiver.counts_until(&stop)[7]);
            let sending = scope.spawn(|| {
                network.in_client(|| {
                    let sender = Sender::new();
                    let frames = vec![frame.clone(); 20];
                    while !stop.load(Ordering::Relaxed) {
                        sender.send_all(&frames);
                    }
                });
            });
            change();
            drop(stopping);
            sending.join().unwrap();
            counting.join().unwrap()
        })
    }
}

/// The device below becomes one of the config's and ceases to be one, under traffic: whichever of the two charges, the other
/// one is let go of afterwards.
fn a_device_that_charges_for_another_is_let_go_of_once_that_does() {
    for attach in ["tc", "generic"] {
        let devices = OnMacvlan::new();
        let agent = devices.start(attach);
        let passed = devices.passed_during(|| {
            for _ in 0..10 {
                rename(&devices.network, INTERFACE, "weir1");
                agent.wait_for("the device below", |status| {
                    let (upper, lower) = (state(status, "upper0"), state(status, "weir1"));
                    lower == (json!(attach), "attached".to_owned())
                        && upper == (Value::Null, "attached".to_owned())
                });
                rename(&devices.network, "weir1", INTERFACE);
                agent.wait_for("the device above", |status| {
                    state(status, "upper0").0 == attach
                });
            }
        });
        // XDP is refused on a device that lies below one with a program: it has to be let go of before.
        assert!(
            passed == 0 || attach == "generic",
            "{passed} packets passed above the limit: {:?}",
            agent.lines(&["events", "--json"])
        );
    }
}

/// A directory in the place of the program's pin prevents attaching for the moment.
fn a_device_stays_limited_until_another_charges_for_it() {
    let devices = OnMacvlan::new();
    let agent = devices.start("tc");
    let index = devices.network.index(INTERFACE);
    let pin = devices
        .network
        .pins()
        .join(format!("program-tcingress:{index}"));
    let passed = devices.passed_during(|| {
        std::fs::create_dir(&pin).unwrap();
        rename(&devices.network, INTERFACE, "weir1");
        agent.wait_for("the device below", |status| {
            state(status, "weir1").1 == "failed"
        });
        std::fs::remove_dir(&pin).unwrap();
        agent.wait_for("the device below", |status| {
            state(status, "weir1").0 == "tc"
        });
    });
    assert_eq!(passed, 0, "{:?}", agent.lines(&["events", "--json"]));
    let of = |name: &str, count: usize| -> Vec<_> {
        let source = format!("interface {name}");
        let events = agent.events(count, |event| event["source"] == *source);
        let verdicts = events.iter().map(|event| event["verdict"].clone());
        verdicts.collect()
    };
    // The first is of the start, which has no such interface.
    assert_eq!(of("weir1", 3), ["detached", "detached", "attached"]);
    assert_eq!(of("upper0", 1), ["detached"]);
}

/// A reload takes long, and the host does not wait for it.
fn a_rename_during_a_reload_lets_nothing_pass() {
    let devices = OnMacvlan::new();
    let agent = devices.start("tc");
    let mut names = [INTERFACE, "weir1"];
    let passed = devices.passed_during(|| {
        for (nth, milliseconds) in [0, 50, 100, 150, 200, 250, 300, 400]
            .into_iter()
            .enumerate()
        {
            // Of another number of sources, so that programs and table are loaded anew.
            let settings = format!("attach = \"tc\"\nmax_sources = {}", 2_000 + nth * 1_000);
            devices
                .network
                .config_on(&["upper0", "weir1"], &settings, OnMacvlan::LIMIT);
            thread::scope(|scope| {
                let reload = scope.spawn(|| agent.json(&["reload"]));
                thread::sleep(Duration::from_millis(milliseconds));
                rename(&devices.network, names[0], names[1]);
                let reload = reload.join().unwrap();
                assert_eq!(reload["ok"], true, "{reload}");
            });
            names.swap(0, 1);
            let charging = if names[0] == "weir1" {
                "weir1"
            } else {
                "upper0"
            };
            agent.wait_for(charging, |status| state(status, charging).0 == "tc");
        }
    });
    assert_eq!(passed, 0, "{:?}", agent.lines(&["events", "--json"]));
}

fn a_vlan_and_its_device_charge_a_packet_once() {
    let frame = Frame::between(CLIENT_MAC, SERVER_MAC)
        .vlan(7)
        .ipv4([10, 79, 0, 7], [10, 79, 0, 1]);
    let frame = frame.udp(5000, PORT, &[0; 22]).build();
    for attach in ["attach = \"native\"", "attach = \"tc\""] {
        let network = Network::new();
        network.server_ip(&[
            "link", "add", "link", INTERFACE, "name", "upper0", "type", "vlan", "id", "7",
        ]);
        network.configure_server("upper0", "10.79.0.1/16");
        let agent = network.start_on(&["upper0", INTERFACE], attach, LIMIT);
        assert_eq!(
            placements(&agent),
            (
                vec![json!(INTERFACE)],
                vec![(json!("upper0"), json!([INTERFACE]))]
            )
        );
        expect_once(&network, &agent, &frame, 7);
    }
    // By itself it charges itself.
    let network = Network::new();
    network.server_ip(&[
        "link", "add", "link", INTERFACE, "name", "upper0", "type", "vlan", "id", "7",
    ]);
    network.configure_server("upper0", "10.79.0.1/16");
    let agent = network.start_on(&["upper0"], "", LIMIT);
    expect_once(&network, &agent, &frame, 7);
}

/// A VRF's hooks see nothing of what its ports receive.
fn a_vrfs_ports_charge_for_it() {
    let network = Network::new();
    network.server_ip(&["link", "add", "vrf7", "type", "vrf", "table", "77"]);
    network.server_ip(&["link", "set", "vrf7", "up"]);
    let agent = network.start_on(&["vrf7"], "", LIMIT);
    let notes = agent.json(&["status"])["notes"].to_string();
    assert!(notes.contains("vrf7 is a VRF without ports"), "{notes}");
    network.server_ip(&["link", "set", INTERFACE, "master", "vrf7"]);
    agent.wait_for("its port", |status| {
        state(status, INTERFACE).1 == "attached"
    });
    assert_eq!(
        placements(&agent),
        (
            vec![json!(INTERFACE)],
            vec![(json!("vrf7"), json!([INTERFACE]))]
        )
    );
    burst(&network, &[udp_from(7)], 1_000);
    assert_eq!(agent.counts("packets"), (801, 199));
}

fn a_bond_and_its_member_charge_a_packet_once() {
    for attach in ["attach = \"auto\"", "attach = \"tc\""] {
        let network = Network::new();
        network.server_ip(&[
            "link",
            "add",
            "bond7",
            "type",
            "bond",
            "mode",
            "active-backup",
        ]);
        network.server_ip(&["addr", "flush", "dev", INTERFACE]);
        network.server_ip(&["link", "set", INTERFACE, "down"]);
        network.server_ip(&["link", "set", INTERFACE, "master", "bond7"]);
        network.server_ip(&["link", "set", INTERFACE, "up"]);
        network.server_ip(&["link", "set", "bond7", "address", "02:00:00:00:77:01"]);
        network.configure_server("bond7", "10.77.0.1/16");
        let agent = network.start_on(&[INTERFACE, "bond7"], attach, LIMIT);
        assert_eq!(
            placements(&agent),
            (
                vec![json!("bond7")],
                vec![(json!(INTERFACE), json!(["bond7"]))]
            )
        );
        expect_once(&network, &agent, &udp_from(7), 7);
        // A member that charged by itself can join, and passes its packets to the bond.
        network.add_link("weir1", "client1");
        network.config_on(&[INTERFACE, "bond7", "weir1"], attach, LIMIT);
        network.told(&["reload"]);
        assert_eq!(placements(&agent).0, [json!("bond7"), json!("weir1")]);
        network.server_ip(&["link", "set", "weir1", "down"]);
        network.server_ip(&["link", "set", "weir1", "master", "bond7"]);
        network.told(&["reload"]);
        assert_eq!(placements(&agent).0, [json!("bond7")]);
    }
}
