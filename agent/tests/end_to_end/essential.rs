//! Traffic that limits per source do not apply to: ARP, neighbour discovery, DHCP, and what is not IP.

use std::time::Instant;

use common::packet::build::Frame;
use serde_json::Value;
use testbed::tests;
use testbed::trials::Test;

use crate::support::{Agent, CLIENT_MAC, INTERFACE, Network, SERVER, SERVER_MAC, SERVER6};
use crate::traffic::{burst, v6};

pub const TESTS: &[Test] = tests![
    arp_and_neighbour_discovery_pass_whatever_happens,
    a_flood_between_dhcp_ports_comes_under_the_limits_of_its_source,
    a_ban_holds_what_is_essential,
    a_flood_of_one_essential_kind_starves_no_other,
    essential_traffic_has_a_limit_on_each_interface,
    observing_refuses_nothing_essential_and_counts_it,
];

/// More than the burst and what is refilled while they are sent.
const FLOOD: usize = 16_000;
const BURST: f64 = 1_000.0;
const PER_SECOND: f64 = 10_000.0;

/// The allowance of a neighbour, which its packets take before the interface's.
const OF_NEIGHBOUR: f64 = 100.0;

/// The most packets of one kind that pass on an interface from one neighbour, since an instant.
fn most(since: Instant) -> f64 {
    BURST + OF_NEIGHBOUR + (PER_SECOND + OF_NEIGHBOUR) * since.elapsed().as_secs_f64()
}

const TCP_ONLY: &str =
    "[[limit]]\nname = \"tcp\"\nprotocol = \"tcp\"\nrate = \"1/h\"\nburst = 10\n";

fn link() -> Frame {
    Frame::between(CLIENT_MAC, SERVER_MAC)
}

fn dhcp_from(last: u8) -> Vec<u8> {
    link()
        .ipv4([10, 77, 0, last], SERVER)
        .udp(67, 68, &[0; 240])
        .build()
}

fn solicitation() -> Vec<u8> {
    link().ipv6(v6(3, 1), SERVER6).hops(255).icmp(135).build()
}

fn arp() -> Vec<u8> {
    link().other(0x0806, &[0; 28]).build()
}

fn count(bypass: &Value, reason: &str) -> u64 {
    bypass[reason].as_u64().unwrap()
}

fn bypass(agent: &Agent<'_>) -> Value {
    agent.json(&["status"])["bypass"].clone()
}

fn arp_and_neighbour_discovery_pass_whatever_happens() {
    let network = Network::new();
    let agent = network.start("", "[[limit]]\nname = \"packets\"\nrate = \"1/day\"\n");
    let before = bypass(&agent);
    burst(&network, &[arp(), solicitation(), dhcp_from(7)], 90);
    let after = bypass(&agent);
    assert_eq!(agent.counts("packets").1, 0);
    // The kernels of the two namespaces send some as well, so at least.
    assert!(count(&after, "not_ip") - count(&before, "not_ip") >= 30);
    assert!(count(&after, "essential") - count(&before, "essential") >= 60);
}

fn a_flood_between_dhcp_ports_comes_under_the_limits_of_its_source() {
    for attach in ["native", "tc"] {
        let network = Network::new();
        let limit = "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 10\n";
        let agent = network.start(&format!("attach = {attach:?}"), limit);
        let start = Instant::now();
        burst(&network, &[dhcp_from(7)], FLOOD);
        let most = most(start);
        let essential = count(&bypass(&agent), "essential");
        assert!(
            essential >= BURST as u64 && essential as f64 <= most,
            "{attach}: {essential} of {most}"
        );
        let (passed, throttled) = agent.counts("packets");
        // Where the flood was slow, fewer are left for the limit.
        let rest = (FLOOD as u64).saturating_sub(essential);
        assert!(
            passed >= rest.min(10) && passed <= 10,
            "{attach}: {passed} of {rest}"
        );
        assert!(
            essential + passed + throttled >= FLOOD as u64,
            "{attach}: {essential} + {passed} + {throttled}"
        );
        // Another source is not held to what that one has used up.
        burst(&network, &[dhcp_from(8)], 5);
        assert_eq!(agent.counts("packets").1, throttled, "{attach}");
    }
    // Where no limit applies, it is refused.
    let network = Network::new();
    let agent = network.start("", TCP_ONLY);
    let start = Instant::now();
    burst(&network, &[dhcp_from(7)], FLOOD);
    let most = most(start);
    let bypass = bypass(&agent);
    let throttled = count(&bypass, "essential_throttled");
    assert!(
        FLOOD as f64 - throttled as f64 <= most,
        "{bypass} of {most}"
    );
    assert!(
        agent.json(&["status"])["totals"]["throttled_packets"]
            .as_u64()
            .unwrap()
            >= throttled
    );
}

