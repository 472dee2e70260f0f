//! One limit on packets for two hosts: each agent writes its share into the kernel's rows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use testbed::stalls::{Gaps, Stalls};
use testbed::tests;
use testbed::trials::Test;
use testbed::wait::wait;

use crate::redis::Redis;
use crate::support::{Agent, Network};
use crate::traffic::{burst, udp_from};
use crate::wire::Sender;

pub const TESTS: &[Test] = tests![
    two_hosts_share_one_limit_on_packets,
    a_reload_goes_on_with_the_share_from_its_first_packet_on,
    a_killed_agents_share_stays_in_the_kernel_until_the_next_agent,
    two_hosts_share_one_limit_for_each_source,
    an_agent_that_ends_leaves_its_part_of_exchanged_limits_in_the_kernel,
    without_a_store_packets_follow_when_store_is_down,
];

const RATE: f64 = 400.0;
const BURST: f64 = 80.0;

fn share(agent: &Agent<'_>) -> f64 {
    agent.json(&["status"])["cluster"]["limits"][0]["share"]
        .as_f64()
        .unwrap()
}

/// Sends a thousand packets a second to each of these hosts until `work` is done; returns the longest time that this took.
/// `work` has the senders' gaps.
fn while_driven(networks: &[&Network], work: impl FnOnce(&[Gaps])) -> Duration {
    let (frame, is_over) = ([udp_from(2)], AtomicBool::new(false));
    let gaps: Vec<Gaps> = networks.iter().map(|_| Gaps::default()).collect();
    let drive = |network: &Network, gaps: &Gaps| {
        network.in_client(|| {
            let (sender, start) = (Sender::new(), Instant::now());
            while !is_over.load(Ordering::Relaxed) {
                sender.pace_marked(&frame, 1, Duration::from_millis(100), gaps);
            }
            start.elapsed()
        })
    };
    thread::scope(|scope| {
        let driven: Vec<_> = networks
            .iter()
            .zip(&gaps)
            .map(|(network, gaps)| scope.spawn(move || drive(network, gaps)))
            .collect();
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&gaps)));
        is_over.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let times = driven.into_iter().map(|driven| driven.join().unwrap());
        times.max().unwrap()
    })
}

/// The allowance of packets that were not sent since then. `stalls` are those of all that the host does.
fn lost<'g>(gaps: impl IntoIterator<Item = &'g Gaps>, since: Instant, stalls: &Stalls) -> f64 {
    let gaps: Duration = gaps
        .into_iter()
        .map(|gaps| gaps.since(since, Duration::ZERO))
        .sum();
    RATE * (4 * stalls.so_far() + gaps).as_secs_f64()
}

