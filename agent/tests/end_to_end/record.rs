//! Recordings: what they have of real packets, and how they begin, continue and end.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use common::packet::build::Frame;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::process::memory;
use testbed::tests;
use testbed::trials::Test;
use weir::daemon::record::RecordFile;
use weir::suggest::{ServiceTraffic, SourceTraffic, Traffic, Transport, Unit, WINDOWS};

use crate::support::{Agent, CLIENT_MAC, Network, SERVER, SERVER_MAC, SERVER6};
use crate::traffic::{PORT, burst, udp_from};
use crate::wire::Sender;

pub const TESTS: &[Test] = tests![
    a_recording_has_the_rates_of_each_source_by_native_xdp,
    a_recording_has_the_rates_of_each_source_by_traffic_control,
    refused_packets_are_recorded,
    a_recording_continues_after_a_restart_and_over_reloads,
    a_killed_agent_loses_what_was_not_written_and_the_next_counts_nothing_twice,
    a_recording_ends_by_itself_and_the_next_one_keeps_it,
    a_recording_that_cannot_be_written_is_refused,
    a_recording_that_cannot_be_written_at_its_end_is_written_once_it_can,
    a_damaged_recording_is_set_aside_and_reported,
    too_short_a_recording_suggests_nothing_and_says_what_is_missing,
    a_flood_of_made_up_sources_keeps_a_recording_within_its_memory,
];

const WIDE: &str = "[[limit]]\nname = \"packets\"\nrate = \"100000/s\"\n";
/// Refuses all but one packet of a source.
const NARROW: &str = "[[limit]]\nname = \"packets\"\nrate = \"1/day\"\n";
/// With gaps shorter than this, packets may be in one window of a second.
const APART: Duration = Duration::from_millis(1_500);

fn tcp(source: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    Frame::between(CLIENT_MAC, SERVER_MAC)
        .ipv4([10, 77, 0, source], SERVER)
        .tcp(40_000, 443, flags, payload)
        .build()
}

fn udp6(prefix: u8, host: u8) -> Vec<u8> {
    let source = [0xfd, 0x77, 0, 0, 0, 0, 0, prefix, 0, 0, 0, 0, 0, 0, 0, host];
    Frame::between(CLIENT_MAC, SERVER_MAC)
        .ipv6(source, SERVER6)
        .udp(5000, PORT, &[0; 22])
        .build()
}

fn file(network: &Network) -> PathBuf {
    network.state().join("recording")
}

fn stop(agent: &Agent<'_>) -> Traffic {
    let ended = agent.json(&["record", "--stop"]);
    assert_eq!(
        (&ended["state"], &ended["lost"]),
        (&"ended".into(), &0.into()),
        "{ended}"
    );
    recorded(&ended)
}

fn recorded(status: &Value) -> Traffic {
    RecordFile::read(status["file"].as_str().unwrap().as_ref())
        .unwrap()
        .traffic()
}

fn service(traffic: &Traffic, protocol: Transport, port: Option<u16>) -> &ServiceTraffic {
    let found = traffic
        .services
        .iter()
        .find(|of| (of.service.protocol, of.service.port) == (protocol, port));
    found.unwrap_or_else(|| panic!("no {protocol:?} {port:?} among {:?}", traffic.services))
}

fn source<'t>(service: &'t ServiceTraffic, address: &str) -> &'t SourceTraffic {
    let found = service
        .named
        .iter()
        .find(|source| source.address.to_string() == address);
    found.unwrap_or_else(|| panic!("no {address} among {:?}", service.named))
}

/// The counts of a unit by window: of all that was sent in `bursts`, each within the time that it took.
fn assert_windows(source: &SourceTraffic, unit: Unit, bursts: &[(u64, Duration)]) {
    let all: u64 = bursts.iter().map(|(count, _)| count).sum();
    let largest = bursts.iter().map(|(count, _)| *count).max().unwrap();
    let counts = source.busiest[unit as usize];
    let name = format!("{} {}", source.address, unit.name());
    assert_eq!(counts[WINDOWS.len() - 1], all, "{name}: {counts:?}");
    assert!(counts.is_sorted(), "{name}: {counts:?}");
    // Windows of one second and a quarter have one of the bursts, if the machine let it be sent in a second.
    if bursts
        .iter()
        .all(|(_, time)| *time <= Duration::from_secs(1))
    {
        assert_eq!(counts[0], largest, "{name}: {counts:?}");
    }
}

