//! Limits with levels: a botnet whose sources are each below the limit.

use std::time::Duration;

use common::packet::build::Frame;
use serde_json::Value;
use testbed::tests;
use testbed::trials::Test;

use crate::support::{Agent, CLIENT_MAC, Network, SERVER, SERVER_MAC};
use crate::traffic::{PORT, burst};

pub const TESTS: &[Test] = tests![
    a_refusal_names_the_level_and_its_key,
    a_level_bans_its_prefix_and_spares_exempt_addresses,
    levels_in_observe_mode_refuse_nothing_and_are_counted,
    a_class_with_a_multiplier_has_a_multiple_of_each_level,
    a_soft_level_passes_its_share_above_and_counts_it,
    each_tier_of_a_limit_is_one_of_its_levels,
    a_reload_adds_a_level_and_keeps_the_state_of_the_others,
];

/// No refill during a test.
const LIMIT: &str = "
[[limit]]
name = \"web\"
rate = \"10/day\"
levels = [{ prefix = \"24/48\", factor = 4 }, { key = \"all\", factor = 10 }]
";

fn from(network: u8, last: u8) -> Vec<u8> {
    Frame::between(CLIENT_MAC, SERVER_MAC)
        .ipv4([10, 77, network, last], SERVER)
        .udp(5000, PORT, b"x")
        .build()
}

/// Packets of the first so many sources of a network.
fn sources(network: u8, count: u8) -> Vec<Vec<u8>> {
    (1..=count).map(|last| from(network, last)).collect()
}

fn levels(agent: &Agent<'_>, counter: &str) -> Vec<u64> {
    let levels = agent.limit("web")["levels"].as_array().unwrap().clone();
    levels
        .iter()
        .map(|level| level[counter]["packets"].as_u64().unwrap())
        .collect()
}

fn a_refusal_names_the_level_and_its_key() {
    let network = Network::new();
    let agent = network.start("", LIMIT);
    let receiver = network.receiver(PORT);
    // Each of 199 sources stays below its own limit, 10; their network exceeds its level, 40.
    burst(&network, &sources(5, 199), 199);
    assert_eq!(agent.counts("web"), (40, 159));
    assert_eq!(levels(&agent, "throttled"), [159, 0]);
    // Another network, and then everything.
    burst(&network, &sources(6, 100), 100);
    assert_eq!(
        (agent.counts("web"), levels(&agent, "throttled")),
        ((80, 219), vec![219, 0])
    );
    burst(&network, &sources(7, 30), 30);
    assert_eq!(
        (agent.counts("web"), levels(&agent, "throttled")),
        ((100, 229), vec![219, 10])
    );
    assert_eq!(receiver.counts().iter().sum::<u64>(), 100);
    // A source above its own limit is refused by that, although its network is above the level, too.
    let spent = agent.json(&["show", "10.77.5.1"]);
    let rows: Vec<(&Value, &Value, &Value, &Value)> = spent["limits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|limit| {
            (
                &limit["name"],
                &limit["level"],
                &limit["key"],
                &limit["remaining"],
            )
        })
        .collect();
    let (web, none) = (Value::from("web"), Value::Null);
    let [prefix, all] = ["24/48", "all"].map(Value::from);
    let network_of = Value::from("10.77.5.0/24");
    // Nothing that was refused is charged.
    assert_eq!(
        rows,
        [
            (&web, &none, &none, &9.into()),
            (&web, &prefix, &network_of, &0.into()),
            (&web, &all, &all, &0.into())
        ]
    );
    assert_eq!(
        (
            &spent["last_refused"]["limit"],
            &spent["last_refused"]["level"]
        ),
        (&web, &all)
    );

    // One line for the network instead of one for each source.
    burst(&network, &sources(5, 199), 20_000);
    let top = agent.json(&["top", "--once"]);
    let refused: Vec<&Value> = top
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["throttled_packets"].as_u64() > Some(0))
        .collect();
    let busiest = refused[0];
    assert_eq!(
        (&busiest["source"], &busiest["limit"], &busiest["level"]),
        (&network_of, &web, &prefix)
    );
    assert_eq!(busiest["throttled_packets"], 20_159);
    let counted = busiest["sources"].as_u64().unwrap();
    // Every 64th packet is sampled: all of 199 sources. The bounds are seven standard errors apart from it.
    assert!((100..=380).contains(&counted), "{counted} sources");
    assert!(refused.len() <= 3, "{refused:?}");
    let said = |arguments: &[&str]| {
        let output = network.command(arguments);
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    for arguments in [&["top", "--once"][..], &["show", "10.77.5.1"]] {
        assert!(
            said(arguments).contains(&format!("10.77.5.0/24, {counted} sources")),
            "{}",
            said(arguments)
        );
    }
    assert!(
        said(&["limits"]).contains("at 24/48"),
        "{}",
        said(&["limits"])
    );

    agent.wait_for("an event of the level", |_| {
        let events = agent.lines(&["events", "--json"]);
        events.iter().any(|event| {
            event["source"] == network_of
                && event["level"] == prefix
                && event["sources"].as_u64() > Some(0)
                && event["reason"] == "at 24/48, more than 4 × 10/day packets, burst 40"
        })
    });
}

fn a_level_bans_its_prefix_and_spares_exempt_addresses() {
    let network = Network::new();
    let limit = format!("{LIMIT}escalate = {{ after = 50, within = \"10m\", ban = \"1h\" }}\n");
    let agent = network.start("never_limit = [\"10.77.5.9\"]", &limit);
    let receiver = network.receiver(PORT);
    let cidrs = || -> Vec<String> {
        let bans = agent.json(&["bans"]);
        bans.as_array()
            .unwrap()
            .iter()
            .map(|ban| ban["cidr"].as_str().unwrap().to_owned())
            .collect()
    };
    // 4 times 50 refusals ban at this level: one fewer does not.
    let others: Vec<Vec<u8>> = (10..=248).map(|last| from(5, last)).collect();
    burst(&network, &others, 239);
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!((agent.counts("web"), cidrs()), ((40, 199), Vec::new()));
    burst(&network, &[from(5, 10)], 1);
    agent.wait_for("the ban of the level's prefix", |_| {
        cidrs() == ["10.77.5.0/24"]
    });
    // An exempt address of the network passes, and the other networks are not banned whatever the last level refuses.
    receiver.counts();
    burst(&network, &[from(5, 9)], 60);
    assert_eq!(receiver.counts()[9], 60);
    burst(&network, &sources(6, 100), 100);
    burst(&network, &sources(7, 200), 200);
    burst(&network, &sources(8, 200), 200);
    std::thread::sleep(Duration::from_millis(1_500));
    assert!(
        levels(&agent, "throttled")[1] > 300,
        "{:?}",
        levels(&agent, "throttled")
    );
    assert_eq!(cidrs(), ["10.77.5.0/24"]);
}

fn levels_in_observe_mode_refuse_nothing_and_are_counted() {
    let network = Network::new();
    let agent = network.start("mode = \"observe\"", LIMIT);
    let receiver = network.receiver(PORT);
    burst(&network, &sources(5, 199), 199);
    assert_eq!(receiver.counts().iter().sum::<u64>(), 199);
    assert_eq!(agent.counts("web"), (199, 0));
    // A packet that one level would refuse is charged to the other as well: of 199 packets, 40 are below the one and 100
    // below the other.
    assert_eq!(levels(&agent, "would_throttle"), [159, 99]);
}

fn a_class_with_a_multiplier_has_a_multiple_of_each_level() {
    let network = Network::new();
    let class = "[[class]]\nname = \"payer\"\nsources = [\"10.77.5.0/24\"]\nmultiplier = 2\n";
    let agent = network.start("", &format!("{class}{LIMIT}"));
    burst(&network, &sources(5, 199), 199);
    assert_eq!(
        (agent.counts("web").0, levels(&agent, "throttled")),
        (80, vec![119, 0])
    );
    // A packet of the class takes half of what another takes: 60 of 100 are left for all.
    burst(&network, &sources(6, 199), 199);
    assert_eq!(
        (agent.counts("web").0, levels(&agent, "throttled")),
        (120, vec![278, 0])
    );
    burst(&network, &sources(7, 199), 199);
    assert_eq!(
        (agent.counts("web").0, levels(&agent, "throttled")[1]),
        (140, 179)
    );
}

fn a_soft_level_passes_its_share_above_and_counts_it() {
    let network = Network::new();
    let agent = network.start("", &format!("{LIMIT}throttle = {{ soft = \"50%\" }}\n"));
    burst(&network, &sources(5, 199), 199);
    assert_eq!(
        (agent.counts("web"), levels(&agent, "over")),
        ((60, 139), vec![20, 0])
    );
    assert_eq!(levels(&agent, "throttled"), [139, 0]);
}

fn each_tier_of_a_limit_is_one_of_its_levels() {
    let network = Network::new();
    let agent = network.start(
        "",
        &LIMIT.replace("\nlevels", "\ntiers = [\"5/12h\"]\nlevels"),
    );
    burst(&network, &sources(5, 199), 199);
    assert_eq!(
        (agent.counts("web"), levels(&agent, "throttled")),
        ((20, 179), vec![179, 0])
    );
}

fn a_reload_adds_a_level_and_keeps_the_state_of_the_others() {
    let network = Network::new();
    let agent = network.start("", &LIMIT.replace(", { key = \"all\", factor = 10 }", ""));
    burst(&network, &sources(5, 100), 100);
    assert_eq!(agent.counts("web"), (40, 60));
    network.config("", LIMIT);
    network.told(&["reload"]);
    burst(&network, &sources(5, 100), 100);
    assert_eq!(
        (agent.counts("web"), levels(&agent, "throttled")),
        ((40, 160), vec![160, 0])
    );
    let status = agent.json(&["status"]);
    let notes = &status["last_reload"]["notes"];
    assert!(!notes.to_string().contains("is reset"), "{notes}");
    assert_eq!(
        agent.json(&["show", "10.77.5.1"])["limits"][1]["remaining"],
        0
    );
}