/// Asserts that these hosts pass what the least share that they have meanwhile allows, while more packets arrive.
fn passes_its_share(agents: &[&Agent<'_>], senders: &[Gaps], time: Duration) {
    let passed = || -> u64 { agents.iter().map(|agent| agent.counts("packets").0).sum() };
    let before = passed();
    let (start, stalls, mut least) = (Instant::now(), Stalls::watch(), f64::MAX);
    while start.elapsed() < time {
        let shares: f64 = agents.iter().map(|agent| share(agent)).sum();
        least = least.min(shares);
        thread::sleep(Duration::from_millis(20));
    }
    let seconds = start.elapsed().as_secs_f64();
    let passed = passed() - before;
    // Allowance that no packet uses while the machine does other things is lost, but for the burst.
    let lost = lost(senders, start, &stalls);
    let expected = 0.9 * least * RATE * seconds - lost;
    assert!(
        passed as f64 >= expected,
        "{passed} of {expected:.0} in {seconds:.1} s, at a share of {least}; {lost:.0} lost"
    );
}

/// Packets of one kind, a thousand a second to each host in turn and then to both: all together pass what one limit
/// passes, and the share follows them.
fn two_hosts_share_one_limit_on_packets() {
    let redis = Redis::start(&[]);
    let limits = |node: &str| {
        format!(
            "on_exit = \"detach\"\nmax_sources = 1000\n[cluster]\nstore = \"unix://{}\"\nnode = {node:?}\n[[limit]]\nname = \"packets\"\n\
             key = \"interface\"\nrate = \"{RATE}/s\"\nburst = {BURST}\ncluster = true\n",
            redis.socket().display()
        )
    };
    let networks = [Network::new(), Network::new()];
    let agents = [
        networks[0].start(&limits("one"), ""),
        networks[1].start(&limits("two"), ""),
    ];
    let deadline = Instant::now() + Duration::from_secs(300);
    while !agents.iter().all(|agent| (share(agent) - 0.5).abs() < 0.05) {
        assert!(
            Instant::now() < deadline,
            "{:#?}",
            agents
                .each_ref()
                .map(|agent| agent.json(&["status"])["cluster"].take())
        );
        thread::sleep(Duration::from_millis(20));
    }
    // Alone, a host gets nearly all of the limit; together, half each.
    let parts = [
        (&[0][..], 0.9..=1.0),
        (&[1], 0.9..=1.0),
        (&[0, 1], 0.45..=0.55),
    ];
    let driven: Duration = parts
        .map(|(hosts, shares): (&[usize], _)| {
            let senders: Vec<_> = hosts.iter().map(|nth| &networks[*nth]).collect();
            let asked: Vec<_> = hosts.iter().map(|nth| &agents[*nth]).collect();
            while_driven(&senders, |gaps| {
                for agent in &asked {
                    wait("the share", || shares.contains(&share(agent)));
                }
                passes_its_share(&asked, gaps, Duration::from_secs(3));
            })
        })
        .iter()
        .sum();
    // Between the parts nobody sends, and the burst is whole again.
    let limit = 3.0 * BURST + RATE * driven.as_secs_f64();
    let counts = agents.each_ref().map(|agent| agent.counts("packets"));
    let passed = counts[0].0 + counts[1].0;
    let error = passed as f64 / limit - 1.0;
    eprintln!(
        "packets, two hosts: {passed} of {limit:.0} passed, {:+.1} %",
        100.0 * error
    );
    assert!(error <= 0.1, "{passed} of {limit}: {counts:?}");
    // Who leaves gives back; what it held the other has.
    let [one, two] = agents;
    let (_, status) = one.stop(nix::sys::signal::Signal::SIGTERM);
    assert!(status.success());
    let deadline = Instant::now() + Duration::from_secs(300);
    while share(&two) < 1.0 {
        assert!(Instant::now() < deadline, "{}", share(&two));
        thread::sleep(Duration::from_millis(20));
    }
}

/// One source's packets on one host, then on the other, then nine tenths on the first, then on both: with a limit per
/// source, exchanged, all pass what one host would have passed.
fn two_hosts_share_one_limit_for_each_source() {
    let mut redis = Redis::start(&[]);
    let limits = |node: &str| {
        format!(
            "on_exit = \"detach\"\nmax_sources = 1000\n[cluster]\nstore = \"unix://{}\"\nnode = {node:?}\n[[limit]]\nname = \"packets\"\n\
             rate = \"{RATE}/s\"\nburst = {BURST}\ncluster = \"keys\"\n",
            redis.socket().display()
        )
    };
    let networks = [Network::new(), Network::new()];
    let agents = [
        networks[0].start(&limits("one"), ""),
        networks[1].start(&limits("two"), ""),
    ];
    let deadline = Instant::now() + Duration::from_secs(300);
    let is_exchanged = |agent: &Agent<'_>| {
        let cluster = agent.json(&["status"])["cluster"].take();
        cluster["hosts"] == 2 && cluster["limits"][0]["share_from"] == "keys"
    };
    while !agents.iter().all(is_exchanged) {
        assert!(
            Instant::now() < deadline,
            "{:#}",
            agents[0].json(&["status"])["cluster"]
        );
        thread::sleep(Duration::from_millis(20));
    }
    let frame = &[udp_from(2)];
    let passed = || {
        agents
            .iter()
            .map(|agent| agent.counts("packets").0)
            .sum::<u64>()
    };
    // So many packets a millisecond, on each of the two; the allowance that was lost meanwhile.
    let drive = |rates: [usize; 2], part: Duration| {
        let (start, stalls) = (Instant::now(), &Stalls::watch());
        let sending = networks.iter().zip(rates).filter(|(_, rate)| *rate > 0);
        thread::scope(|scope| {
            let drive = |(network, rate): (_, usize)| {
                let send = move |gaps: &Gaps| {
                    let network: &Network = network;
                    network.in_client(|| Sender::new().pace_marked(frame, rate, part, gaps));
                };
                scope.spawn(move || {
                    let gaps = Gaps::default();
                    send(&gaps);
                    lost([&gaps], start, stalls)
                })
            };
            let threads: Vec<_> = sending.map(drive).collect();
            let lost = threads.into_iter().map(|thread| thread.join().unwrap());
            (lost.sum::<f64>(), start.elapsed())
        })
    };
    let (mut driven, mut all, mut all_lost) = (Duration::ZERO, 0, 0.0);
    for (what, rates) in [
        ("one host", [2, 0]),
        ("the other", [0, 2]),
        ("most on one", [9, 1]),
        ("even", [1, 1]),
    ] {
        let before = passed();
        let (lost, time) = drive(rates, Duration::from_secs(6));
        let now = passed() - before;
        eprintln!(
            "by source, {what}: {now} in {time:?}: {:.0} a second",
            now as f64 / time.as_secs_f64()
        );
        driven += time;
        all += now;
        all_lost += lost;
    }
    // The burst is whole again at each of the four beginnings, at the most.
    let least = BURST + RATE * driven.as_secs_f64();
    let most = 4.0 * BURST + RATE * driven.as_secs_f64();
    eprintln!("by source, two hosts: {all} of {least:.0} to {most:.0}");
    assert!(
        all as f64 <= 1.1 * most && all as f64 >= 0.9 * least - all_lost,
        "{all} of {least} to {most}, {all_lost:.0} lost"
    );
    assert!(
        agents[0].json(&["status"])["cluster"]["limits"][0]["keys_exchanged"].as_u64() > Some(10)
    );
    // Without the store each host enforces its part.
    redis.kill();
    let is_alone = |agent: &Agent<'_>| {
        let limit = agent.json(&["status"])["cluster"]["limits"][0].take();
        limit["share_from"] == "share" && limit["share"] == 0.5
    };
    let deadline = Instant::now() + Duration::from_secs(300);
    while !agents.iter().all(is_alone) {
        assert!(
            Instant::now() < deadline,
            "{:#}",
            agents[0].json(&["status"])["cluster"]
        );
        thread::sleep(Duration::from_millis(20));
    }
    let before = passed();
    let (lost, time) = drive([2, 2], Duration::from_secs(4));
    let (now, limit) = (passed() - before, BURST + RATE * time.as_secs_f64());
    eprintln!("by source, without the store: {now} of {limit:.0}");
    // The last exchange's charge is a debt of some syncs.
    assert!(
        now as f64 <= 1.1 * limit && now as f64 >= 0.7 * limit - lost,
        "{now} of {limit}, {lost:.0} lost"
    );
}