fn sent(network: &Network, frames: &[Vec<u8>], count: usize) -> (u64, Duration) {
    let began = Instant::now();
    burst(network, frames, count);
    (count as u64, began.elapsed())
}

/// Sources whose bursts are known, over UDP, TCP and IPv6.
fn rates_of_each_source(agent_config: &str, limits: &str) {
    let network = Network::new();
    let agent = network.start(agent_config, limits);
    agent.json(&["record", "--for", "1h"]);
    let mut bursts = [const { Vec::new() }; 5];
    for round in 1..=2usize {
        for (nth, bursts) in bursts.iter_mut().enumerate() {
            bursts.push(sent(
                &network,
                &[udp_from(10 + nth as u8)],
                round * (20 + 60 * nth),
            ));
        }
        let opened = sent(
            &network,
            &[
                tcp(30, 2, b""),
                tcp(30, 16, b""),
                tcp(30, 24, b"GET / HTTP/1.1\r\n\r\n"),
            ],
            30,
        );
        assert_eq!(opened.0, 30);
        sent(&network, &[udp6(7, 1), udp6(7, 2)], 40);
        thread::sleep(APART);
    }
    let traffic = stop(&agent);
    let udp = service(&traffic, Transport::Udp, Some(PORT));
    let length = udp_from(1).len() as u64;
    for (nth, bursts) in bursts.iter().enumerate() {
        let source = source(udp, &format!("10.77.0.{}", 10 + nth));
        assert_windows(source, Unit::Packets, bursts);
        let bytes: Vec<_> = bursts
            .iter()
            .map(|(count, time)| (count * length, *time))
            .collect();
        assert_windows(source, Unit::Bytes, &bytes);
        assert_eq!(source.deviation, 0.0, "all packets are of one length");
    }
    // Each source is one of the distribution, and IPv6 is counted by /64.
    assert_eq!(udp.busiest[Unit::Packets as usize][0].sources(), 6);
    assert_eq!(source(udp, "fd77:0:0:7::").packets, 80);
    let web = service(&traffic, Transport::Tcp, Some(443));
    let client = source(web, "10.77.0.30");
    assert_eq!((client.packets, client.connections), (60, 20));
    assert_eq!(
        client.busiest[Unit::Connections as usize][WINDOWS.len() - 1],
        20
    );
    assert_eq!(
        client.busiest[Unit::Requests as usize][WINDOWS.len() - 1],
        20
    );
    assert_eq!(service(&traffic, Transport::Tcp, None).packets, 60);
    let whole: u64 = bursts.iter().flatten().map(|(count, _)| count).sum::<u64>() + 80;
    assert_eq!(service(&traffic, Transport::Udp, None).packets, whole);
}

fn a_recording_has_the_rates_of_each_source_by_native_xdp() {
    rates_of_each_source("mode = \"observe\"", WIDE);
}

fn a_recording_has_the_rates_of_each_source_by_traffic_control() {
    rates_of_each_source("mode = \"observe\"\nattach = \"tc\"", WIDE);
}

fn refused_packets_are_recorded() {
    rates_of_each_source("mode = \"enforce\"", NARROW);
}

fn a_recording_continues_after_a_restart_and_over_reloads() {
    let network = Network::new();
    let config = network.config("", WIDE);
    let agent = network.start_file(&config, &[]);
    agent.json(&["record", "--for", "1h"]);
    burst(&network, &[udp_from(10)], 30);
    // Another policy has other programs, with counters of their own.
    network.config("", &WIDE.replace("100000/s", "90000/s"));
    network.told(&["reload"]);
    burst(&network, &[udp_from(10)], 40);
    agent.stop(Signal::SIGTERM);
    // Nothing counts while no agent runs.
    burst(&network, &[udp_from(10)], 50);
    thread::sleep(APART);
    let agent = network.start_file(&config, &[]);
    let status = agent.json(&["record", "--status"]);
    assert_eq!(
        (&status["state"], status["gaps"].as_array().unwrap().len()),
        (&"recording".into(), 1),
        "{status}"
    );
    burst(&network, &[udp_from(10), udp_from(11)], 40);
    // A killed agent loses what was not written, and no more.
    agent.wait_for("packets of the last part", |_| {
        network
            .command(&["record", "--status", "--json"])
            .stdout
            .windows(14)
            .any(|part| part == b"\"packets\": 110")
    });
    let traffic = stop(&agent);
    let udp = service(&traffic, Transport::Udp, Some(PORT));
    assert_eq!(
        (
            source(udp, "10.77.0.10").packets,
            source(udp, "10.77.0.11").packets
        ),
        (90, 20)
    );
    assert_eq!(
        udp.busiest[Unit::Packets as usize][0].sources(),
        2,
        "a source of both times is one source"
    );
    // An ended recording stays ended.
    agent.stop(Signal::SIGTERM);
    let agent = network.start_file(&config, &[]);
    assert_eq!(agent.json(&["record", "--status"])["state"], "ended");
}

