//! A fair limit before a UDP server of known capacity, under a flood of 100,000 made-up addresses in 400 networks: each source
//! is below any level that a polite one needs, so that networks have a level, too.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use testbed::overload::{Group, Server, Sources, Watch, beside};
use testbed::tests;
use testbed::trials::Test;

use crate::fair::{CAPACITY, fair, server};
use crate::support::{INTERFACE, Network};
use crate::traffic::PORT;

pub const TESTS: &[Test] = tests![made_up_sources_of_some_networks_leave_polite_ones_alone];

/// Beside `ports`. A polite source sends two datagrams a second.
const LIMIT: &str = "[[limit]]\nname = \"dns\"\nprotocol = \"udp\"\nunit = \"packets\"\nrate = \"fair\"\n\
    fair = { at_least = \"2/s\" }\nlevels = [{ prefix = \"24/48\" }, { key = \"all\" }]\n";

/// Made-up networks, and addresses in each.
const NETWORKS: usize = 400;
const OF_NETWORK: usize = 250;

/// The groups of sources: polite ones in networks of their own, which send 5 % of the capacity, and made-up ones.
const POLITE: usize = 0;
const MADE_UP: usize = 1;

fn sources() -> Sources {
    let groups = [
        Group::new(2, 50).in_networks_of_their_own(),
        Group::new(100, NETWORKS * OF_NETWORK).in_random_order(),
    ];
    groups[POLITE].set_rate(CAPACITY * 0.05);
    Sources::new(groups.into())
}

fn made_up_sources_of_some_networks_leave_polite_ones_alone() {
    let network = Network::new();
    network.in_server(|| {
        // Made-up sources have no route back.
        for place in ["all", "default", INTERFACE] {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{place}/rp_filter"), "0").unwrap();
        }
    });
    let server = Server::new(server(&network), CAPACITY);
    let agent = network.start("", &format!("{LIMIT}ports = [{PORT}]\n"));
    let sources = sources();
    let watch = || Watch::begin(&agent, &[&server.gaps, &sources.gaps]);
    let work = || {
        agent.wait_for("the signal", |status| {
            fair(status)["signals"][0]["kind"] == "udp"
        });
        thread::sleep(Duration::from_secs(1));
        sources.groups[MADE_UP].set_rate(CAPACITY * 10.0);
        let onset = Instant::now();
        agent.wait_for("a level of networks", |status| {
            fair(status)["limited_by"] == "networks"
        });
        println!("networks have a level after {:?}", onset.elapsed());
        thread::sleep(Duration::from_secs(2));
        let polite_from = sources.now() + 1;
        let (window, before) = (watch(), server.now());
        thread::sleep(Duration::from_secs(5));
        let (after, polite_to) = (server.now(), sources.now());
        let is_calm = window.is_calm();
        let status = agent.json(&["status"]);
        let limits = agent.json(&["limits"]);
        sources.groups[MADE_UP].set_rate(0.0);
        let (release, end) = (watch(), Instant::now());
        agent.wait_for("the end", |status| fair(status)["state"] == "off");
        let off = release.is_calm().then(|| end.elapsed());
        let ended = agent.counts("dns").1;
        thread::sleep(Duration::from_secs(1));
        assert_eq!(agent.counts("dns").1, ended, "refused after the end");
        let used = (after.0 - before.0) as f64 / (after.1 - before.1) as f64;
        (used, polite_from..polite_to, is_calm, status, limits, off)
    };
    let (used, polite, is_calm, status, limits, off) = beside(&network, &server, &sources, work);
    let polite = sources.groups[POLITE].share(polite).unwrap();
    let fair = fair(&status);
    println!("polite {polite:.4}, used {used:.4}, off after {off:?}; {fair}");
    if is_calm {
        assert!(polite >= 0.95, "{polite} of polite datagrams; {fair:#}");
        // An equal part of the rest for each made-up network.
        let level = fair["network_level"].as_f64().unwrap();
        let expected = CAPACITY * 0.95 / NETWORKS as f64;
        assert!((0.5..2.0).contains(&(level / expected)), "{fair:#}");
        assert!(fair["refused_by_networks"].as_f64() > Some(0.0), "{fair:#}");
    }
    if let Some(off) = off {
        assert!(off < Duration::from_secs(6), "off after {off:?}");
    }
    // The limit's levels have counters of their own.
    let levels = levels_of(&limits);
    assert_eq!(levels[0]["level"], "24/48");
    assert_eq!(levels[1]["level"], "all");
    let refused = levels[0]["throttled"]["packets"].as_u64();
    assert!(refused > Some(1_000), "{levels}");
    assert!(levels[0]["factor"].is_null(), "{levels}");
}

fn levels_of(limits: &Value) -> &Value {
    let mut all = limits.as_array().unwrap().iter();
    let dns = all.find(|limit| limit["name"] == "dns").unwrap();
    &dns["levels"]
}
