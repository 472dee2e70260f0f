//! Bans that would cut this host off from its network, and packets in the name of the addresses that it depends on.

use std::time::Instant;

use common::packet::build::Frame;
use serde_json::{Value, json};

use crate::support::{Agent, CLIENT_MAC, Network, SERVER, SERVER_MAC, SERVER6};
use crate::traffic::burst;

const HOOKS: [&str; 2] = ["native", "tc"];
const LIMIT: &str = "[[limit]]\nname = \"web\"\nprotocol = \"udp\"\nrate = \"10/s\"\nburst = 10\n\
                     escalate = { after = 100, within = \"1h\", ban = \"5m\" }\n";
/// Refuses 10.77.9.0/24, where the resolver is, and the network of this host.
const LISTED: &str = "10.77.9.0/24\n10.77.0.0/24\n";

fn udp(source: [u8; 4]) -> Vec<u8> {
    Frame::between(CLIENT_MAC, SERVER_MAC)
        .ipv4(source, SERVER)
        .udp(4_000, 9, b"")
        .build()
}

fn bypass(agent: &Agent<'_>, reason: &str) -> u64 {
    agent.json(&["status"])["bypass"][reason].as_u64().unwrap()
}

fn with_list(network: &Network) -> String {
    let file = network.folder.path().join("list.txt");
    std::fs::write(&file, LISTED).unwrap();
    format!("[[ban_list]]\nname = \"bogons\"\nfile = {file:?}\nevery = \"1h\"\n{LIMIT}")
}

/// `weir ban` has no effect on it, and says why.
fn cannot_be_banned(network: &Network, address: &str, why: &str) {
    let output = network.command(&["ban", address]);
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(why), "{said}");
}

/// Anybody can forge them where networks do not filter. They are exempt within the allowance of gateways.
pub fn packets_in_a_resolvers_name_have_a_limit_and_ban_nobody() {
    const SENT: u64 = 4_000;
    const RESOLVER: [u8; 4] = [10, 77, 9, 9];
    let (burst_of_resolvers, rate_of_resolvers) = (1_000.0, 10_000.0);
    for attach in HOOKS {
        let network = Network::new();
        std::fs::write(
            network.resolv_conf(),
            "search example\nnameserver 127.0.0.53\nnameserver 10.77.9.9\n",
        )
        .unwrap();
        let agent = network.start(&format!("attach = {attach:?}"), &with_list(&network));
        assert_eq!(
            agent.json(&["status"])["protected"],
            json!([{"address": "10.77.9.9", "why": "a resolver"}])
        );
        let began = Instant::now();
        burst(&network, &[udp(RESOLVER)], SENT as usize);
        let seconds = began.elapsed().as_secs_f64();
        let exempt = bypass(&agent, "never_limit");
        let (passed, refused) = agent.counts("web");
        let what = format!("{attach}: {exempt} exempt, {passed} passed, {refused} in {seconds} s");
        assert_eq!(exempt + passed + refused, SENT, "{what}");
        let most = burst_of_resolvers + rate_of_resolvers * seconds;
        assert!(exempt >= 1_000 && exempt as f64 <= most + 1.0, "{what}");
        // Neither by the limit nor by the list, which refuses its neighbours, nor by an operator.
        cannot_be_banned(&network, "10.77.9.9", "10.77.9.9/32 is exempt");
        network.told(&["ban", "10.77.0.0/16"]);
        burst(&network, &[udp(RESOLVER), udp([10, 77, 9, 8])], 20);
        assert_eq!(bypass(&agent, "banned"), 10, "{attach}");
        let bans = agent.json(&["bans"]);
        assert_eq!(bans.as_array().map(Vec::len), Some(1), "{attach}: {bans}");
        let shown = agent.json(&["show", "10.77.9.9"]);
        assert_eq!(
            (&shown["exempt"], &shown["ban"]),
            (
                &json!("it is a resolver, up to 10,000 packets a second on each interface"),
                &Value::Null
            ),
            "{attach}"
        );
    }
}

/// A DHCP client writes the file after the agent has started, and again later.
pub fn resolvers_are_followed() {
    let network = Network::new();
    let agent = network.start("", LIMIT);
    let resolvers = |status: &Value| -> Vec<String> {
        let all = status["protected"].as_array().unwrap();
        all.iter()
            .map(|one| one["address"].as_str().unwrap().to_owned())
            .collect()
    };
    assert!(resolvers(&agent.json(&["status"])).is_empty());
    for address in ["10.77.9.9", "10.77.9.10"] {
        let next = network.folder.path().join("next");
        std::fs::write(&next, format!("nameserver {address}\n")).unwrap();
        std::fs::rename(&next, network.resolv_conf()).unwrap();
        agent.wait_for("the resolver is exempt", |status| {
            resolvers(status) == [address]
        });
    }
    let events = agent.events(2, |event| event["verdict"] == "protected");
    let reasons: Vec<_> = events.iter().map(|event| event["reason"].clone()).collect();
    assert_eq!(
        reasons,
        [
            "exempt: 10.77.9.9 (a resolver)",
            "exempt: 10.77.9.10 (a resolver); no longer exempt: 10.77.9.9 (a resolver)"
        ]
    );
}