fn a_killed_agent_loses_what_was_not_written_and_the_next_counts_nothing_twice() {
    let network = Network::new();
    let config = network.config("", WIDE);
    let agent = network.start_file(&config, &[]);
    agent.json(&["record", "--for", "1h"]);
    burst(&network, &[udp_from(10)], 30);
    agent.stop(Signal::SIGKILL);
    // The programs stay, and count on.
    burst(&network, &[udp_from(10)], 50);
    thread::sleep(APART);
    let agent = network.start_file(&config, &[]);
    let status = agent.json(&["record", "--status"]);
    assert_eq!(
        (&status["state"], &status["packets"]),
        (&"recording".into(), &0.into()),
        "{status}"
    );
    // From the last write, which was the first.
    let gaps = status["gaps"].as_array().unwrap();
    assert_eq!(
        (gaps.len(), &gaps[0]["from"]),
        (1, &status["started"]),
        "{status}"
    );
    burst(&network, &[udp_from(10)], 20);
    assert_eq!(
        source(
            service(&stop(&agent), Transport::Udp, Some(PORT)),
            "10.77.0.10"
        )
        .packets,
        20
    );
}

fn a_recording_ends_by_itself_and_the_next_one_keeps_it() {
    let network = Network::new();
    let agent = network.start("", WIDE);
    assert_eq!(agent.json(&["record", "--status"])["state"], "none");
    let began = Instant::now();
    agent.json(&["record", "--for", "1s"]);
    let running = network.command(&["record", "--for", "1h"]);
    if began.elapsed() < Duration::from_secs(1) {
        let said = String::from_utf8_lossy(&running.stderr).into_owned();
        assert!(
            running.status.code() == Some(1) && said.contains("agent record --stop"),
            "{said}"
        );
    }
    agent.wait_for("the end of the recording", |_| {
        String::from_utf8_lossy(&network.command(&["record", "--status", "--json"]).stdout)
            .contains("\"ended\"")
    });
    let first = std::fs::read(file(&network)).unwrap();
    agent.json(&["record", "--for", "1h"]);
    assert_eq!(
        std::fs::read(network.state().join("recording.previous")).unwrap(),
        first
    );
    agent.json(&["record", "--stop"]);
    let output = network.command(&["record", "--stop"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("no recording is running"));
    let output = network.command(&["record", "--for", "32d"]);
    assert!(
        String::from_utf8_lossy(&output.stderr)
            .contains("invalid --for 32d: a recording takes from 1s to 31d")
    );
}

fn a_recording_that_cannot_be_written_is_refused() {
    let network = Network::new();
    let agent = network.start("", WIDE);
    std::fs::rename(network.state(), network.state().with_extension("moved")).unwrap();
    std::fs::write(network.state(), b"").unwrap();
    let output = network.command(&["record", "--for", "1h"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("nothing is recorded") && said.contains(network.state().to_str().unwrap()),
        "{said}"
    );
    assert_eq!(agent.json(&["record", "--status"])["state"], "none");
}

fn a_recording_that_cannot_be_written_at_its_end_is_written_once_it_can() {
    let network = Network::new();
    let agent = network.start("", WIDE);
    agent.json(&["record", "--for", "1h"]);
    burst(&network, &[udp_from(10)], 30);
    let moved = network.state().with_extension("moved");
    // At once, since the agent makes a directory that it misses.
    std::fs::write(&moved, b"").unwrap();
    let exchange = || {
        let flags = RenameFlags::RENAME_EXCHANGE;
        renameat2(AT_FDCWD, &network.state(), AT_FDCWD, &moved, flags).unwrap();
    };
    exchange();
    for arguments in [
        ["record", "--stop"].as_slice(),
        &["record", "--stop"],
        &["record", "--for", "1h"],
    ] {
        let output = network.command(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(1) && said.contains("is not written yet"),
            "{arguments:?}: {said}"
        );
        assert!(
            said.contains("recording") && said.contains("agent record --stop"),
            "{said}"
        );
    }
    let notes = agent.json(&["status"])["notes"].to_string();
    assert!(notes.contains("the recording is not written"), "{notes}");
    // It has ended.
    burst(&network, &[udp_from(10)], 40);
    exchange();
    // Unless the agent's own attempt came first.
    network.command(&["record", "--stop"]);
    let status = agent.json(&["record", "--status"]);
    assert_eq!(
        (&status["state"], &status["error"]),
        (&"ended".into(), &Value::Null),
        "{status}"
    );
    assert_eq!(
        source(
            service(&recorded(&status), Transport::Udp, Some(PORT)),
            "10.77.0.10"
        )
        .packets,
        30
    );
    let notes = agent.json(&["status"])["notes"].to_string();
    assert!(!notes.contains("not written"), "{notes}");
    agent.json(&["record", "--for", "1h"]);
}

fn a_damaged_recording_is_set_aside_and_reported() {
    let network = Network::new();
    let config = network.config("", WIDE);
    let agent = network.start_file(&config, &[]);
    agent.json(&["record", "--for", "1h"]);
    agent.stop(Signal::SIGTERM);
    let mut bytes = std::fs::read(file(&network)).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(file(&network), &bytes).unwrap();
    let output = network.command(&["suggest", "--from", file(&network).to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(1) && said.contains("its checksum is wrong"),
        "{said}"
    );
    let agent = network.start_file(&config, &[]);
    let notes = agent.json(&["status"])["notes"].to_string();
    assert!(
        notes.contains("its checksum is wrong") && notes.contains("recording.damaged"),
        "{notes}"
    );
    assert!(
        network.state().join("recording.damaged").exists()
            && network.state().join("state").exists()
    );
    assert_eq!(agent.json(&["record", "--status"])["state"], "none");
}

fn too_short_a_recording_suggests_nothing_and_says_what_is_missing() {
    let network = Network::new();
    let agent = network.start("", WIDE);
    let output = network.command(&["suggest"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(2) && said.contains("agent record starts one"),
        "{said}"
    );
    agent.json(&["record"]);
    burst(&network, &[udp_from(10)], 30);
    stop(&agent);
    let output = network.command(&["suggest"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(1) && said.contains("at least 10 min required"),
        "{said}"
    );
}

/// The CPU time of a recording under a flood is measured by `cargo xtask bench costs`.
fn a_flood_of_made_up_sources_keeps_a_recording_within_its_memory() {
    const ROUNDS: u32 = 20;
    const PACKETS: u32 = 10_000;
    let network = Network::new();
    let agent = network.start("max_sources = 10000", WIDE);
    let before = memory(agent.process(), "RssAnon");
    agent.json(&["record", "--for", "1h"]);
    let mut frame = udp_from(1);
    let mut number = 0x0b00_0000u32;
    let polite = [udp_from(10), udp_from(11)];
    let mut most = 0;
    for _ in 0..ROUNDS {
        network.in_client(|| {
            let sender = Sender::new();
            for _ in 0..PACKETS / 100 {
                let frames: Vec<_> = (0..100)
                    .map(|_| {
                        number += 1;
                        Frame::set_ipv4_source(&mut frame, number.to_be_bytes());
                        frame.clone()
                    })
                    .collect();
                sender.send_all(&frames);
            }
            sender.send_all(&polite);
        });
        most = most.max(memory(agent.process(), "RssAnon"));
    }
    // Of a million sources, all of which a recording without a bound would keep, it samples one in some.
    agent.wait_for("a smaller sample", |_| {
        agent.json(&["record", "--status"])["one_in"].as_u64() > Some(1)
    });
    let grown = most
        .max(memory(agent.process(), "RssAnon"))
        .saturating_sub(before);
    assert!(grown <= 20 << 20, "{grown} bytes");
    let ended = agent.json(&["record", "--stop"]);
    let written = std::fs::metadata(file(&network)).unwrap().len();
    assert!(
        ended["sampled_seconds"].as_f64() > Some(0.0) && written < 4 << 20,
        "{written} bytes: {ended}"
    );
    assert!(
        recorded(&ended)
            .services
            .iter()
            .all(|service| service.packets > 0)
    );
}
