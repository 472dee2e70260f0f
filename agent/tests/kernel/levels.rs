//! A botnet whose sources are each below every limit, by the kernel's program and by a replay, on a clock that the test
//! sets.

use std::collections::HashMap;
use std::path::Path;

use aya::programs::TestRunOptions;
use common::packet::build::Frame;
use common::packet::{Direction, Link};
use common::settings::Runtime;
use datapath::compile::plan;
use datapath::{Datapath, Entry, PinDirectory};
use weir::replay::capture::CapturedPacket;
use weir::replay::{Evaluation, TableMemory, Verdict};

use super::{Pins, Sequence, XDP_PASS};

const SECOND: u64 = 1_000_000_000;
/// The networks of the botnet, half of them IPv4 and half IPv6, and the sources of each, which send a packet in two
/// seconds.
const BOTNET: (u64, u64) = (40, 5_000);
/// On an emulated CPU.
const BOTNET_EMULATED: (u64, u64) = (4, 2_500);
/// The first network of other sources.
const OTHERS: u64 = 40;
/// Sources elsewhere, ten in a network, which send a packet a second.
const POLITE: u64 = 5_000;
const SECONDS: u64 = 2;

/// Units a second and burst of the limit.
const RATE: u64 = 10;
const OF_NETWORK: u64 = 20;

/// Tokens of a bucket of `RATE` times a factor, in billionths: the definition, in numbers that do not overflow.
struct Bucket {
    factor: u64,
    tokens: u64,
    at: u64,
}

impl Bucket {
    fn new(factor: u64) -> Self {
        Self {
            factor,
            tokens: factor * RATE * SECOND,
            at: 0,
        }
    }

    /// Takes a token for an admitted packet. A thousandth is allowed for the length of a tick.
    fn admit(&mut self, now: u64) {
        let most = self.factor * RATE * SECOND;
        self.tokens = (self.tokens + (now - self.at) * self.factor * RATE).min(most);
        self.at = now;
        assert!(
            self.tokens + SECOND / 1_000 >= SECOND,
            "more than {} times the limit is admitted",
            self.factor
        );
        self.tokens = self.tokens.saturating_sub(SECOND);
    }
}

/// One packet to come: its instant, its network, and its frame's source.
fn packets((networks, bots): (u64, u64)) -> Vec<(u64, u64, u64)> {
    let mut sequence = Sequence(0x00b0_75ee);
    let mut all = Vec::new();
    let mut send = |network: u64, source: u64, every: u64| {
        let phase = sequence.below(every);
        all.extend((0..SECONDS * SECOND / every).map(|nth| (nth * every + phase, network, source)));
    };
    for network in 0..networks {
        (0..bots).for_each(|source| send(network, source, 2 * SECOND));
    }
    (0..POLITE).for_each(|source| send(OTHERS + source / 10, source % 10, SECOND));
    all.sort_unstable();
    all
}

/// /19 for IPv4, and /48 of /64s for IPv6.
fn frame(network: u64, source: u64) -> Vec<u8> {
    if network.is_multiple_of(2) {
        let address = 0x0b00_0000 + (network << 13) as u32 + source as u32;
        Frame::ethernet()
            .ipv4(address.to_be_bytes(), [10, 9, 9, 9])
            .udp(7, 53, b"x")
            .build()
    } else {
        let address = 0x2001_0db8_0000_0000_0000_0000_0000_0001u128
            | u128::from(network) << 80
            | u128::from(source) << 64;
        Frame::ethernet()
            .ipv6(address.to_be_bytes(), [0x20; 16])
            .udp(7, 53, b"x")
            .build()
    }
}

pub fn a_botnet_below_every_limit_is_held_to_its_levels_and_polite_sources_pass() {
    // All of the botnet's networks together stay below the last level, or exceed it.
    let (refused, lost) = held_to_levels(2_000);
    assert!(
        refused > 0 && lost * 100 < POLITE * SECONDS,
        "{lost} packets of polite sources are lost"
    );
    let (more, more_lost) = held_to_levels(200);
    assert!(more + more_lost > refused + lost, "{more} and {more_lost}");
}

/// Sends all packets with this factor for `all`; returns the refused ones of the botnet and of polite sources.
fn held_to_levels(of_all: u64) -> (u64, u64) {
    let botnet = if std::env::var_os("WEIR_VM").is_some() {
        BOTNET_EMULATED
    } else {
        BOTNET
    };
    let text = format!(
        "[agent]\ninterfaces = [\"lo\"]\nmax_sources = 131072\n[[limit]]\nname = \"a\"\nrate = \"{RATE}/s\"\nburst = {RATE}\n\
         levels = [{{ prefix = \"19/48\", factor = {OF_NETWORK} }}, {{ key = \"all\", factor = {of_all} }}]\n"
    );
    let loaded =
        config::parse(Path::new("limits.toml"), &text).unwrap_or_else(|report| panic!("{report}"));
    let mut plan = plan(&loaded.config).unwrap();
    plan.ingress.settings.given_clock = 1;
    let pins = Pins::new();
    let directory = PinDirectory::open(&pins.0).unwrap();
    let mut datapath =
        Datapath::load(plan.ingress.clone(), &directory).unwrap_or_else(|error| panic!("{error}"));
    datapath
        .prepare(Entry::Xdp)
        .unwrap_or_else(|error| panic!("{error}"));
    let mut memory = TableMemory::new(&plan.ingress.settings);
    let seed = datapath.settings().seed;
    let mut evaluation = Evaluation::with_seed(&loaded.config, &plan, memory.table(), seed);

    let mut networks: HashMap<u64, Bucket> = HashMap::new();
    let mut all = Bucket::new(of_all);
    let (mut refused, mut lost, mut admitted) = (0, 0, 0u64);
    let start = 3_600 * SECOND;
    for (at, network, source) in packets(botnet) {
        let frame = frame(network, source);
        let now = start + at;
        datapath
            .set_runtime(Runtime {
                nanoseconds: now,
                ..Runtime::default()
            })
            .unwrap();
        let mut options = TestRunOptions::new();
        options.data_in = Some(&frame);
        options.repeat = 1;
        let has_passed = datapath.test_run(Entry::Xdp, options).unwrap().return_value == XDP_PASS;
        let packet = CapturedPacket {
            nanoseconds: Some(now),
            link: Link::Ethernet,
            frame: &frame,
            length: frame.len() as u32,
            interface: 0,
            is_of_all_interfaces: false,
            direction: None,
        };
        let replayed = evaluation
            .evaluate(&packet, Direction::Ingress, now, now)
            .verdict
            == Verdict::Pass;
        assert_eq!(
            replayed, has_passed,
            "source {source} of network {network} at {now}"
        );
        if has_passed {
            networks
                .entry(network)
                .or_insert_with(|| Bucket::new(OF_NETWORK))
                .admit(at);
            all.admit(at);
            admitted += 1;
        } else {
            *(if network < OTHERS {
                &mut refused
            } else {
                &mut lost
            }) += 1;
        }
    }
    // Each level refuses by itself.
    let counters = datapath.counters().unwrap();
    assert_eq!(evaluation.programs().next().unwrap().counters(), counters);
    println!(
        "{} sources in {} networks, {POLITE} polite: {admitted} packets admitted, {refused} of the botnet refused, {lost} of \
         polite sources lost",
        botnet.0 * botnet.1,
        botnet.0
    );
    (refused, lost)
}