/// Limits apply to packets in the host's own name, which are forged unless they are local; a ban would cut off what is local.
pub fn no_ban_applies_to_the_hosts_own_addresses() {
    for attach in HOOKS {
        let network = Network::new();
        let agent = network.start(&format!("attach = {attach:?}"), &with_list(&network));
        let own = |status: &Value| -> Vec<String> {
            let all = status["never_banned"].as_array().unwrap();
            all.iter()
                .map(|one| format!("{} {}", one["address"], one["why"]).replace('"', ""))
                .collect()
        };
        assert_eq!(
            own(&agent.json(&["status"])),
            [
                "10.77.0.1 an address of weir0",
                "fd77::1 an address of weir0"
            ]
        );
        cannot_be_banned(&network, "10.77.0.1", "is an address of this host");
        network.told(&["ban", "10.77.0.0/16"]);
        // The list and the ban contain both.
        burst(&network, &[udp(SERVER), udp([10, 77, 0, 7])], 600);
        assert_eq!(bypass(&agent, "banned"), 300, "{attach}");
        let (passed, refused) = agent.counts("web");
        assert_eq!(passed + refused, 300, "{attach}");
        assert!(refused >= 100, "{attach}: more than `escalate` takes");
        // An address that appears later.
        network.ip(&["addr", "add", "10.77.3.3/16", "dev", "weir0"]);
        agent.wait_for("the address is the host's own", |status| {
            own(status).contains(&"10.77.3.3 an address of weir0".to_owned())
        });
        cannot_be_banned(&network, "10.77.3.3", "is an address of this host");
        // By then, `escalate` has seen what was refused.
        let bans = agent.json(&["bans"]);
        assert_eq!(bans.as_array().map(Vec::len), Some(1), "{attach}: {bans}");
        let text = String::from_utf8(network.command(&["status"]).stdout).unwrap();
        assert!(
            text.contains("never banned: 10.77.0.1 (an address of weir0)"),
            "{text}"
        );
    }
}

/// All neighbours' addresses are in one /64. A ban of it would end their neighbour discovery.
pub fn a_neighbour_cannot_have_all_link_local_addresses_banned() {
    let bad = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0b, 0xad];
    let forged = Frame::between(CLIENT_MAC, SERVER_MAC)
        .ipv6(bad, SERVER6)
        .udp(4_000, 9, b"")
        .build();
    let network = Network::new();
    let agent = network.start("", LIMIT);
    burst(&network, &[forged], 400);
    let refused = agent.counts("web").1;
    assert!(refused >= 100, "{refused}: more than `escalate` takes");
    // Bans are made in the order of the refusals.
    burst(&network, &[udp([10, 77, 0, 7])], 400);
    agent.wait_for("the ban", |_| agent.is_banned("10.77.0.7"));
    let bans = agent.json(&["bans"]);
    assert_eq!(bans.as_array().map(Vec::len), Some(1), "{bans}");
}

/// An application may name them as the source of a request by mistake, or by a forged header.
pub fn requests_in_the_name_of_a_gateway_are_limited_and_ban_nobody() {
    const REQUESTS: &str = "[[limit]]\nname = \"logins\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"5/h\"\n\
                            escalate = { after = 20, within = \"1h\", ban = \"5m\" }\n";
    let network = Network::new();
    network.add_default_route("10.77.9.9");
    std::fs::write(network.resolv_conf(), "nameserver 10.77.9.10\n").unwrap();
    let agent = network.start(
        "never_limit = [\"10.77.9.12\"]",
        &format!("{LIMIT}{REQUESTS}"),
    );
    let allowed = |source: &str| {
        let question = ["decide", "--limit", "logins", "--source", source];
        let key = format!("user={source}");
        let question = [&question[..], &["--key", &key]].concat();
        let decide = |_: &u32| agent.json(&question)["allowed"] == true;
        (0..40).filter(decide).count()
    };
    for source in ["10.77.9.9", "10.77.9.10", "10.77.0.1"] {
        assert_eq!(allowed(source), 5, "{source}");
    }
    assert_eq!(allowed("10.77.9.12"), 40, "never_limit");
    // Bans are made in the order of the refusals.
    assert_eq!(allowed("10.77.9.11"), 5);
    agent.wait_for("the ban", |_| agent.is_banned("10.77.9.11"));
    let bans = agent.json(&["bans"]);
    assert_eq!(bans.as_array().map(Vec::len), Some(1), "{bans}");
}
