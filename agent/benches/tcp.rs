//! How near TCP comes to a limit on bytes: Weir on each hook and what a user would pick instead, by burst, flows and round
//! trip. `cargo xtask tcp` runs it.

use std::time::Duration;

use testbed::flows::{Flows, From};
use testbed::network::{self, Network, run};

const RATE: f64 = 20e6;
/// (Flows, milliseconds that an acknowledgement waits).
const CASES: [(usize, u64); 4] = [(1, 0), (10, 0), (1, 20), (10, 20)];
/// 5 MB is the least that `check` accepts, 20 MB the burst of a limit that names none.
const BURSTS: [&str; 4] = ["64KiB", "256KiB", "5MB", "20MB"];

/// Bursts that `check` accepts without a warning: with them, TCP reaches the rate.
const SUFFICIENT: [&str; 2] = ["5MB", "20MB"];
/// So much of the rate counts as reached, in every case.
const REACHED: f64 = 0.85;

/// The limiter of the flows.
#[derive(Clone, Copy)]
enum Rival {
    /// Weir: the agent's options, those of the limit, the sender.
    Weir(&'static str, &'static str, From),
    /// Commands of tc or nft in the server's namespace, and the sender.
    Other(&'static [&'static str], From),
}

fn main() {
    if let Some(reason) = network::obstacle() {
        eprintln!("skipped: {reason}");
        return;
    }
    println!(
        "| limit of 20 MB/s | burst | 1 flow, 0.1 ms | 10 flows, 0.1 ms | 1 flow, 20 ms | 10 flows, 20 ms |"
    );
    println!("|---|---|---|---|---|---|");
    let hooks = [
        (
            "Weir, native XDP",
            Rival::Weir("attach = \"native\"", "", From::Client),
        ),
        (
            "Weir, generic XDP",
            Rival::Weir("attach = \"generic\"", "", From::Client),
        ),
        (
            "Weir, TC ingress",
            Rival::Weir("attach = \"tc\"", "", From::Client),
        ),
        (
            "Weir, TC egress",
            Rival::Weir("", "direction = \"egress\"", From::Server),
        ),
    ];
    let mut missed = Vec::new();
    for (name, rival) in hooks {
        for burst in BURSTS {
            let least = row(name, burst, rival);
            if SUFFICIENT.contains(&burst) && least < REACHED {
                missed.push(format!("{name}, {burst}: {:.0} %", 100.0 * least));
            }
        }
    }
    let nft = |burst: &str| -> &'static [&'static str] {
        let rule = format!(
            "nft add rule netdev t c ip protocol tcp limit rate over 19531 kbytes/second burst {burst} kbytes drop"
        );
        let chain =
            "nft add chain netdev t c { type filter hook ingress device weir0 priority 0 ; }";
        Vec::leak(vec!["nft add table netdev t", chain, String::leak(rule)])
    };
    for (burst, kilobytes) in [("256KiB", "256"), ("5MB", "4883")] {
        row(
            "nftables `limit`, ingress",
            burst,
            Rival::Other(nft(kilobytes), From::Client),
        );
    }
    let tbf = "tc qdisc add dev weir0 root tbf rate 160mbit burst 256kb latency 50ms";
    row(
        "`tbf`, queue of 50 ms",
        "256KiB",
        Rival::Other(Vec::leak(vec![tbf]), From::Server),
    );
    let htb = [
        "tc qdisc add dev weir0 root handle 1: htb default 1",
        "tc class add dev weir0 parent 1: classid 1:1 htb rate 160mbit burst 256kb",
    ];
    row(
        "`htb`, queue of 1,000 packets",
        "256KiB",
        Rival::Other(Vec::leak(htb.to_vec()), From::Server),
    );
    if !missed.is_empty() {
        eprintln!("MISSED: {}", missed.join("; "));
        std::process::exit(1);
    }
}

/// Prints a row, and returns the least of its rates, as a part of the limit's.
fn row(name: &str, burst: &str, rival: Rival) -> f64 {
    let parts = CASES.map(|(count, delay)| {
        let network = Network::new();
        let (from, _agent) = match rival {
            Rival::Weir(agent, limit, from) => {
                let limit = format!(
                    "[[limit]]\nname = \"tcp\"\nprotocol = \"tcp\"\nunit = \"bytes\"\nrate = \"20MB/s\"\nburst = {burst:?}\n{limit}\n"
                );
                (from, Some(network.start(agent, &limit)))
            }
            Rival::Other(commands, from) => {
                for command in commands {
                    let mut words = command.split(' ');
                    let program = words.next().unwrap_or_default();
                    network.in_server(|| run(program, &words.collect::<Vec<_>>()));
                }
                (from, None)
            }
        };
        let flows = Flows {
            from,
            count,
            delay: Duration::from_millis(delay),
            // The longest burst is a second of the rate.
            warm_up: Duration::from_millis(1_200),
            time: Duration::from_secs(3),
        };
        flows.measure(&network).rate_on_wire() / RATE
    });
    let cells = parts.map(|part| format!("{:.0} %", 100.0 * part));
    println!("| {name} | {burst} | {} |", cells.join(" | "));
    parts.into_iter().fold(f64::MAX, f64::min)
}