/// Of a share of nothing, whatever passes has passed by the whole limit: while one policy takes another's place, too.
fn a_reload_goes_on_with_the_share_from_its_first_packet_on() {
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
        let deadline = Instant::now() + Duration::from_secs(300);
        loop {
            let cluster = agent.json(&["status"])["cluster"].take();
            if cluster["limits"][0]["share_from"] == from {
                break;
            }
            assert!(
                Instant::now() < deadline,
                "no share from {from}: {cluster:#}"
            );
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
            network.config(
                &table,
                &if nth % 2 == 0 {
                    format!("{more}{limit}")
                } else {
                    limit.to_owned()
                },
            );
            let answer = agent.json(&["reload"]);
            assert_eq!(
                (&answer["ok"], &answer["notes"]),
                (&true.into(), &serde_json::json!([])),
                "{answer}"
            );
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
        assert_eq!(
            agent.json(&["limits"])[0]["passed"]["packets"]
                .as_u64()
                .unwrap_or(u64::MAX),
            0
        );
    }
}

/// A host whose agent was killed goes on at its last share, and the others have the whole limit once its lease has ended:
/// all together pass one share too much, until the next agent takes the share over.
fn a_killed_agents_share_stays_in_the_kernel_until_the_next_agent() {
    let redis = Redis::start(&[]);
    // A lease of three seconds, which an agent keeps while a busy machine holds it up.
    let limits = |node: &str| {
        format!(
            "max_sources = 1000\n[cluster]\nstore = \"unix://{}\"\nnode = {node:?}\nsync = \"300ms\"\n[[limit]]\nname = \"packets\"\n\
             key = \"interface\"\nrate = \"{RATE}/s\"\nburst = {BURST}\ncluster = true\n",
            redis.socket().display()
        )
    };
    let networks = [Network::new(), Network::new()];
    let [one, two] = [
        networks[0].start(&limits("one"), ""),
        networks[1].start(&limits("two"), ""),
    ];
    let until = |what: &str, is: &dyn Fn() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(300);
        while !is() {
            assert!(Instant::now() < deadline, "not {what}");
            thread::sleep(Duration::from_millis(20));
        }
    };
    until("a pair", &|| {
        [&one, &two]
            .iter()
            .all(|agent| (share(agent) - 0.5).abs() < 0.05)
    });
    one.stop(nix::sys::signal::Signal::SIGKILL);
    until("alone", &|| share(&two) == 1.0);
    let (sent, time) =
        networks[0].in_client(|| Sender::new().pace(&[udp_from(2)], 1, Duration::from_secs(3)));
    // The kernel still enforces half of the limit; the next agent reads what it counted.
    let begun = Instant::now();
    let one = networks[0].start(&limits("one"), "");
    let passed = one.counts("packets").0 as f64;
    let most = 0.55 * (BURST + RATE * time.as_secs_f64());
    eprintln!("killed: {passed} of {sent} packets passed at half the limit in {time:?}");
    assert!(passed > 0.0 && passed <= most, "{passed} of {most}");
    // It has its lease again at once, and the sum is the limit.
    until("a pair again", &|| {
        (share(&one) + share(&two)) <= 1.0 && share(&one) > 0.3
    });
    eprintln!("taken over within {:?}", begun.elapsed());
}

