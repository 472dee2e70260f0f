//! Counters go on from agent to agent: nothing is lost and nothing counted twice, whenever one is killed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use testbed::random::Random;
use testbed::tests;
use testbed::trials::{Test, is_long};

use crate::support::{Agent, Network, StopWhenDropped};
use crate::traffic::{PORT, burst, udp_from};
use crate::wire::Sender;

pub const TESTS: &[Test] = tests![
    kills_under_traffic_neither_lose_nor_double_a_count,
    counters_go_on_over_reloads_restarts_and_failed_reloads,
    counters_that_an_operator_reset_begin_at_0_and_allowances_stay,
];

const SMALL: &str = "max_sources = 2000";
const LIMIT: &str = "[[limit]]\nname = \"packets\"\nrate = \"1000/s\"\nburst = 500\n";
const OTHER: &str = "[[limit]]\nname = \"other\"\nrate = \"9/s\"\nports = [1234]\n";

fn kills_under_traffic_neither_lose_nor_double_a_count() {
    let network = Network::new();
    let configs = [
        LIMIT.to_owned(),
        format!("{OTHER}{LIMIT}"),
        format!("{LIMIT}tiers = [\"100000/h\"]\n{OTHER}"),
    ];
    let receiver = network.receiver(PORT);
    let agent = network.start(SMALL, &configs[0]);
    let stop = AtomicBool::new(false);
    let rounds = if is_long() { 30 } else { 8 };
    let sent = thread::scope(|scope| {
        let receiving = scope.spawn(|| receiver.counts_until(&stop));
        let sending = scope.spawn(|| {
            network.in_client(|| {
                let (sender, frames) = (Sender::new(), vec![udp_from(7); 10]);
                let mut sent = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    sender.send_all(&frames);
                    sent += frames.len() as u64;
                    thread::sleep(Duration::from_millis(1));
                }
                sent
            })
        });
        let stopping = StopWhenDropped(&stop);
        agent.stop(Signal::SIGKILL);
        let mut random = Random::new(1);
        for nth in 0..rounds {
            let config = network.config(SMALL, &configs[nth % 3]);
            if nth % 2 == 0 {
                // While it starts.
                let agent = network.spawn_agent(&config, &[]);
                thread::sleep(Duration::from_micros(random.below(1 << 20)));
                agent.stop(Signal::SIGKILL);
            } else {
                // While it reloads.
                let agent = network.start_file(&config, &[]);
                network.config(SMALL, &configs[(nth + 1) % 3]);
                agent.signal(Signal::SIGHUP);
                thread::sleep(Duration::from_micros(random.below(1 << 18)));
                agent.stop(Signal::SIGKILL);
            }
        }
        drop(stopping);
        let sent = sending.join().unwrap();
        receiving.join().unwrap();
        sent
    });
    let agent = network.start(SMALL, &configs[0]);
    let (passed, refused) = agent.counts("packets");
    let status = agent.json(&["status"]);
    let total = &status["totals"];
    eprintln!(
        "{rounds} kills: of {sent} packets {passed} counted as passed, {refused} as refused; {total}"
    );
    assert_eq!(passed + refused, sent, "every packet is counted once");
    assert!(passed > 0 && refused > 0);
    // Generations that are no longer in effect leave nothing behind.
    let pinned = std::fs::read_dir(network.pins().join("counters"))
        .unwrap()
        .count();
    assert_eq!(pinned, 4, "one generation of three pins, and the base");
}

fn counters_go_on_over_reloads_restarts_and_failed_reloads() {
    let network = Network::new();
    let agent = network.start(SMALL, &LIMIT.replace("1000/s", "1/h"));
    burst(&network, &[udp_from(7)], 600);
    assert_eq!(agent.counts("packets"), (500, 100));
    // Reloads with other rows, and one that fails.
    network.config(SMALL, &format!("{OTHER}{}", LIMIT.replace("1000/s", "1/h")));
    network.told(&["reload"]);
    burst(&network, &[udp_from(7)], 50);
    assert_eq!(agent.counts("packets"), (500, 150));
    network.config(
        &format!("{SMALL}\nattach = \"native\""),
        &LIMIT.replace("burst = 500", "burst = 0"),
    );
    assert!(!network.command(&["reload"]).status.success());
    assert_eq!(agent.counts("packets"), (500, 150));
    // Agents that end and agents that are killed.
    agent.stop(Signal::SIGTERM);
    for (nth, signal) in [Signal::SIGTERM, Signal::SIGKILL, Signal::SIGKILL]
        .into_iter()
        .enumerate()
    {
        network.config(SMALL, &format!("{OTHER}{}", LIMIT.replace("1000/s", "1/h")));
        let agent = network.start_file(&network.folder.path().join("limits.toml"), &[]);
        assert_eq!(agent.counts("packets"), (500, 150 + 20 * nth as u64));
        burst(&network, &[udp_from(7)], 10);
        agent.stop(signal);
        // While no agent runs.
        burst(&network, &[udp_from(7)], 10);
        if nth == 2 {
            network.told(&[
                "detach",
                "--config",
                network.folder.path().join("limits.toml").to_str().unwrap(),
            ]);
            assert!(!network.has_pins());
        }
    }
}

