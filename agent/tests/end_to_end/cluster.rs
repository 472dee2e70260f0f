//! One limit on packets for two hosts: each agent writes its share into the kernel's rows.

use std::thread;
use std::time::{Duration, Instant};

use crate::redis::Redis;
use crate::support::{Agent, Network};
use crate::traffic::{burst, udp_from};
use crate::wire::Sender;

pub const TESTS: &[(&str, fn())] = &[
    ("two_hosts_hold_one_limit_on_packets_together", together),
    ("a_reload_goes_on_with_the_share_from_its_first_packet_on", reloaded),
    ("a_killed_agents_share_stays_in_the_kernel_until_the_next_agent", killed),
    ("without_a_store_packets_are_held_to_what_the_config_says", without_a_store),
];

const RATE: f64 = 400.0;
const BURST: f64 = 80.0;

fn share(agent: &Agent<'_>) -> f64 {
    agent.json(&["status"])["cluster"]["limits"][0]["share"].as_f64().unwrap()
}

/// Packets of one kind, a thousand a second to each host in turn and then to both: all together pass what one limit
/// passes, and the share follows them.
fn together() {
    let redis = Redis::start(&[]);
    let limits = |node: &str| {
        format!(
            "on_exit = \"detach\"\nmax_sources = 1000\n[cluster]\nstore = \"unix://{}\"\nnode = {node:?}\n[[limit]]\nname = \"packets\"\n\
             key = \"interface\"\nrate = \"{RATE}/s\"\nburst = {BURST}\ncluster = true\n",
            redis.socket().display()
        )
    };
    let networks = [Network::new(), Network::new()];
    let agents = [networks[0].start(&limits("one"), ""), networks[1].start(&limits("two"), "")];
    let deadline = Instant::now() + Duration::from_secs(30);
    while !agents.iter().all(|agent| (share(agent) - 0.5).abs() < 0.05) {
        assert!(
            Instant::now() < deadline,
            "{:#?}",
            agents.each_ref().map(|agent| agent.json(&["status"])["cluster"].take())
        );
        thread::sleep(Duration::from_millis(20));
    }
    let frame = [udp_from(2)];
    let part = Duration::from_secs(4);
    let drive = |network: &Network| network.in_client(|| Sender::new().pace(&frame, 1, part).1);
    let mut driven = drive(&networks[0]);
    let (alone, time) = (agents[0].counts("packets").0, driven);
    // Half of the limit was its share at first; alone, it has nearly all.
    assert!(alone as f64 > 0.75 * RATE * time.as_secs_f64(), "{alone} in {time:?}");
    driven += drive(&networks[1]);
    driven += thread::scope(|scope| {
        let both = [&networks[0], &networks[1]].map(|network| scope.spawn(|| drive(network)));
        both.map(|one| one.join().unwrap()).into_iter().max().unwrap()
    });
    // Between the parts nobody sends, and the burst is whole again.
    let limit = 3.0 * BURST + RATE * driven.as_secs_f64();
    let counts = agents.each_ref().map(|agent| agent.counts("packets"));
    let passed = counts[0].0 + counts[1].0;
    let error = passed as f64 / limit - 1.0;
    eprintln!("packets, two hosts: {passed} of {limit:.0} passed, {:+.1} %", 100.0 * error);
    assert!(error.abs() <= 0.1, "{passed} of {limit}: {counts:?}");
    // Who leaves gives back; what it held the other has.
    let [one, two] = agents;
    let (_, status) = one.stop(nix::sys::signal::Signal::SIGTERM);
    assert!(status.success());
    let deadline = Instant::now() + Duration::from_secs(30);
    while share(&two) < 1.0 {
        assert!(Instant::now() < deadline, "{}", share(&two));
        thread::sleep(Duration::from_millis(20));
    }
}

/// Of a share of nothing, whatever passes has passed by the whole limit: while one policy takes another's place, too.
fn reloaded() {
    let mut redis = Redis::start(&[]);
    let network = Network::new();
    let table = format!(
        "on_exit = \"detach\"\nmax_sources = 1000\n[cluster]\nstore = \"unix://{}\"\nwhen_store_is_down = \"closed\"\n",
        redis.socket().display()
    );
    let limit = "[[limit]]\nname = \"packets\"\nkey = \"interface\"\nprotocol = \"udp\"\nports = [9000]\n\
                 rate = \"1000/s\"\ncluster = true\n";
    let more = "[[limit]]\nname = \"more\"\nrate = \"100000/s\"\n";
    let agent = network.start(&table, limit);
    let wait_for_share = |from: &str| {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let cluster = agent.json(&["status"])["cluster"].take();
            if cluster["limits"][0]["share_from"] == from {
                break;
            }
            assert!(Instant::now() < deadline, "no share from {from}: {cluster:#}");
            thread::sleep(Duration::from_millis(20));
        }
    };
    wait_for_share("lease");
    redis.kill();
    wait_for_share("closed");
    let passed = agent.counts("packets").0;
    let stop = std::sync::atomic::AtomicBool::new(false);
    let sent = thread::scope(|scope| {
        let sending = scope.spawn(|| {
            network.in_client(|| {
                let (sender, mut sent) = (Sender::new(), 0u64);
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    sender.send(&udp_from(2));
                    sent += 1;
                    thread::sleep(Duration::from_millis(1));
                }
                sent
            })
        });
        let stopping = crate::support::StopWhenDropped(&stop);
        for nth in 0..6 {
            network.config(&table, &if nth % 2 == 0 { format!("{more}{limit}") } else { limit.to_owned() });
            let answer = agent.json(&["reload"]);
            assert_eq!((&answer["ok"], &answer["notes"]), (&true.into(), &serde_json::json!([])), "{answer}");
        }
        drop(stopping);
        sending.join().unwrap()
    });
    assert_eq!(agent.counts("packets").0, passed, "of {sent}");
    assert_eq!(share(&agent), 0.0);
    // Nor does another rate, another key or another name make more of it.
    for changed in [
        limit.replace("1000/s", "2000/s"),
        limit.replace("\"interface\"", "\"source\""),
        limit.replace("\"packets\"", "\"renamed\""),
    ] {
        network.config(&table, &changed);
        assert_eq!(agent.json(&["reload"])["ok"], true);
        burst(&network, &[udp_from(2)], 200);
        assert_eq!(share(&agent), 0.0);
        assert_eq!(agent.json(&["limits"])[0]["passed"]["packets"].as_u64().unwrap_or(u64::MAX), 0);
    }
}