/// Nobody tells the others what a host passes whose agent has ended, nor charges it with what they pass: each of two such
/// hosts enforces half of a limit whose keys they exchanged.
fn an_agent_that_ends_leaves_its_part_of_exchanged_limits_in_the_kernel() {
    let redis = Redis::start(&[]);
    let limits = |node: &str| {
        format!(
            "max_sources = 1000\n[cluster]\nstore = \"unix://{}\"\nnode = {node:?}\n[[limit]]\nname = \"packets\"\n\
             rate = \"{RATE}/s\"\nburst = {BURST}\ncluster = \"keys\"\n",
            redis.socket().display()
        )
    };
    let networks = [Network::new(), Network::new()];
    let [one, two] = [
        networks[0].start(&limits("one"), ""),
        networks[1].start(&limits("two"), ""),
    ];
    let is_pair = |status: &serde_json::Value| {
        let cluster = &status["cluster"];
        cluster["hosts"] == 2 && cluster["limits"][0]["share_from"] == "keys"
    };
    two.wait_for("the exchange", is_pair);
    one.wait_for("the whole limit", |status| {
        is_pair(status) && status["cluster"]["limits"][0]["share"] == 1.0
    });
    let (log, ended) = one.stop(nix::sys::signal::Signal::SIGTERM);
    assert!(ended.success(), "{log}");
    let (sent, time) =
        networks[0].in_client(|| Sender::new().pace(&[udp_from(2)], 1, Duration::from_secs(3)));
    // The next agent reads what the kernel counted.
    let one = networks[0].start(&limits("one"), "");
    let passed = one.counts("packets").0 as f64;
    let most = 0.55 * (BURST + RATE * time.as_secs_f64());
    eprintln!("left behind: {passed} of {sent} packets passed at half the limit in {time:?}");
    assert!(passed > 0.0 && passed <= most, "{passed} of {most}");
    one.wait_for("the exchange again", |status| {
        is_pair(status) && status["cluster"]["limits"][0]["share"] == 1.0
    });
}

/// The rows in the kernel follow: all of the limit, nothing, or no limit at all.
fn without_a_store_packets_follow_when_store_is_down() {
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
            let deadline = Instant::now() + Duration::from_secs(300);
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
        // What becomes of 500 packets.
        let of_some = || {
            let before = agent.counts("packets");
            burst(&network, &[udp_from(2)], 500);
            testbed::wait::until("their counts", || {
                let now = agent.counts("packets");
                let counts = (now.0 - before.0, now.1 - before.1);
                (counts.0 + counts.1 == 500).then_some(counts)
            })
        };
        match mode {
            "local" => {
                let counts = of_some();
                assert!((80..=82).contains(&counts.0), "{counts:?}");
            }
            "closed" => assert_eq!(of_some(), (0, 500)),
            // The whole limit was its share before; that it is open is another lease later.
            _ => drop(wait("packets without a limit", || of_some() == (500, 0))),
        }
    }
}
