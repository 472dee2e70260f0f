//! A reload that changes classes, multipliers, exempt addresses or actions replaces rules and prefixes, and no program.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use bpf::link;
use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::tests;
use testbed::trials::{Test, is_long};

use crate::support::{Agent, Network, StopWhenDropped};
use crate::traffic::{PORT, burst, udp_from};
use crate::wire::Sender;

pub const TESTS: &[Test] = tests![
    classes_multipliers_and_exempt_addresses_change_without_loading_programs,
    an_action_changes_without_loading_programs,
    changes_in_place_evaluate_each_packet_by_one_policy,
    an_agent_killed_while_it_changes_in_place_leaves_one_policy,
    a_trial_in_place_is_rolled_back_in_place,
    a_change_that_does_not_fit_in_place_is_loaded,
];

const AGENT: &str = "max_sources = 2000";
/// What it allows stays within a test.
const LIMIT: &str = "[[limit]]\nname = \"packets\"\nrate = \"1/day\"\nburst = 10\n";
const OUT: &str = "[[limit]]\nname = \"out\"\ndirection = \"egress\"\nrate = \"1000000/s\"\n";

fn class(name: &str, source: &str, multiplier: &str) -> String {
    format!("[[class]]\nname = \"{name}\"\nsources = [\"{source}\"]\n{multiplier}\n")
}

/// The numbers of the programs, links and shared maps that the agent has pinned.
fn programs(network: &Network) -> BTreeMap<PathBuf, u32> {
    let pins = std::fs::read_dir(network.pins())
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let number = |pin: PathBuf| Some((link::program_id(link::open(&pin).ok()?.as_fd()).ok()?, pin));
    let numbers: BTreeMap<_, _> = pins
        .filter_map(number)
        .map(|(number, pin)| (pin, number))
        .collect();
    assert!(numbers.len() > 2, "{numbers:?}");
    numbers
}

/// Reloads, and returns whether the same programs are attached as before.
fn reload_in_place(network: &Network, agent: &Agent<'_>, agent_table: &str, rest: &str) -> bool {
    let before = programs(network);
    network.config(agent_table, rest);
    let answer = agent.json(&["reload"]);
    assert_eq!(
        (&answer["ok"], &answer["notes"]),
        (&true.into(), &Value::from(Vec::<u8>::new())),
        "{answer}"
    );
    programs(network) == before
}

fn classes_multipliers_and_exempt_addresses_change_without_loading_programs() {
    let network = Network::new();
    let payer =
        |source: &str, factor: u32| class("payer", source, &format!("multiplier = {factor}"));
    let agent = network.start(AGENT, &format!("{LIMIT}{OUT}{}", payer("10.77.0.7", 2)));
    let receiver = network.receiver(PORT);
    let passed = |last: u8, sent: usize| {
        burst(&network, &[udp_from(last)], sent);
        receiver.counts()[usize::from(last)]
    };
    assert_eq!((passed(7, 30), passed(8, 30)), (20, 10));
    // Another factor: the state stays as large a share of the allowance as it was.
    let change = |agent_table: &str, rest: &str| {
        assert!(
            reload_in_place(
                &network,
                &agent,
                agent_table,
                &format!("{LIMIT}{OUT}{rest}")
            ),
            "{rest}"
        );
    };
    change(AGENT, &payer("10.77.0.9", 3));
    assert_eq!(
        (passed(9, 40), passed(8, 5)),
        (30, 0),
        "another source, another factor, and the state of others stays"
    );
    assert_eq!(agent.json(&["show", "10.77.0.9"])["class"], "payer");
    assert_eq!(agent.json(&["show", "10.77.0.7"])["class"], "default");
    // More prefixes than before, IPv6 among them, and a class that has no limits.
    let mut many = (0..100).fold(String::new(), |mut text, n| {
        let _ = write!(text, "\"192.0.2.{n}\",\"2001:db8:{n:x}::/48\",");
        text
    });
    many.push_str("\"10.77.0.10\"");
    change(
        AGENT,
        &format!(
            "[[class]]\nname = \"free\"\nsources = [{many}]\nunlimited = true\n{}",
            payer("10.77.0.9", 3)
        ),
    );
    assert_eq!(passed(10, 50), 50);
    // Exempt, and no longer.
    let exempt = format!("{AGENT}\nnever_limit = [\"10.77.0.8\"]");
    change(&exempt, &payer("10.77.0.9", 3));
    assert_eq!((passed(8, 50), passed(10, 50)), (50, 10));
    change(AGENT, &payer("10.77.0.9", 3));
    assert_eq!(passed(8, 50), 0, "its state was neither charged nor reset");
    // Counters go on; what was bypassed is not the limit's.
    let sums = [(20 + 10 + 30 + 10, 10 + 20 + 10 + 5 + 40 + 50)];
    assert_eq!([agent.counts("packets")], sums);
    assert_eq!(agent.json(&["status"])["last_reload"]["ok"], true);
}

