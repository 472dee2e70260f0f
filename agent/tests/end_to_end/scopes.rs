//! Limits for some sources and some interfaces only.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testbed::tests;
use testbed::trials::Test;

use crate::interfaces::wait_for;
use crate::support::{Agent, INTERFACE, Network, StopWhenDropped};
use crate::traffic::{burst, udp_from, udp6_from, v6};
use crate::wire::Sender;

pub const TESTS: &[Test] = tests![
    a_limit_for_some_sources_leaves_the_others_alone_on_each_hook,
    a_limit_for_some_interfaces_leaves_the_others_alone_on_each_hook,
    a_limit_for_some_destinations_and_interfaces_is_on_what_leaves,
    a_limit_for_an_interface_follows_it_as_it_appears_is_renamed_and_made_anew,
    sources_go_with_classes_bans_ports_and_exempt_addresses,
    a_reload_that_changes_sources_and_interfaces_keeps_the_state_of_limits,
    reloads_between_limits_for_some_and_for_all_pass_nothing_more_under_traffic,
    check_status_and_limits_say_what_a_limit_is_for,
    a_limit_for_a_device_whose_packets_another_charges_is_a_note,
];

/// Tests that require bonds.
pub const WITH_BOND: &[Test] = tests![a_limit_for_a_bond_is_on_what_its_members_receive,];

/// A limit of five packets in an hour.
fn five(name: &str, rest: &str) -> String {
    format!("[[limit]]\nname = {name:?}\nrate = \"5/h\"\nprotocol = \"udp\"\n{rest}\n")
}

