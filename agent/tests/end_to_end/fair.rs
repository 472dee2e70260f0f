//! Fair limits before a UDP server of known capacity: polite sources lose nothing to heavy ones, nothing is refused while the
//! server keeps up, and nobody is held to the level of an agent that is dead.

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;
use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};
use serde_json::Value;
use testbed::overload::{Group, Server, Sources, Watch, beside};
use testbed::tests;
use testbed::trials::Test;
use testbed::wait::until;

use crate::support::{Agent, Network, SERVER};
use crate::traffic::PORT;

pub const TESTS: &[Test] = tests![
    polite_sources_lose_nothing_to_ten_times_the_capacity,
    polite_sources_lose_nothing_to_twice_the_capacity,
    nobody_is_held_to_the_level_of_a_dead_agent,
    a_server_that_keeps_up_has_nothing_refused,
];

/// Datagrams that the server reads in a second.
pub const CAPACITY: f64 = 2_000.0;
/// The datagrams that a source sends at once for a page.
const PAGE: usize = 30;

fn limit(more: &str) -> String {
    format!(
        "[[limit]]\nname = \"dns\"\nprotocol = \"udp\"\nports = [{PORT}]\nunit = \"packets\"\nrate = \"fair\"\n\
         fair = {{ at_least = \"5/s\"{more} }}\n"
    )
}

/// The groups of sources.
const HEAVY: usize = 0;
pub const POLITE: usize = 1;
const PAGES: usize = 2;

/// Five heavy sources, 50 polite ones that send 5 % of the capacity together, and 50 that send pages.
pub fn sources() -> Sources {
    let groups = [
        Group::new(1, 5),
        Group::new(2, 50),
        Group::new(3, 50).at_once(PAGE),
    ];
    groups[POLITE].set_rate(CAPACITY * 0.05);
    Sources::new(groups.into())
}

/// Has the five heavy sources send so many capacities together.
pub fn set_heavy(sources: &Sources, times: f64) {
    sources.groups[HEAVY].set_rate(CAPACITY * times);
}

pub fn server(network: &Network) -> UdpSocket {
    let socket = network.in_server(|| UdpSocket::bind((std::net::Ipv4Addr::from(SERVER), PORT)));
    socket.unwrap()
}

pub fn fair(status: &Value) -> &Value {
    &status["fair"][0]
}

fn refused(agent: &Agent<'_>) -> u64 {
    agent.counts("dns").1
}

fn polite_sources_lose_nothing_to_ten_times_the_capacity() {
    assert_polite(10.0);
}

fn polite_sources_lose_nothing_to_twice_the_capacity() {
    assert_polite(2.0);
}

/// Asserts that polite sources lose nothing to five that send so many times what the server can read.
fn assert_polite(times: f64) {
    let network = Network::new();
    let server = Server::new(server(&network), CAPACITY);
    let agent = network.start("", &limit(""));
    let sources = sources();
    let watch = || Watch::begin(&agent, &[&server.gaps, &sources.gaps]);
    let all = watch();
    let work = || {
        agent.wait_for("the signal", |status| {
            fair(status)["signals"][0]["kind"] == "udp"
        });
        thread::sleep(Duration::from_secs(1));
        if all.is_calm() {
            assert_eq!(refused(&agent), 0);
        }
        let onset = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        set_heavy(&sources, times);
        agent.wait_for("an overload", |status| fair(status)["level"].is_f64());
        thread::sleep(Duration::from_secs(1));
        let polite_from = sources.now() + 1;
        let (window, before) = (watch(), server.now());
        thread::sleep(Duration::from_secs(5));
        let after = server.now();
        let status = agent.json(&["status"]);
        let limits = agent.json(&["limits"]);
        if all.is_calm() {
            let since = &fair(&status)["since"];
            assert!(since.as_f64() >= Some(onset.as_secs_f64()), "{status:#}");
            assert_eq!(&limits[0]["level"]["since"], since, "{limits:#}");
        }
        set_heavy(&sources, 0.0);
        let (release, end) = (watch(), SystemTime::now());
        agent.wait_for("the end", |status| fair(status)["state"] == "off");
        let off = ended_at(&agent) - end.duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        if release.is_calm() {
            assert!(off < 5.0, "off after {off} s");
        }
        let ended = refused(&agent);
        thread::sleep(Duration::from_secs(1));
        assert_eq!(refused(&agent), ended, "refused after the end");
        assert_history_of_onset_and_end(&agent);
        // Polite datagrams count until now.
        (before, after, polite_from, status, off, window.is_calm())
    };
    let (before, after, polite_from, status, off, is_calm) =
        beside(&network, &server, &sources, work);
    let used = (after.0 - before.0) as f64 / (after.1 - before.1) as f64;
    let polite = sources.groups[POLITE]
        .share(polite_from..usize::MAX)
        .unwrap();
    let fair = fair(&status);
    println!("{times} times: used {used:.4}, polite {polite:.4}, off after {off:.2} s; {fair}");
    if is_calm {
        assert!(used >= 0.95, "{used} of the capacity is used; {fair:#}");
        assert!(
            polite >= 0.99,
            "{polite} of polite datagrams are served; {fair:#}"
        );
        let heaviest = fair["heaviest"].as_array().unwrap();
        let sources = heaviest.iter().map(|heavy| heavy["source"].as_str());
        let mut sources: Vec<&str> = sources.map(Option::unwrap).collect();
        sources.sort_unstable();
        assert_eq!(
            sources,
            [
                "10.77.1.1",
                "10.77.1.2",
                "10.77.1.3",
                "10.77.1.4",
                "10.77.1.5"
            ]
        );
        assert!(fair["sources_above"].as_u64() >= Some(5), "{fair:#}");
        // A fifth of what polite sources leave.
        let level = fair["level"].as_f64().unwrap();
        assert!((0.1..0.3).contains(&(level / CAPACITY)), "{fair:#}");
    }
    // A server that was held up has an onset of its own, which ends as well.
    let onsets = until("each onset has ended", || {
        let events = agent.lines(&["events", "--json"]);
        let [onsets, ends] = ["overload", "overload-ended"].map(|kind| {
            let of_kind = events.iter().filter(|event| event["verdict"] == kind);
            of_kind.count()
        });
        (onsets == ends).then_some(onsets)
    });
    assert!(onsets == 1 || (onsets > 1 && !all.is_calm()), "{onsets}");
}