fn an_action_changes_without_loading_programs() {
    let network = Network::new();
    let agent = network.start(AGENT, LIMIT);
    let receiver = network.receiver(PORT);
    burst(&network, &[udp_from(7)], 15);
    assert!(reload_in_place(
        &network,
        &agent,
        AGENT,
        &format!("{LIMIT}action = \"observe\"\n")
    ));
    burst(&network, &[udp_from(7)], 15);
    assert_eq!(receiver.counts()[7], 10 + 15);
    assert!(reload_in_place(&network, &agent, AGENT, LIMIT));
    burst(&network, &[udp_from(7)], 15);
    assert_eq!(receiver.counts()[7], 0);
    assert_eq!(
        agent.limit("packets")["would_throttle"]["packets"],
        15,
        "{}",
        agent.limit("packets")
    );
}

/// Two policies whose rows of multipliers are in another order: a row of one with a prefix of the other lets `HIGH` pass
/// ten packets instead of all.
const HIGH: u8 = 6;
const LOW: u8 = 20;

fn swapped() -> [String; 2] {
    let high = class("high", "10.77.0.6", "multiplier = 1000000");
    let low = class("low", "10.88.0.0/16", "multiplier = 0.5");
    [format!("{LIMIT}{high}{low}"), format!("{LIMIT}{low}{high}")]
}

/// Runs `work` while both sources send; returns how many packets each sent, and how many of each arrived.
fn under_traffic(network: &Network, work: impl FnOnce()) -> (u64, [u64; 2]) {
    let receiver = network.receiver(PORT);
    let stop = AtomicBool::new(false);
    let (counts, sent) = thread::scope(|scope| {
        let receiving = scope.spawn(|| receiver.counts_until(&stop));
        let sending = scope.spawn(|| {
            network.in_client(|| {
                let (sender, frames) = (Sender::new(), [HIGH, LOW].map(udp_from));
                let mut rounds = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    sender.send_all(&frames);
                    rounds += 1;
                    thread::sleep(Duration::from_micros(500));
                }
                rounds
            })
        });
        let stopping = StopWhenDropped(&stop);
        work();
        drop(stopping);
        let sent = sending.join().unwrap();
        (receiving.join().unwrap(), sent)
    });
    let late = receiver.counts();
    (
        sent,
        [HIGH, LOW].map(|last| counts[usize::from(last)] + late[usize::from(last)]),
    )
}

fn changes_in_place_evaluate_each_packet_by_one_policy() {
    let network = Network::new();
    let policies = swapped();
    let agent = network.start(AGENT, &policies[0]);
    // What the agent logs of them fits into a pipe that is read at the end.
    let reloads = if is_long() { 300 } else { 100 };
    let (sent, passed) = under_traffic(&network, || {
        let before = programs(&network);
        for nth in 1..=reloads {
            network.config(AGENT, &policies[nth % 2]);
            assert_eq!(agent.json(&["reload"])["ok"], true);
        }
        assert_eq!(programs(&network), before);
    });
    eprintln!("{reloads} changes in place, {sent} packets of each source: {passed:?} passed");
    assert_eq!(passed, [sent, 10]);
    assert_eq!(agent.counts("packets"), (sent + 10, sent - 10));
}