/// Waits until limits have counted so many passed and refused packets: all that were sent.
fn expect(agent: &Agent<'_>, what: &str, expected: &[(&str, (u64, u64))]) {
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        let counted: Vec<_> = expected
            .iter()
            .map(|(name, _)| (*name, agent.counts(name)))
            .collect();
        if counted == expected {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{what}: {counted:?}, not {expected:?}"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

/// The limits that `show` lists for a source.
fn names(agent: &Agent<'_>, source: &str) -> Vec<String> {
    let shown = agent.json(&["show", source]);
    shown["limits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|limit| limit["name"].as_str().unwrap().to_owned())
        .collect()
}

/// Sends so many packets of one source over one of the client's interfaces.
fn send(network: &Network, interface: &str, source: u8, count: usize) {
    let frames = vec![udp_from(source); count];
    network.in_client(|| Sender::on(interface).send_all(&frames));
}

fn a_limit_for_some_sources_leaves_the_others_alone_on_each_hook() {
    for attach in ["native", "generic", "tc"] {
        let network = Network::new();
        // One address, a prefix with another inside that is excluded, with an address inside that is included again.
        let list = "\"10.77.0.7\", \"10.77.0.16/28\", \"!10.77.0.24/29\", \"10.77.0.25\", \"fd77:0:0:3::/64\"";
        let limits = five("some", &format!("sources = [{list}]"))
            + &five("others", "sources = [\"!10.77.0.0/27\", \"!fd77::/32\"]")
            + &five("all", "burst = 100");
        let agent = network.start(&format!("attach = {attach:?}"), &limits);
        let ipv6 = [udp6_from(v6(3, 7)), udp6_from(v6(4, 7))];
        let frames = [7, 8, 17, 24, 25, 32].map(udp_from);
        burst(&network, &[&frames[..], &ipv6].concat(), 160);
        // 20 of each: 7, 17, 25 and the IPv6 network are in the first, 32 is in the second, 8, 24 and the other in neither.
        expect(
            &agent,
            attach,
            &[("some", (20, 60)), ("others", (5, 15)), ("all", (85, 0))],
        );
        for (source, expected) in [
            ("10.77.0.7", &["some", "all"][..]),
            ("10.77.0.8", &["all"]),
            ("10.77.0.17", &["some", "all"]),
            ("10.77.0.24", &["all"]),
            ("10.77.0.25", &["some", "all"]),
            ("10.77.0.32", &["others", "all"]),
            ("fd77:0:0:3::9", &["some", "all"]),
            ("fd77:0:0:4::9", &["all"]),
            ("198.51.100.1", &["others", "all"]),
            ("2001:db8::1", &["others", "all"]),
        ] {
            assert_eq!(names(&agent, source), expected, "{source}");
        }
        let (of_some, of_all) = (
            agent.remaining("10.77.0.7", "some"),
            agent.remaining("10.77.0.8", "all"),
        );
        assert_eq!((of_some, of_all), (0, 80));
    }
}

fn a_limit_for_some_interfaces_leaves_the_others_alone_on_each_hook() {
    for attach in ["native", "generic", "tc"] {
        let network = Network::new();
        network.add_link("weir1", "client1");
        let limits = five("first", &format!("interfaces = [{INTERFACE:?}]"))
            + &five(
                "second",
                "interfaces = [\"weir1\"]\nsources = [\"10.77.0.9\"]",
            )
            + &five("pattern", "interfaces = [\"we?r1\"]\nburst = 15")
            + &five("both", "burst = 100");
        let agent = network.start_on(&["weir*"], &format!("attach = {attach:?}"), &limits);
        for interface in ["client0", "client1"] {
            for source in [8, 9] {
                send(&network, interface, source, 20);
            }
        }
        // On the first interface five of each source pass, on the second 15 of one and five of the other.
        expect(
            &agent,
            attach,
            &[
                ("first", (10, 30)),
                ("second", (5, 15)),
                ("pattern", (20, 5)),
                ("both", (30, 0)),
            ],
        );
    }
}

fn a_limit_for_some_destinations_and_interfaces_is_on_what_leaves() {
    let network = Network::new();
    network.add_link("weir1", "client1");
    network.configure_server("weir1", "10.78.0.1/24");
    network.ip(&["addr", "add", "fd78::1/64", "dev", "weir1", "nodad"]);
    for (address, device) in [
        ("10.77.0.7", INTERFACE),
        ("10.77.0.8", INTERFACE),
        ("10.78.0.7", "weir1"),
        ("fd77::7", INTERFACE),
        ("fd78::7", "weir1"),
    ] {
        network.ip(&[
            "neigh",
            "replace",
            address,
            "lladdr",
            "02:00:00:00:77:02",
            "dev",
            device,
            "nud",
            "permanent",
        ]);
    }
    let out = "direction = \"egress\"\n";
    let limits = five(
        "to-some",
        &format!("{out}sources = [\"10.77.0.7\", \"fd77::/64\"]"),
    ) + &five("over-second", &format!("{out}interfaces = [\"weir1\"]"))
        + &five("in", "sources = [\"10.77.0.7\"]");
    let agent = network.start_on(&[INTERFACE, "weir1"], "", &limits);
    network.in_server(|| {
        for (bound, addresses) in [
            (
                "0.0.0.0:0",
                &["10.77.0.7:9", "10.77.0.8:9", "10.78.0.7:9"][..],
            ),
            ("[::]:0", &["[fd77::7]:9", "[fd78::7]:9"]),
        ] {
            let socket = UdpSocket::bind(bound).unwrap();
            for address in addresses {
                // A refused packet is an error to its sender.
                (0..20).for_each(|_| drop(socket.send_to(b"x", address)));
            }
        }
    });
    expect(
        &agent,
        "egress",
        &[
            ("to-some", (10, 30)),
            ("over-second", (10, 30)),
            ("in", (0, 0)),
        ],
    );
    assert_eq!(names(&agent, "10.77.0.7"), ["to-some", "over-second", "in"]);
    assert_eq!(names(&agent, "10.77.0.8"), ["over-second"]);
    let summary = agent.limit("to-some")["summary"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        summary.ends_with(", drop, to 10.77.0.7, fd77::/64"),
        "{summary}"
    );
}

fn a_limit_for_an_interface_follows_it_as_it_appears_is_renamed_and_made_anew() {
    let network = Network::new();
    let limits =
        five("late", "interfaces = [\"weir8\"]") + &five("renamed", "interfaces = [\"weir9\"]");
    let agent = network.start_on(&["weir*"], "", &limits);
    let pass = |source: u8, what: &str, late: (u64, u64), renamed: (u64, u64)| {
        send(&network, "client8", source, 20);
        expect(&agent, what, &[("late", late), ("renamed", renamed)]);
    };
    network.add_link("weir8", "client8");
    wait_for(&agent, "weir8", "attached");
    pass(9, "it appeared", (5, 15), (0, 0));
    network.ip(&["link", "set", "weir8", "down"]);
    network.ip(&["link", "set", "weir8", "name", "weir9"]);
    network.ip(&["link", "set", "weir9", "up"]);
    wait_for(&agent, "weir9", "attached");
    pass(9, "it was renamed", (5, 15), (5, 15));
    // Made anew, it has another index.
    network.remove_link("weir9");
    agent.wait_for("the removal", |status| {
        crate::interfaces::state(status, "weir9").1 != "attached"
    });
    network.add_link("weir9", "client8");
    wait_for(&agent, "weir9", "attached");
    pass(10, "it was made anew", (5, 15), (10, 30));
    // Another interface with the index that the last one had.
    let index = network.index("weir9").to_string();
    network.remove_link("weir9");
    agent.wait_for("the removal", |status| {
        crate::interfaces::state(status, "weir9").1 != "attached"
    });
    network.ip(&[
        "link", "add", "weir8", "index", &index, "type", "veth", "peer", "name", "client8",
    ]);
    network.ip(&["link", "set", "client8", "netns", network.client()]);
    network.ip(&["link", "set", "weir8", "up"]);
    network.in_client(|| crate::support::run("ip", &["link", "set", "client8", "up"]));
    wait_for(&agent, "weir8", "attached");
    pass(11, "another has its index", (10, 30), (10, 30));
    // The next agent numbers what is there already.
    agent.stop(nix::sys::signal::Signal::SIGKILL);
    network.ip(&["link", "set", "weir8", "down"]);
    network.ip(&["link", "set", "weir8", "name", "weir9"]);
    network.ip(&["link", "set", "weir9", "up"]);
    let agent = network.start_on(&["weir*"], "", &limits);
    let before = agent.counts("renamed");
    send(&network, "client8", 12, 20);
    expect(
        &agent,
        "the next agent",
        &[("renamed", (before.0 + 5, before.1 + 15))],
    );
}

fn sources_go_with_classes_bans_ports_and_exempt_addresses() {
    let network = Network::new();
    let limits = "[[class]]\nname = \"payer\"\nsources = [\"10.77.0.16/28\"]\nmultiplier = 2\n"
        .to_owned()
        + "[[class]]\nname = \"friend\"\nsources = [\"10.77.0.20\"]\nunlimited = true\n"
        + &five("payers", "sources = [\"10.77.0.16/29\"]\nports = [9000]")
        + &five("others", "sources = [\"!10.77.0.16/29\"]\nburst = 6")
        + &five("elsewhere", "sources = [\"10.77.0.0/16\"]\nports = [9001]")
        + &five("net", "sources = [\"10.77.0.0/16\"]\nburst = 15");
    let agent = network.start("never_limit = [\"10.77.0.7\"]", &limits);
    network.told(&["ban", "10.77.0.8"]);
    burst(&network, &[7, 8, 9, 17, 20, 25].map(udp_from), 240);
    // 40 of each. 7 is exempt, 8 banned and 20 unlimited; 9 has 6, 17 twice 5 and 25 twice 6 of the limits of their own.
    expect(
        &agent,
        "together",
        &[
            ("payers", (10, 30)),
            ("others", (18, 62)),
            ("elsewhere", (0, 0)),
            ("net", (28, 0)),
        ],
    );
    let bypass = agent.json(&["status"])["bypass"].clone();
    assert_eq!(
        [
            &bypass["banned"],
            &bypass["never_limit"],
            &bypass["unlimited"]
        ],
        [40, 40, 40],
        "{bypass}"
    );
    assert_eq!(
        (
            agent.remaining("10.77.0.17", "net"),
            agent.remaining("10.77.0.9", "net")
        ),
        (20, 9)
    );
}

fn a_reload_that_changes_sources_and_interfaces_keeps_the_state_of_limits() {
    let network = Network::new();
    let all = five("all", "burst = 30");
    let some = |sources: &str| five("some", &format!("sources = [{sources}]")) + &all;
    let agent = network.start("", &some("\"10.77.0.7\""));
    let remaining = |source: &str| {
        (
            agent.remaining(source, "some"),
            agent.remaining(source, "all"),
        )
    };
    burst(&network, &[udp_from(7)], 20);
    expect(&agent, "at first", &[("some", (5, 15)), ("all", (5, 0))]);
    network.config("", &some("\"10.77.0.7\", \"10.77.0.8\""));
    let changed = agent.json(&["reload"]);
    let after = changed["changes"]["changed"][0]["after"].as_str().unwrap();
    assert!(after.ends_with("from 10.77.0.7, 10.77.0.8"), "{changed}");
    assert_eq!(
        (remaining("10.77.0.7"), remaining("10.77.0.8")),
        ((0, 25), (5, 30))
    );
    burst(&network, &[udp_from(7), udp_from(8)], 40);
    expect(
        &agent,
        "with another source",
        &[("some", (10, 50)), ("all", (10, 0))],
    );
    // Without sources the limit is everybody's, and for another interface nobody's.
    network.config("", &(five("some", "") + &all));
    network.told(&["reload"]);
    assert_eq!(
        (remaining("10.77.0.7"), remaining("10.77.0.9")),
        ((0, 25), (5, 30))
    );
    burst(&network, &[udp_from(9)], 20);
    expect(
        &agent,
        "for all sources",
        &[("some", (15, 65)), ("all", (15, 0))],
    );
    network.config_on(
        &[INTERFACE, "weir9"],
        "",
        &(five("some", "interfaces = [\"weir9\"]") + &all),
    );
    network.told(&["reload"]);
    burst(&network, &[udp_from(9)], 20);
    expect(
        &agent,
        "for another interface",
        &[("some", (15, 65)), ("all", (35, 0))],
    );
    assert_eq!(remaining("10.77.0.7"), (0, 25));
}

fn reloads_between_limits_for_some_and_for_all_pass_nothing_more_under_traffic() {
    for attach in ["native", "tc"] {
        let network = Network::new();
        let attach_line = format!("attach = {attach:?}");
        let limit = |rest: &str| {
            format!("[[limit]]\nname = \"kept\"\nrate = \"1/h\"\nburst = 500\n{rest}\n")
        };
        let other = |rest: &str| five("other", rest);
        let here = format!("interfaces = [{INTERFACE:?}]");
        let policies = [
            limit("sources = [\"10.77.0.0/28\"]") + &other("sources = [\"10.77.0.200\"]"),
            limit(""),
            limit(&here),
            limit("sources = [\"!10.77.0.200\"]")
                + &other("interfaces = [\"weir0\"]\nsources = [\"10.77.0.200\"]"),
            limit("sources = [\"10.77.0.7\"]\ninterfaces = [\"w*\"]\nports = [9000]"),
        ];
        let _agent = network.start(&attach_line, &policies[0]);
        let receiver = network.receiver(9000);
        let (done, is_received) = (AtomicBool::new(false), AtomicBool::new(false));
        let sent = AtomicU64::new(0);
        let received = thread::scope(|scope| {
            let received = scope.spawn(|| receiver.counts_until(&is_received)[7]);
            let _stop_receiver = StopWhenDropped(&is_received);
            let sender = scope.spawn(|| {
                network.in_client(|| {
                    let (sender, frame) = (Sender::new(), udp_from(7));
                    while !done.load(Ordering::Relaxed) {
                        (0..5).for_each(|_| sender.send(&frame));
                        sent.fetch_add(5, Ordering::Relaxed);
                        thread::sleep(Duration::from_millis(1));
                    }
                });
            });
            let stop = StopWhenDropped(&done);
            // Charges of two policies during the hand-over count for both only afterwards: with the burst
            // used up, neither passes anything.
            while sent.load(Ordering::Relaxed) < 1_000 {
                thread::sleep(Duration::from_millis(1));
            }
            for policy in policies.iter().cycle().skip(1).take(9) {
                network.config(&attach_line, policy);
                network.told(&["reload"]);
                thread::sleep(Duration::from_millis(50));
            }
            drop(stop);
            sender.join().unwrap();
            is_received.store(true, Ordering::Relaxed);
            received.join().unwrap()
        });
        let sent = sent.into_inner();
        assert!(sent > 1_500, "{sent}");
        // No packet of the source is without the limit, whichever policy is in effect; an hour gives at most one more.
        assert!(
            (500..=501).contains(&received),
            "{attach}: {received} of {sent}"
        );
    }
}

fn check_status_and_limits_say_what_a_limit_is_for() {
    let network = Network::new();
    let limits = five(
        "some",
        "sources = [\"10.77.0.0/24\", \"!10.77.0.9\", \"10.1.0.0/16\", \"10.2.0.0/16\", \"10.3.0.0/16\", \"10.4.0.0/16\"]",
    ) + &five(
        "here",
        &format!("interfaces = [{INTERFACE:?}]\nsources = [\"!192.0.2.1\"]"),
    ) + &five("all", "");
    let agent = network.start("", &limits);
    let config = network.config("", &limits);
    let checked = network.command(&["check", "--json", config.to_str().unwrap()]);
    let checked: Value = serde_json::from_slice(&checked.stdout).unwrap();
    let sources = json!([
        "10.77.0.0/24",
        "!10.77.0.9",
        "10.1.0.0/16",
        "10.2.0.0/16",
        "10.3.0.0/16",
        "10.4.0.0/16"
    ]);
    for limits in [
        &checked["limits"],
        &agent.json(&["status"])["limits"],
        &agent.json(&["limits"]),
    ] {
        let lists = |nth: usize| {
            (
                limits[nth]["sources"].clone(),
                limits[nth]["interfaces"].clone(),
            )
        };
        assert_eq!(lists(0), (sources.clone(), json!([])));
        assert_eq!(lists(1), (json!(["!192.0.2.1"]), json!([INTERFACE])));
        assert_eq!(lists(2), (json!([]), json!([])));
        let summary = |nth: usize| {
            limits[nth]["summary"]
                .as_str()
                .unwrap()
                .split(", drop")
                .nth(1)
                .unwrap()
                .to_owned()
        };
        let expected =
            ", from 10.77.0.0/24, 10.1.0.0/16, 10.2.0.0/16 and 2 more except from 10.77.0.9";
        assert_eq!((summary(0).as_str(), summary(2).as_str()), (expected, ""));
        assert_eq!(
            summary(1),
            format!(", except from 192.0.2.1, on {INTERFACE}")
        );
    }
    let of = |arguments: &[&str]| {
        let output = network.command_with("COLUMNS", "200", arguments);
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout)
            .unwrap()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    for arguments in [
        &["check", config.to_str().unwrap()][..],
        &["status"],
        &["limits"],
    ] {
        let text = of(arguments);
        assert!(
            text.contains(&format!("on {INTERFACE}")) && text.contains("10.2.0.0/16 and 2 more"),
            "{arguments:?}: {text}"
        );
    }
}

fn a_limit_for_a_device_whose_packets_another_charges_is_a_note() {
    let network = Network::new();
    network.server_ip(&["link", "add", "br0", "type", "bridge"]);
    network.server_ip(&["link", "set", INTERFACE, "master", "br0"]);
    network.server_ip(&["link", "set", "br0", "up"]);
    let limits = five("bridge", "interfaces = [\"br0\"]")
        + &five("port", &format!("interfaces = [{INTERFACE:?}]"));
    let agent = network.start_on(&["br0", INTERFACE], "", &limits);
    let note = format!(
        "limit \"bridge\" is not in effect on br0, whose packets are charged on {INTERFACE}: add {INTERFACE} to its interfaces"
    );
    let status = agent.json(&["status"]);
    assert!(
        status["notes"].as_array().unwrap().contains(&json!(note)),
        "{status}"
    );
    let config = network.config_on(&["br0", INTERFACE], "", &limits);
    let checked = network.command(&["check", "--json", config.to_str().unwrap()]);
    let checked: Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert!(
        checked["warnings"]
            .as_array()
            .unwrap()
            .contains(&json!(note)),
        "{checked}"
    );
    // The note's advice ends it.
    let both = five("bridge", &format!("interfaces = [\"br0\", {INTERFACE:?}]"));
    network.config_on(&["br0", INTERFACE], "", &both);
    network.told(&["reload"]);
    assert!(
        !agent.json(&["status"])["notes"]
            .to_string()
            .contains("is not in effect on")
    );
}

fn a_limit_for_a_bond_is_on_what_its_members_receive() {
    for attach in ["native", "tc"] {
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
        network.server_ip(&["link", "set", INTERFACE, "down"]);
        network.server_ip(&["link", "set", INTERFACE, "master", "bond7"]);
        network.server_ip(&["link", "set", "bond7", "up"]);
        let limits =
            five("bond", "interfaces = [\"bond7\"]") + &five("other", "interfaces = [\"weir1\"]");
        let agent = network.start_on(
            &["bond7", "weir1"],
            &format!("attach = {attach:?}"),
            &limits,
        );
        burst(&network, &[udp_from(7)], 20);
        expect(&agent, attach, &[("bond", (5, 15)), ("other", (0, 0))]);
    }
}
