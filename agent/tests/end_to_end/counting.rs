//! Counters go on from agent to agent: nothing is lost and nothing counted twice, whenever one is killed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::{Network, StopWhenDropped, is_virtual};
use crate::traffic::{PORT, burst, udp_from};
use crate::wire::Sender;

pub const TESTS: &[(&str, fn())] = &[
    ("kills_under_traffic_neither_lose_nor_double_a_count", kills),
    ("counters_go_on_over_reloads_restarts_and_failed_reloads", restarts),
];

const SMALL: &str = "max_sources = 2000";
const LIMIT: &str = "[[limit]]\nname = \"packets\"\nrate = \"1000/s\"\nburst = 500\n";
const OTHER: &str = "[[limit]]\nname = \"other\"\nrate = \"9/s\"\nports = [1234]\n";

fn kills() {
    let network = Network::new();
    let configs = [LIMIT.to_owned(), format!("{OTHER}{LIMIT}"), format!("{LIMIT}tiers = [\"100000/h\"]\n{OTHER}")];
    let receiver = network.receiver(PORT);
    let agent = network.start(SMALL, &configs[0]);
    let stop = AtomicBool::new(false);
    let rounds = if is_virtual() { 8 } else { 30 };
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
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        for nth in 0..rounds {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let config = network.config(SMALL, &configs[nth % 3]);
            if nth % 2 == 0 {
                // While it starts.
                let agent = network.spawn_agent(&config, &[]);
                thread::sleep(Duration::from_micros(random >> 44));
                agent.stop(Signal::SIGKILL);
            } else {
                // While it reloads.
                let agent = network.start_file(&config, &[]);
                network.config(SMALL, &configs[(nth + 1) % 3]);
                agent.signal(Signal::SIGHUP);
                thread::sleep(Duration::from_micros(random >> 46));
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
    eprintln!("{rounds} kills: of {sent} packets {passed} counted as passed, {refused} as refused; {total}");
    assert_eq!(passed + refused, sent, "every packet is counted once");
    assert!(passed > 0 && refused > 0);
    // Generations that are no longer in effect leave nothing behind.
    let pinned = std::fs::read_dir(network.pins().join("counters")).unwrap().count();
    assert_eq!(pinned, 4, "one generation of three pins, and the base");
}

fn restarts() {
    let network = Network::new();
    let agent = network.start(SMALL, &LIMIT.replace("1000/s", "1/h"));
    burst(&network, &[udp_from(7)], 600);
    assert_eq!(agent.counts("packets"), (500, 100));
    // Reloads with other rows, and one that fails.
    network.config(SMALL, &format!("{OTHER}{}", LIMIT.replace("1000/s", "1/h")));
    network.told(&["reload"]);
    burst(&network, &[udp_from(7)], 50);
    assert_eq!(agent.counts("packets"), (500, 150));
    network.config(&format!("{SMALL}\nattach = \"native\""), &LIMIT.replace("burst = 500", "burst = 0"));
    assert!(!network.command(&["reload"]).status.success());
    assert_eq!(agent.counts("packets"), (500, 150));
    // Agents that end and agents that are killed.
    agent.stop(Signal::SIGTERM);
    for (nth, signal) in [Signal::SIGTERM, Signal::SIGKILL, Signal::SIGKILL].into_iter().enumerate() {
        network.config(SMALL, &format!("{OTHER}{}", LIMIT.replace("1000/s", "1/h")));
        let agent = network.start_file(&network.folder.path().join("limits.toml"), &[]);
        assert_eq!(agent.counts("packets"), (500, 150 + 20 * nth as u64));
        burst(&network, &[udp_from(7)], 10);
        agent.stop(signal);
        // While no agent runs.
        burst(&network, &[udp_from(7)], 10);
        if nth == 2 {
            network.told(&["detach", "--config", network.folder.path().join("limits.toml").to_str().unwrap()]);
            assert!(!network.has_pins());
        }
    }
}
