//! Elastic limits: what they pass above their rate, and when that ends.

use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use testbed::host_load::HostCpus;
use testbed::tests;
use testbed::trials::Test;

use crate::support::{Agent, Network};
use crate::traffic::{burst, udp_from};

pub const TESTS: &[Test] = tests![
    an_elastic_limit_holds_two_seconds_after_the_agent_was_killed,
    an_elastic_limit_on_requests_follows_the_host,
];

const LIMIT: &str = "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 5\nthrottle = { elastic = { up_to = 3.0 } }\n";

/// How long room lasts when no agent renews it.
const ROOM: Duration = Duration::from_secs(2);

/// How many of 40 packets of a source that was never seen before pass.
fn passed(network: &Network, agent: &Agent<'_>, source: u8) -> u64 {
    let before = agent.counts("packets").0;
    burst(network, &[udp_from(source)], 40);
    agent.counts("packets").0 - before
}

fn an_elastic_limit_holds_two_seconds_after_the_agent_was_killed() {
    let network = Network::new();
    let cpus = HostCpus::idle();
    let agent = cpus.seen_by(|| network.start("", LIMIT));
    let mut sources = 10..;
    let deadline = Instant::now() + Duration::from_secs(300);
    // The whole of the elastic allowance: there was room from the first of the packets to the last.
    while passed(&network, &agent, sources.next().unwrap()) != 15 {
        assert!(
            Instant::now() < deadline,
            "an idle host had no room in time"
        );
    }
    agent.stop(Signal::SIGKILL);
    thread::sleep(ROOM);
    let receiver = network.receiver(crate::traffic::PORT);
    burst(&network, &[udp_from(7)], 40);
    assert_eq!(
        receiver.counts()[7],
        5,
        "packets of a limit of 5 whose agent is dead"
    );
}

fn an_elastic_limit_on_requests_follows_the_host() {
    const LIMIT: &str = "[[limit]]\nname = \"requests\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"10/h\"\n\
        throttle = { elastic = { up_to = 3.0 } }\n";
    let network = Network::new();
    let cpus = HostCpus::idle();
    let agent = cpus.seen_by(|| network.start("", LIMIT));
    let mut above = 0;
    let passes = |user: &str, cost: &str| {
        let key = format!("user={user}");
        let words = [
            "decide", "--limit", "requests", "--key", &key, "--cost", cost,
        ];
        agent.json(&words)["allowed"] == true
    };
    agent.wait_for("room", |status| status["has_room"] == true);
    let mut users = (0..).map(|nth| format!("alice{nth}"));
    let deadline = Instant::now() + Duration::from_secs(300);
    // There was room from the first of the requests to the last: an agent that samples late has none for a time.
    let alice = loop {
        let user = users.next().unwrap();
        let passed = ["10", "19", "2"].map(|cost| passes(&user, cost));
        assert!(passed[0], "within the limit, room or not");
        above += passed[1..].iter().filter(|passed| **passed).count();
        if passed == [true, true, false] {
            break user;
        }
        assert!(
            Instant::now() < deadline,
            "an idle host had no room in time"
        );
    };
    let limit = agent.limit("requests");
    assert_eq!(
        (&limit["over"]["packets"], &limit["throttle"]),
        (&above.into(), &"elastic up to 3 times".into())
    );
    cpus.become_busy();
    agent.wait_for("no room", |status| status["has_room"] == false);
    assert!(!passes(&alice, "1"));
    assert!(passes("bob", "10"));
    assert!(!passes("bob", "1"));
}