fn a_ban_holds_what_is_essential() {
    for attach in ["native", "tc"] {
        let network = Network::new();
        let agent = network.start(
            &format!("attach = {attach:?}\nnever_limit = [\"10.77.0.9\"]"),
            TCP_ONLY,
        );
        network.told(&["ban", "10.77.0.0/24"]);
        network.told(&["ban", "fd77:0:0:3::/64"]);
        burst(&network, &[dhcp_from(7), solicitation()], 200);
        assert_eq!(count(&bypass(&agent), "banned"), 200, "{attach}");
        // Exempt addresses are not banned either.
        burst(&network, &[dhcp_from(9)], 50);
        let after = bypass(&agent);
        assert_eq!(
            (count(&after, "banned"), count(&after, "never_limit")),
            (200, 50),
            "{attach}"
        );
    }
}

fn a_flood_of_one_essential_kind_starves_no_other() {
    let network = Network::new();
    let agent = network.start("", TCP_ONLY);
    let floods = [
        ("arp", arp()),
        ("dhcp", dhcp_from(7)),
        ("neighbour discovery", solicitation()),
    ];
    for nth in 0..floods.len() {
        let (flooding, others) = (nth, (0..floods.len()).filter(|other| *other != nth));
        let start = Instant::now();
        let before = bypass(&agent);
        burst(&network, &[floods[flooding].1.clone()], FLOOD);
        let most = most(start);
        let flooded = bypass(&agent);
        let refused =
            count(&flooded, "essential_throttled") - count(&before, "essential_throttled");
        assert!(
            FLOOD as f64 - refused as f64 <= most,
            "{}: {refused}, {most}",
            floods[nth].0
        );
        // A bucket that a flood has emptied fills up within a tenth of a second: each has its turn long after its own.
        std::thread::sleep(std::time::Duration::from_millis(200));
        for other in others {
            burst(&network, &[floods[other].1.clone()], 100);
            let after = bypass(&agent);
            assert_eq!(
                after["essential_throttled"], flooded["essential_throttled"],
                "{}",
                floods[other].0
            );
        }
    }
}

fn essential_traffic_has_a_limit_on_each_interface() {
    let network = Network::new();
    network.add_link("weir1", "client1");
    let limit = "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 1\n";
    let agent = network.start_on(&[INTERFACE, "weir1"], "", limit);
    // One call of the system each: far more than a bucket is refilled with meanwhile, and less than its burst.
    network.send_on(("client0", INTERFACE), &vec![dhcp_from(7); FLOOD]);
    network.send_on(("client1", "weir1"), &vec![dhcp_from(8); BURST as usize]);
    // Packets above the limit are charged to their source.
    assert_eq!(
        (
            agent.remaining("10.77.0.7", "packets"),
            agent.remaining("10.77.0.8", "packets")
        ),
        (0, 1)
    );
}

fn observing_refuses_nothing_essential_and_counts_it() {
    let network = Network::new();
    let agent = network.start("mode = \"observe\"", TCP_ONLY);
    let start = Instant::now();
    burst(&network, &[arp(), dhcp_from(7)], 2 * FLOOD);
    let most = most(start);
    let status = agent.json(&["status"]);
    let would_refuse = count(&status["bypass"], "essential_throttled");
    assert!(
        FLOOD as f64 - would_refuse as f64 <= most,
        "{most}: {status}"
    );
    assert_eq!(status["totals"]["throttled_packets"], 0);
}