fn an_agent_killed_while_it_changes_in_place_leaves_one_policy() {
    let network = Network::new();
    let policies = swapped();
    let mut agent = Some(network.start(AGENT, &policies[0]));
    let (sent, passed) = under_traffic(&network, || {
        for nth in 0..if is_long() { 40 } else { 8 } {
            let path = network.config(AGENT, &policies[nth % 2]);
            let running = agent.take().unwrap();
            // A few milliseconds are the whole change.
            running.signal(Signal::SIGHUP);
            thread::sleep(Duration::from_millis(nth as u64 % 8 * 3));
            drop(running.stop(Signal::SIGKILL));
            agent = Some(network.start_file(&path, &[]));
        }
    });
    eprintln!("{sent} packets of each source: {passed:?} passed");
    assert_eq!(passed, [sent, 10]);
}

fn a_trial_in_place_is_rolled_back_in_place() {
    let network = Network::new();
    let agent = network.start(
        AGENT,
        &format!("{LIMIT}{}", class("some", "10.77.0.7", "multiplier = 2")),
    );
    let before = programs(&network);
    let next = network.folder.path().join("next.toml");
    let text = std::fs::read_to_string(network.folder.path().join("limits.toml")).unwrap();
    std::fs::write(&next, text.replace("10.77.0.7", "10.77.0.8")).unwrap();
    agent.json(&["try", next.to_str().unwrap()]);
    assert_eq!(agent.json(&["show", "10.77.0.8"])["class"], "some");
    agent.json(&["revert"]);
    assert_eq!(agent.json(&["show", "10.77.0.8"])["class"], "default");
    assert_eq!(programs(&network), before);
    let receiver = network.receiver(PORT);
    burst(&network, &[udp_from(7), udp_from(8)], 60);
    let counts = receiver.counts();
    assert_eq!((counts[7], counts[8]), (20, 10));
}

fn a_change_that_does_not_fit_in_place_is_loaded() {
    let network = Network::new();
    let one = class("one", "10.77.0.7", "multiplier = 2");
    let agent = network.start(AGENT, &format!("{LIMIT}{one}"));
    let receiver = network.receiver(PORT);
    burst(&network, &[udp_from(7), udp_from(8)], 60);
    let is_in_place = |rest: &str| reload_in_place(&network, &agent, AGENT, rest);
    // Each needs more than the maps of the programs before have, or another program.
    let prefixes = (0..20_000u32).fold(String::new(), |mut text, n| {
        let _ = write!(
            text,
            "\"{}\",",
            std::net::Ipv4Addr::from(0x0b00_0000 + n * 256)
        );
        text
    });
    let large = format!(
        "[[class]]\nname = \"large\"\nsources = [{prefixes}\"10.77.0.9\"]\nunlimited = true\n"
    );
    assert!(!is_in_place(&format!("{LIMIT}{one}{large}")));
    let factors = (3..9).fold(String::new(), |text, n| {
        text + &class(
            &format!("x{n}"),
            &format!("10.99.0.{n}"),
            &format!("multiplier = {n}"),
        )
    });
    assert!(!is_in_place(&format!("{LIMIT}{one}{factors}")));
    assert!(!is_in_place(&format!(
        "{LIMIT}{one}{factors}[[limit]]\nname = \"more\"\nrate = \"1000000/s\"\n"
    )));
    assert!(!is_in_place(&format!(
        "{}{one}",
        LIMIT.replace("burst = 10", "burst = 20")
    )));
    assert!(!is_in_place(&format!("{LIMIT}{one}")));
    // And what fits does so again.
    assert!(is_in_place(&format!(
        "{LIMIT}{}",
        one.replace("10.77.0.7", "10.77.0.9")
    )));
    burst(&network, &[udp_from(7), udp_from(8), udp_from(9)], 90);
    let counts = receiver.counts();
    assert_eq!(
        (counts[7], counts[8], counts[9]),
        (20, 10, 20),
        "and no state was lost"
    );
}