/// Asserts that the history has seconds before an onset, those of the level, and others after its end.
fn assert_history_of_onset_and_end(agent: &Agent<'_>) {
    let status = agent.wait_for("a second after the end", |status| {
        let history = &fair(status)["history"];
        let [levels, passed] = ["level", "passed"].map(|list| history[list].as_array());
        let (Some(levels), Some(passed)) = (levels, passed) else {
            return false;
        };
        let is_off = levels.last().is_some_and(Value::is_null);
        is_off && passed.last().is_some_and(Value::is_number)
    });
    let history = &fair(&status)["history"];
    let list = |name: &str| history[name].as_array().unwrap();
    let levels = list("level");
    for name in ["held_by", "offered", "passed", "refused"] {
        assert_eq!(list(name).len(), levels.len(), "{name}: {history:#}");
    }
    let onset = levels.iter().position(Value::is_number).unwrap();
    assert!(onset > 0, "no second before the onset: {history:#}");
    for (level, held_by) in levels.iter().zip(list("held_by")) {
        assert_eq!(level.is_number(), held_by.is_string(), "{history:#}");
    }
    let refused = list("refused").iter().filter_map(Value::as_f64);
    assert!(refused.sum::<f64>() > 0.0, "{history:#}");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let ended = history["ended"].as_f64().unwrap();
    assert!(ended <= now.as_secs_f64() + 0.1, "{history:#}");
}

/// When the last overload ended, in seconds since 1970.
fn ended_at(agent: &Agent<'_>) -> f64 {
    until("the event of the end", || {
        let events = agent.lines(&["events", "--json"]);
        let mut ended = events
            .iter()
            .filter(|event| event["verdict"] == "overload-ended");
        ended.next_back()?["time"].as_f64()
    })
}

/// Datagrams that reached the socket so far: read ones and those that it dropped.
fn reached(network: &Network, server: &Server) -> u64 {
    let table = network.in_server(|| std::fs::read_to_string("/proc/thread-self/net/udp").unwrap());
    let port = format!(":{PORT:04X}");
    let mut rows = table.lines().filter(|row| {
        row.split_whitespace()
            .nth(1)
            .is_some_and(|local| local.ends_with(&port))
    });
    let drops = rows
        .next()
        .unwrap()
        .split_whitespace()
        .last()
        .unwrap()
        .parse::<u64>()
        .unwrap();
    drops + server.now().0
}

fn nobody_is_held_to_the_level_of_a_dead_agent() {
    let network = Network::new();
    let server = Server::new(server(&network), CAPACITY);
    let agent = network.start("", &limit(", at_most = \"1000/s\""));
    let sources = sources();
    beside(&network, &server, &sources, || {
        set_heavy(&sources, 10.0);
        agent.wait_for("a level", |status| {
            fair(status)["level"]
                .as_f64()
                .is_some_and(|level| level < 600.0)
        });
        let rate = |time: Duration| {
            let (start, before) = (Instant::now(), reached(&network, &server));
            thread::sleep(time);
            (reached(&network, &server) - before) as f64 / start.elapsed().as_secs_f64()
        };
        thread::sleep(Duration::from_secs(1));
        let watch = Watch::begin(&agent, &[&server.gaps, &sources.gaps]);
        let held = rate(Duration::from_secs(1));
        let is_calm_with_agent = watch.is_calm();
        agent.stop(Signal::SIGKILL);
        thread::sleep(Duration::from_millis(2_200));
        let free = rate(Duration::from_secs(2));
        println!("with the agent {held:.0}/s, without {free:.0}/s");
        // Five sources at 1,000 a second, with whole bursts if the sender was held up meanwhile, and polite ones; what the
        // socket had queued besides.
        assert!(free < 8_000.0, "{free}/s without the agent");
        if is_calm_with_agent && watch.is_calm() {
            assert!(
                (1_000.0..3_000.0).contains(&held),
                "{held}/s with the agent"
            );
            assert!(free > 4_000.0, "{free}/s without the agent");
        }
    });
}

fn a_server_that_keeps_up_has_nothing_refused() {
    let network = Network::new();
    let socket = server(&network);
    // Pauses of this machine are no overload of the server: it makes up for them, and loses nothing meanwhile.
    setsockopt(&socket.as_fd(), RcvBufForce, &(8 << 20)).unwrap();
    let agent = network.start("", &limit(""));
    let (server, sources) = (Server::new(socket, CAPACITY), sources());
    let watch = Watch::begin(&agent, &[&server.gaps, &sources.gaps]);
    beside(&network, &server, &sources, || {
        // A NAT and a crawler are heavy here: 70 % of the capacity.
        set_heavy(&sources, 0.70);
        sources.groups[PAGES].set_rate(CAPACITY * 0.10);
        thread::sleep(Duration::from_secs(6));
        let refused = refused(&agent);
        println!("{refused} refused, {:?} served", server.now());
        if watch.is_calm() {
            assert_eq!(refused, 0);
        }
        set_heavy(&sources, 0.0);
        sources.groups[PAGES].set_rate(0.0);
        agent.wait_for("no level", |status| fair(status)["state"] == "off");
    });
}
