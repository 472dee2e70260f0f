//! A flood of made-up sources, and who is heard all the same.

use std::time::Instant;

use common::packet::build::Frame;
use testbed::tests;
use testbed::trials::Test;

use crate::support::{CLIENT_MAC, Network, SERVER, SERVER_MAC};
use crate::traffic::PORT;
use crate::wire::Sender;

pub const TESTS: &[Test] = tests![
    half_a_million_made_up_sources_evict_no_busy_source,
    half_a_million_made_up_sources_evict_no_slow_state,
    a_table_full_of_made_up_requests_still_limits_new_sources,
];

const MADE_UP: u32 = 500_000;
/// So many are sent in one call.
const BATCH: usize = 100;
const POLITE: usize = 50;
/// The last octet of the first polite source: below it are the network's own.
const FIRST: usize = 10;

fn udp(source: [u8; 4]) -> Vec<u8> {
    to_port(source, PORT)
}

fn to_port(source: [u8; 4], port: u16) -> Vec<u8> {
    Frame::between(CLIENT_MAC, SERVER_MAC)
        .ipv4(source, SERVER)
        .udp(5000, port, &[0; 22])
        .build()
}

/// Fifty polite sources, a greedy one, and a flood of sources that come once each. `rate` a second, `burst` at once; the
/// polite send `polite` each, spread over the flood.
fn flood(limit: &str, rate: f64, burst: f64, polite: usize) {
    let network = Network::new();
    let agent = network.start("max_sources = 10000", limit);
    let receiver = network.receiver(PORT);
    // The receiver's buffer would be full of them, and the last octets of some are those of the polite.
    let mut made_up = to_port([11, 0, 0, 0], PORT + 1);
    let greedy = udp([10, 77, 0, 200]);
    let polite_frames: Vec<_> = (FIRST..FIRST + POLITE)
        .map(|last| udp([10, 77, 0, last as u8]))
        .collect();
    // One round: a packet of each polite source, and the share of the flood and of the greedy one that goes with it.
    let share = MADE_UP as usize / polite;
    let (start, sent_greedy) = network.in_client(|| {
        let sender = Sender::new();
        let mut sent_greedy = 0u64;
        let mut number = 0x0b00_0000u32;
        let start = Instant::now();
        for _ in 0..polite {
            sender.send_all(&polite_frames);
            for nth in (0..share).step_by(BATCH) {
                let frames: Vec<_> = (nth..share.min(nth + BATCH))
                    .map(|_| {
                        number += 1;
                        Frame::set_ipv4_source(&mut made_up, number.to_be_bytes());
                        made_up.clone()
                    })
                    .chain(std::iter::repeat_n(greedy.clone(), BATCH / 4))
                    .collect();
                sender.send_all(&frames);
                sent_greedy += BATCH as u64 / 4;
            }
        }
        (start, sent_greedy)
    });
    let time = start.elapsed();
    let flood_rate = f64::from(MADE_UP) / time.as_secs_f64();
    println!("{flood_rate:.0} made-up sources a second");
    let counts = receiver.counts();
    let heard: u64 = counts[FIRST..FIRST + POLITE].iter().sum();
    let sent = (POLITE * polite) as u64;
    let greedy_heard = counts[200] as f64;
    let allowed = burst + rate * time.as_secs_f64();
    assert!(
        sent_greedy as f64 > 3.0 * allowed,
        "the greedy one was not greedy"
    );
    assert!(
        heard * 100 > sent * 99,
        "of the polite, {heard} of {sent} were heard"
    );
    assert!(
        greedy_heard <= 1.1 * allowed,
        "the greedy one got {greedy_heard}, its limit is {allowed}"
    );
    let status = agent.json(&["status"]);
    println!(
        "the polite: {heard} of {sent}; the greedy one: {greedy_heard} of {allowed:.0}; {}",
        status["sources"]
    );
}

fn half_a_million_made_up_sources_evict_no_busy_source() {
    // A polite source sends 100 in the time of the flood, its burst alone.
    flood(
        "[[limit]]\nname = \"packets\"\nrate = \"100/s\"\nburst = 200\n",
        100.0,
        200.0,
        100,
    );
}

fn half_a_million_made_up_sources_evict_no_slow_state() {
    flood(
        "[[limit]]\nname = \"packets\"\nrate = \"60/h\"\n",
        60.0 / 3_600.0,
        60.0,
        50,
    );
}

/// A packet limit and a slow request limit on one key, and four thousand made-up requests in a table for a thousand sources.
fn a_table_full_of_made_up_requests_still_limits_new_sources() {
    let network = Network::new();
    let agent = network.start(
        "max_sources = 1000",
        "[[limit]]\nname = \"packets\"\nrate = \"100/h\"\nburst = 200\n\
         [[limit]]\nname = \"requests\"\nunit = \"requests\"\nprotocol = \"tcp\"\nrate = \"10/h\"\n",
    );
    let receiver = network.receiver(PORT);
    const GREEDY: usize = 10;
    let greedy: Vec<_> = (0..GREEDY)
        .map(|nth| udp([10, 77, 0, 200 + nth as u8]))
        .collect();
    let polite: Vec<_> = (FIRST..FIRST + POLITE)
        .map(|last| udp([10, 77, 0, last as u8]))
        .collect();
    network.in_client(|| {
        let sender = Sender::new();
        let made_up: Vec<_> = (0..4_000u32)
            .map(|nth| {
                Frame::between(CLIENT_MAC, SERVER_MAC)
                    .ipv4((0x0b00_0000 + nth).to_be_bytes(), SERVER)
                    .tcp(5000, 80, 16, b"GET / HTTP/1.1\r\n\r\n")
                    .build()
            })
            .collect();
        made_up
            .chunks(BATCH)
            .for_each(|frames| sender.send_all(frames));
        for _ in 0..100 {
            sender.send_all(&polite);
            for _ in 0..30 {
                sender.send_all(&greedy);
            }
        }
    });
    let counts = receiver.counts();
    let heard: u64 = counts[FIRST..FIRST + POLITE].iter().sum();
    // The burst of each; nothing comes back in the time that a test takes.
    let allowed = 200.0;
    let most = counts[200..200 + GREEDY].iter().copied().max().unwrap_or(0) as f64;
    println!(
        "the polite: {heard} of {}; the greediest: {most} of {allowed:.0}; {}",
        POLITE * 100,
        agent.json(&["status"])["sources"]
    );
    assert!(
        heard * 100 >= (POLITE * 100 * 99) as u64,
        "of the polite, {heard} were heard"
    );
    assert!(
        most <= 1.1 * allowed,
        "a greedy one got {most}, its limit is {allowed}"
    );
}
