//! The states that pages describe.

use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;

use common::packet::build::Frame;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::Reader;
use crate::connections::Begun;
use crate::heavy_prefixes::{mixture, while_sending};
use crate::prove;
use crate::support::{CLIENT_MAC, Network, SERVER, SERVER_MAC};
use crate::traffic::{PORT, burst};

/// The pages of which every command that is not named is run here.
pub const SCENES: &[&str] = &[
    "README.md",
    "docs/guides/bans.md",
    "docs/guides/levels.md",
    "docs/guides/connections.md",
    "docs/guides/heavy-prefixes.md",
    "docs/guides/prove.md",
    "docs/guides/api-quotas.md",
    "docs/guides/record.md",
    "docs/start/observe-then-enforce.md",
    "docs/start/first/ssh.md",
    "docs/start/first/web-server.md",
    "docs/start/first/dns.md",
    "docs/start/first/game-server.md",
    "docs/start/first/api.md",
    "docs/reference/events.md",
    "docs/operations/upgrade.md",
];

fn from(source: [u8; 4]) -> Vec<u8> {
    Frame::between(CLIENT_MAC, SERVER_MAC)
        .ipv4(source, SERVER)
        .udp(5_000, PORT, b"x")
        .build()
}

fn write(network: &Network, name: &str, text: &str) -> PathBuf {
    let path = network.folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn cidrs(bans: &Value) -> Vec<&str> {
    let rows = bans.as_array().unwrap().iter();
    rows.map(|row| row["cidr"].as_str().unwrap()).collect()
}

pub fn the_readme_is_so() {
    let network = Network::new().as_packaged();
    let reader = Reader::of(&network, "README.md");
    let (agent, limits) = reader.config(0);
    let agent = network.start(&agent, &limits);
    // 40 packets of the greedy source for each of the other.
    let mut frames = vec![from([10, 78, 0, 3]); 40];
    frames.push(from([10, 78, 0, 2]));
    while_sending(&network, &frames, 20, || {
        agent.wait_for("refusals", |status| {
            status["totals"]["throttled_packets"].as_u64() > Some(1_000)
        });
        // A source has a row once a packet of it was sampled.
        agent.wait_for("both sources", |_| {
            let top = agent.json(&["top", "--once"]);
            let rows = top.as_array().unwrap();
            ["10.78.0.2", "10.78.0.3"]
                .iter()
                .all(|source| rows.iter().any(|row| row["source"] == *source))
        });
        reader.types(|_| 0);
    });
}

pub fn the_guide_on_bans_is_so() {
    let network = Network::new().as_packaged();
    let agent = network.start("", "[[limit]]\nname = \"packets\"\nrate = \"1000/s\"\n");
    write(&network, "list.txt", "198.51.100.1\n");
    let reader = Reader::of(&network, "docs/guides/bans.md");
    let mut seen = Vec::new();
    reader.types(|command| {
        match command {
            // Each line is an example of its own: another owner's ban, and no wider one.
            "weir unban 203.0.113.7" => {
                seen = cidrs(&agent.json(&["bans"]))
                    .into_iter()
                    .map(str::to_owned)
                    .collect();
                network.told(&["unban", "203.0.113.0/24"]);
            }
            "weir unban 203.0.113.7 --all" => {
                network.told(&["ban", "203.0.113.7", "--owner", "another"]);
            }
            "weir ban 203.0.113.7 --for 10m --owner sshd" => {
                assert_eq!(agent.json(&["bans"]), Value::Array(Vec::new()));
                network.told(&["disallow", "203.0.113.0/24"]);
            }
            _ => {}
        }
        0
    });
    seen.sort();
    assert_eq!(
        seen,
        [
            "198.51.100.1",
            "2001:db8::/64",
            "203.0.113.0/24",
            "203.0.113.7",
            "203.0.113.8",
            "203.0.113.9"
        ]
    );
    let left = agent.json(&["bans"]);
    assert_eq!(
        (cidrs(&left), &left[0]["owner"]),
        (vec!["203.0.113.7"], &"recidive".into())
    );
}

pub fn the_guide_on_levels_is_so() {
    let network = Network::new().as_packaged();
    let reader = Reader::of(&network, "docs/guides/levels.md");
    let (agent, limits) = reader.config(0);
    let agent = network.start(&agent, &limits);
    burst(&network, &[from([198, 51, 100, 7])], 70);
    let botnet: Vec<Vec<u8>> = (1..=211).map(|last| from([203, 0, 113, last])).collect();
    burst(&network, &botnet, 16_000);
    // Until everybody has the whole allowance again.
    agent.wait_for("decayed states", |_| {
        let web = agent.limit("web");
        let levels = web["levels"].as_array().unwrap().iter();
        web["keys"] == 0 && levels.clone().all(|level| level["keys"] == 0)
    });
    reader.types(|_| 0);
}

pub fn the_guide_on_connections_is_so() {
    let network = Network::new().as_packaged();
    network.ip(&["route", "add", "198.18.0.0/15", "dev", "weir0"]);
    network.add_client_addresses(&[[198, 18, 0, 1]]);
    let reader = Reader::of(&network, "docs/guides/connections.md");
    let (agent, limits) = reader.config(0);
    // That of the picture.
    let limits = limits.replace("concurrent = 50", "concurrent = 4");
    let agent = network.start(&agent, &limits);
    let _listener = network.in_server(|| TcpListener::bind((Ipv4Addr::from(SERVER), 443)).unwrap());
    let _slow: Vec<Begun> =
        network.in_client(|| (0..12).map(|_| Begun::to([198, 18, 0, 1], 443)).collect());
    agent.wait_for("open and refused connections", |_| {
        let shown = agent.json(&["show", "198.18.0.1"]);
        let limit = &shown["limits"][0];
        limit["open"] == 4 && limit["throttled_packets"].as_u64() >= Some(8)
    });
    reader.types(|_| 0);
}

pub fn the_guide_on_heavy_prefixes_is_so() {
    let network = Network::new().as_packaged();
    let reader = Reader::of(&network, "docs/guides/heavy-prefixes.md");
    let agent = network.start("", "[[limit]]\nname = \"web\"\nrate = \"500/s\"\n");
    while_sending(&network, &mixture(), 100, || {
        // The agent has noticed that there are too many packets to count each.
        agent.wait_for("a sample", |_| {
            let found = agent.json(&["top", "--by", "prefix", "--once"]);
            found["one_in"].as_u64() > Some(1)
        });
        reader.types(|_| 0);
    });
}

pub fn the_guide_on_proofs_is_so() {
    let network = prove::network("2", "native").as_packaged();
    let reader = Reader::of(&network, "docs/guides/prove.md");
    let (agent, limits) = reader.config(0);
    let _agent = network.start(&agent, &limits);
    let (connected, accepted) = prove::with_server(&network, || {
        burst(&network, &prove::forged(prove::SYN), 2_000);
        let mut connected = 0;
        let mut connect = |to: &str| connected += u64::from(prove::connect(&network, to).is_some());
        connect("10.77.0.1:80");
        connect("[fd77::1]:80");
        reader.types(|_| 0);
        connected
    });
    assert!(connected >= 2);
    assert_eq!(connected, accepted);
}

pub fn the_guide_on_quotas_is_so() {
    let network = Network::new().as_packaged();
    let reader = Reader::of(&network, "docs/guides/api-quotas.md");
    let (_, config) = reader.config(0);
    let folder = network.folder.path().display().to_string();
    let _agent = network.start("", &config.replace("/run/weir", &folder));
    let typed = reader.types(|_| 0);
    let [quota] = &typed[..] else {
        panic!("{}", typed.len())
    };
    // The transfer's progress is printed, too, where it goes to no terminal.
    let reply = quota.printed.find('{').map(|at| &quota.printed[at..]);
    let reply: Value = serde_json::from_str(reply.unwrap().lines().next().unwrap()).unwrap();
    assert_eq!(reply["allowed"], true, "{}", quota.command);
    // 1 + 250 / 100 credits, rounded up, of 1,000 a minute.
    assert_eq!(reply["remaining"], 996, "{reply}");
}

pub fn the_guide_on_recording_is_so() {
    let network = Network::new().as_packaged();
    let agent = network.start("", "[[limit]]\nname = \"packets\"\nrate = \"1000/s\"\n");
    Reader::of(&network, "docs/guides/record.md").types(|_| 0);
    let recording = agent.json(&["record", "--status"]);
    assert_eq!(recording["state"], "recording", "{recording}");
}

pub fn the_first_trial_is_so() {
    let network = Network::new().as_packaged();
    let reader = Reader::of(&network, "docs/start/observe-then-enforce.md");
    let (table, limits) = reader.config(0);
    let observed = network.config(&table, &limits);
    let agent = network.start_file(&observed, &[]);
    let text = std::fs::read_to_string(&observed).unwrap();
    assert_eq!(agent.json(&["status"])["mode"], "observe");
    write(
        &network,
        "limits.next.toml",
        &text.replace("\"observe\"", "\"enforce\""),
    );
    reader.types(|_| 0);
    let status = agent.json(&["status"]);
    assert_eq!(status["mode"], "enforce");
    assert!(!status["trial"].is_null(), "{status}");
    network.told(&["confirm"]);
    assert!(agent.json(&["status"])["trial"].is_null());
}

pub fn the_reference_of_events_is_so() {
    let network = Network::new().as_packaged();
    let limit = format!("[[limit]]\nname = \"dns\"\nports = [{PORT}]\nrate = \"5/day\"\n");
    let agent = network.start("", &limit);
    burst(&network, &[from([198, 51, 100, 7])], 10);
    burst(&network, &[from([192, 0, 2, 7])], 10);
    agent.wait_for("both events", |_| {
        agent.lines(&["events", "--json"]).len() >= 2
    });
    for typed in Reader::of(&network, "docs/reference/events.md").types(|_| 0) {
        let is_about = |source: &str| typed.printed.contains(source);
        // By its prefix, one source is shown; by the limit, both.
        let by_source = typed.command.contains("--source");
        assert_eq!(
            (is_about("198.51.100.7"), is_about("192.0.2.7")),
            (true, !by_source),
            "{}\n{}",
            typed.command,
            typed.printed
        );
    }
}

pub fn the_page_on_upgrades_is_so() {
    let network = Network::new().as_packaged();
    let limits = "[[limit]]\nname = \"packets\"\nrate = \"1000/s\"\n";
    let mut agent = Some(network.start("", limits));
    network.told(&["ban", "203.0.113.0/24", "2001:db8::7", "--for", "1h"]);
    let reader = Reader::of(&network, "docs/operations/upgrade.md");
    let mut moved = Vec::new();
    reader.types(|command| {
        match command {
            "weir ban --file bans.txt" => network.told(&["unban", "--all"]),
            _ if command.starts_with("weir detach") => {
                let agent = agent.take().unwrap();
                moved = cidrs(&agent.json(&["bans"]))
                    .into_iter()
                    .map(str::to_owned)
                    .collect();
                agent.stop(Signal::SIGTERM);
                assert!(network.has_pins());
            }
            _ => {}
        }
        0
    });
    moved.sort();
    assert_eq!(moved, ["2001:db8::/64", "203.0.113.0/24"]);
    assert!(!network.has_pins());
}