/// (passed, throttled) of the one source, as `top` has it.
fn of_source(agent: &Agent<'_>) -> Option<(u64, u64)> {
    let rows = agent.json(&["top", "--once"]);
    let row = rows
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["source"] == "10.77.0.7")?;
    Some((
        row["passed_packets"].as_u64().unwrap(),
        row["throttled_packets"].as_u64().unwrap(),
    ))
}

fn counters_that_an_operator_reset_begin_at_0_and_allowances_stay() {
    let network = Network::new();
    let limits = |more: &str| {
        format!(
            "[[limit]]\nname = \"packets\"\nrate = \"1/month\"\nburst = 100\n{more}\
             [[limit]]\nname = \"credits\"\nscope = \"request\"\nkey = \"source\"\nrate = \"1/month\"\n"
        )
    };
    let settings = format!("{SMALL}\nmetrics = \"127.0.0.1:9464\"");
    let config = network.config(&settings, &limits(""));
    let agent = network.start_in_boot("a", &config);
    burst(&network, &[udp_from(7)], 200);
    for _ in 0..3 {
        network.told(&["decide", "--limit", "credits", "--source", "10.77.0.7"]);
    }
    assert_eq!(
        (agent.counts("packets"), agent.counts("credits")),
        ((100, 100), (1, 2))
    );
    assert_eq!(of_source(&agent), Some((100, 100)));
    let in_metrics = || {
        let page = crate::metrics::get(&network);
        let of =
            |name: &str, labels: &[(&str, &str)]| crate::metrics::value(&page, name, labels) as u64;
        (
            of(
                "weir_limit_packets_total",
                &[("limit", "packets"), ("verdict", "throttled")],
            ),
            of(
                "weir_decisions_total",
                &[("limit", "credits"), ("verdict", "refused")],
            ),
        )
    };
    assert_eq!(in_metrics(), (100, 2));
    let totals = agent.json(&["status"])["totals"].clone();

    assert_eq!(
        agent.json(&["limits", "--reset-counters"]),
        serde_json::json!({"limits": 2})
    );
    assert_eq!(
        (agent.counts("packets"), agent.counts("credits")),
        ((0, 0), (0, 0))
    );
    assert_eq!(of_source(&agent), None);
    let shown = agent.json(&["show", "10.77.0.7"]);
    let row = &shown["limits"][0];
    assert_eq!(
        (&row["passed_packets"], &row["throttled_packets"]),
        (&0.into(), &0.into())
    );
    assert_eq!(shown["requests"][0]["throttled_requests"], 0);
    // Consumption stays, and the totals are of all packets since the start.
    assert_eq!(
        (&row["remaining"], &shown["requests"][0]["remaining"]),
        (&0.into(), &0.into())
    );
    assert_eq!(agent.json(&["status"])["totals"], totals);

    burst(&network, &[udp_from(7)], 130);
    network.told(&["decide", "--limit", "credits", "--source", "10.77.0.7"]);
    assert_eq!(
        (agent.counts("packets"), agent.counts("credits")),
        ((0, 130), (0, 1))
    );
    assert_eq!(of_source(&agent), Some((0, 130)));
    // A page of metrics is given out again for a moment.
    let deadline = std::time::Instant::now() + Duration::from_secs(300);
    while in_metrics() != (130, 1) {
        assert!(std::time::Instant::now() < deadline, "{:?}", in_metrics());
        thread::sleep(Duration::from_millis(50));
    }
    // Another policy, another agent, another boot.
    network.config(&settings, &limits("ports = [7]\n"));
    network.told(&["reload"]);
    assert_eq!(agent.counts("packets"), (0, 130));
    network.config(&settings, &limits(""));
    network.told(&["reload"]);
    agent.stop(Signal::SIGKILL);
    let agent = network.start_in_boot("a", &config);
    assert_eq!(agent.counts("packets"), (0, 130));
    agent.stop(Signal::SIGTERM);
    network.told(&["detach", "--config", config.to_str().unwrap()]);
    let agent = network.start_in_boot("b", &config);
    assert_eq!(agent.counts("packets"), (0, 130));
    burst(&network, &[udp_from(7)], 5);
    assert_eq!(agent.counts("packets"), (0, 135));
}