/// A host whose agent was killed goes on at its last share, and the others have the whole limit once its lease has ended:
/// all together pass one share too much, until the next agent takes the share over.
fn killed() {
    let redis = Redis::start(&[]);
    let limits = |node: &str| {
        format!(
            "max_sources = 1000\n[cluster]\nstore = \"unix://{}\"\nnode = {node:?}\n[[limit]]\nname = \"packets\"\n\
             key = \"interface\"\nrate = \"{RATE}/s\"\nburst = {BURST}\ncluster = true\n",
            redis.socket().display()
        )
    };
    let networks = [Network::new(), Network::new()];
    let [one, two] = [networks[0].start(&limits("one"), ""), networks[1].start(&limits("two"), "")];
    let until = |what: &str, is: &dyn Fn() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !is() {
            assert!(Instant::now() < deadline, "not {what}");
            thread::sleep(Duration::from_millis(20));
        }
    };
    until("a pair", &|| [&one, &two].iter().all(|agent| (share(agent) - 0.5).abs() < 0.05));
    one.stop(nix::sys::signal::Signal::SIGKILL);
    until("alone", &|| share(&two) == 1.0);
    let (sent, time) = networks[0].in_client(|| Sender::new().pace(&[udp_from(2)], 1, Duration::from_secs(3)));
    // The kernel still enforces half of the limit; the next agent reads what it counted.
    let begun = Instant::now();
    let one = networks[0].start(&limits("one"), "");
    let passed = one.counts("packets").0 as f64;
    let most = 0.55 * (BURST + RATE * time.as_secs_f64());
    eprintln!("killed: {passed} of {sent} packets passed at half the limit in {time:?}");
    assert!(passed > 0.0 && passed <= most, "{passed} of {most}");
    // What it held it has again at once, and the sum is the limit.
    until("a pair again", &|| (share(&one) + share(&two)) <= 1.0 && share(&one) > 0.3);
    eprintln!("taken over within {:?}", begun.elapsed());
}

/// The rows in the kernel follow: all of the limit, nothing, or no limit at all.
fn without_a_store() {
    for (mode, share_then) in [("local", 1.0), ("closed", 0.0), ("open", 1.0)] {
        let mut redis = Redis::start(&[]);
        let network = Network::new();
        // One a minute, so that what passes at once is the burst, whatever time it takes.
        let agent = network.start(
            &format!(
                "on_exit = \"detach\"\nmax_sources = 1000\n[cluster]\nstore = \"unix://{}\"\n\
                 when_store_is_down = {mode:?}\n[[limit]]\nname = \"packets\"\nkey = \"interface\"\nprotocol = \"udp\"\n\
                 ports = [9000]\nrate = \"60/h\"\nburst = {BURST}\ncluster = true\n",
                redis.socket().display()
            ),
            "",
        );
        let until = |from: &str, share: f64| {
            let deadline = Instant::now() + Duration::from_secs(30);
            loop {
                let cluster = agent.json(&["status"])["cluster"].take();
                let limit = &cluster["limits"][0];
                if limit["share_from"] == from && limit["share"] == share {
                    break;
                }
                assert!(Instant::now() < deadline, "{mode}: {cluster:#}");
                thread::sleep(Duration::from_millis(20));
            }
        };
        until("lease", 1.0);
        redis.kill();
        until(mode, share_then);
        if mode == "open" {
            // The whole limit was its share before; that it is open is another lease later.
            thread::sleep(Duration::from_secs(3));
        }
        burst(&network, &[udp_from(2)], 500);
        let deadline = Instant::now() + Duration::from_secs(30);
        let counts = loop {
            let counts = agent.counts("packets");
            if counts.0 + counts.1 == 500 {
                break counts;
            }
            assert!(Instant::now() < deadline, "{mode}: {counts:?}");
        };
        match mode {
            "local" => assert!((80..=82).contains(&counts.0), "{counts:?}"),
            "closed" => assert_eq!(counts, (0, 500)),
            _ => assert_eq!(counts, (500, 0)),
        }
    }
}
