//! Fair limits in the kernel's program, on a clock that the test sets: levels, deadlines, counters and samples.

use std::path::Path;
use std::sync::atomic::Ordering;

use common::packet::{Address, Depth, Direction, Link, parse};
use common::rule::{Size, Subject};
use common::settings::{Runtime, span_index};
use common::throttle::{Verdict, evaluate};
use config::policy::Config;
use datapath::compile::{Image, compile};
use datapath::{Datapath, FairCounts, FairHandle, FairLevel, FairLevels};
use testbed::memory::Memory;

use super::{Pins, Sequence, XDP_DROP, XDP_PASS, frame, load, run};

const SECOND: u64 = 1_000_000_000;
const START: u64 = 3_600 * SECOND;

fn config(limits: &str) -> Config {
    let text = format!("[agent]\ninterfaces = [\"lo\"]\nmax_sources = 4096\n{limits}");
    let loaded = config::parse(Path::new("limits.toml"), &text);
    loaded.unwrap_or_else(|report| panic!("{report}")).config
}

fn image(config: &Config) -> Image {
    let mut image = compile(config, Direction::Ingress).unwrap_or_else(|error| panic!("{error}"));
    image.settings.given_clock = 1;
    image
}

/// A policy at [`START`], and the handles of its fair limits.
fn start(config: &Config, pins: &Pins) -> (Datapath, Vec<FairHandle>) {
    let mut datapath = load(&image(config), pins);
    at(&mut datapath, START);
    let handles = datapath.fair_handles(config).unwrap();
    (datapath, handles)
}

fn at(datapath: &mut Datapath, nanoseconds: u64) {
    let runtime = Runtime {
        nanoseconds,
        ..Runtime::default()
    };
    datapath.set_runtime(runtime).unwrap();
}

/// How many of a source's packets pass.
fn passed(datapath: &Datapath, handle: &FairHandle, source: u32, packets: u32) -> u64 {
    let before = handle.counts().unwrap();
    run(datapath, &frame(source, 20), packets);
    let after = handle.counts().unwrap();
    let refused = |counts: FairCounts| counts.refused + counts.refused_by_most;
    let passed = after.passed - before.passed;
    assert_eq!(
        passed + refused(after) - refused(before),
        u64::from(packets)
    );
    passed
}

fn level(rate: f64, burst: f64) -> Option<FairLevel> {
    Some(FairLevel { rate, burst })
}

pub fn a_fair_limit_follows_its_level_and_ends_with_its_deadline() {
    for (most, left) in [("", 1_000), ("fair = { at_most = \"300/s\" }\n", 300)] {
        let config = config(&format!("[[limit]]\nname = \"a\"\nrate = \"fair\"\n{most}"));
        let pins = Pins::new();
        let (mut datapath, mut handles) = start(&config, &pins);
        let handle = &mut handles[0];
        let sent = |datapath: &Datapath, handle: &FairHandle, source: u32| {
            passed(datapath, handle, source, 1_000)
        };
        assert_eq!(sent(&datapath, handle, 1), left, "off");
        handle.set_at(level(10.0, 5.0), START);
        assert_eq!([2, 3].map(|source| sent(&datapath, handle, source)), [5, 5]);
        // Looser, and tighter: what was used stays used.
        handle.set_at(level(40.0, 20.0), START);
        assert_eq!(
            [2, 4].map(|source| sent(&datapath, handle, source)),
            [0, 20]
        );
        handle.set_at(level(10.0, 2.0), START);
        assert_eq!([4, 5].map(|source| sent(&datapath, handle, source)), [0, 2]);
        at(&mut datapath, START + SECOND);
        assert_eq!([5, 6].map(|source| sent(&datapath, handle, source)), [2, 2]);
        // A renewed deadline, one that nobody renews, and one that is renewed late.
        handle.set_at(level(10.0, 2.0), START + SECOND);
        at(&mut datapath, START + 3 * SECOND - 1);
        assert_eq!(sent(&datapath, handle, 7), 2);
        at(&mut datapath, START + 3 * SECOND);
        assert_eq!(sent(&datapath, handle, 10), left, "without an agent");
        handle.set_at(level(10.0, 2.0), START + 9 * SECOND);
        at(&mut datapath, START + 9 * SECOND);
        assert_eq!(sent(&datapath, handle, 8), 2);
        handle.set_at(None, START + 9 * SECOND);
        assert_eq!(sent(&datapath, handle, 9), left, "off again");
    }
}

/// Levels of sources, of networks and of all, as bursts at ten packets a second.
fn levels(source: f64, networks: Option<f64>, all: Option<f64>) -> FairLevels {
    let of = |burst: Option<f64>| burst.and_then(|burst| level(10.0, burst));
    FairLevels {
        source: of(Some(source)),
        // A network is out of step with others by a part of a packet.
        wider: [of(networks.map(|burst| burst + 1.0)), of(all)],
    }
}

pub fn networks_and_all_sources_are_limited_while_they_have_a_level() {
    // Alone in its span, behind `at_most`, and beside other limits with and without networks.
    for more in [
        "",
        "fair = { at_most = \"300/s\" }\n",
        "[[limit]]\nname = \"b\"\nrate = \"500/s\"\nipv4_prefix = 24\n\
         [[limit]]\nname = \"c\"\nrate = \"fair\"\nipv4_prefix = 28\n",
    ] {
        let config = config(&format!(
            "[[limit]]\nname = \"a\"\nrate = \"fair\"\nlevels = [{{ prefix = \"24/48\" }}, {{ key = \"all\" }}]\n{more}"
        ));
        let pins = Pins::new();
        let (mut datapath, mut handles) = start(&config, &pins);
        let handle = &mut handles[0];
        let network = |nth: u32| nth << 8;
        let sent = |datapath: &Datapath, handle: &FairHandle, sources: [u32; 4]| {
            let before = handle.counts().unwrap();
            let passed = sources.map(|source| {
                let before = handle.counts().unwrap();
                run(datapath, &frame(source, 20), 20);
                handle.counts().unwrap().passed - before.passed
            });
            let after = handle.counts().unwrap();
            let by = |nth: usize| after.refused_by_wider[nth] - before.refused_by_wider[nth];
            let refused = after.refused - before.refused;
            assert_eq!(passed.iter().sum::<u64>() + refused, 80);
            (passed, [refused - by(0) - by(1), by(0), by(1)])
        };
        let of = |nth: u32| {
            let network = network(nth);
            [network, network + 1, network + 2, network + 256]
        };
        assert_eq!(sent(&datapath, handle, of(1)), ([20; 4], [0; 3]), "off");
        handle.set_levels_at(levels(5.0, None, None), START);
        assert_eq!(sent(&datapath, handle, of(3)), ([5; 4], [60, 0, 0]));
        handle.set_levels_at(levels(5.0, Some(8.0), None), START);
        // Five and three of a network, and five of the next one.
        let (passed, refused) = sent(&datapath, handle, of(5));
        assert_eq!((passed, refused), ([5, 3, 0, 5], [30, 37, 0]));
        // A refusal by the network charges no source.
        handle.set_levels_at(levels(5.0, None, None), START);
        let (passed, refused) = sent(&datapath, handle, of(5));
        assert_eq!((passed, refused), ([0, 2, 5, 0], [73, 0, 0]));
        handle.set_levels_at(levels(5.0, Some(8.0), Some(11.0)), START);
        let (passed, refused) = sent(&datapath, handle, of(7));
        assert_eq!((passed, refused), ([5, 3, 0, 3], [15, 37, 17]));
        // Renewed, and then by nobody.
        handle.set_levels_at(levels(5.0, Some(8.0), None), START + SECOND);
        at(&mut datapath, START + 3 * SECOND - 1);
        let (passed, _) = sent(&datapath, handle, of(9));
        assert_eq!(passed, [5, 3, 0, 5]);
        at(&mut datapath, START + 3 * SECOND);
        assert_eq!(sent(&datapath, handle, of(9)), ([20; 4], [0; 3]));
        // A level of networks without one of sources is none.
        let none = FairLevels {
            source: None,
            ..levels(5.0, Some(8.0), Some(11.0))
        };
        handle.set_levels_at(none, START + 3 * SECOND);
        assert_eq!(sent(&datapath, handle, of(11)), ([20; 4], [0; 3]));
    }
}

pub fn a_fair_limit_on_bytes_and_one_on_connections_have_their_units() {
    let config = config(
        "[[limit]]\nname = \"bytes\"\nunit = \"bytes\"\nprotocol = \"udp\"\nrate = \"fair\"\n\
         [[limit]]\nname = \"web\"\nunit = \"connections\"\nports = [80]\nrate = \"fair\"\n",
    );
    let pins = Pins::new();
    let (datapath, mut handles) = start(&config, &pins);
    let [bytes, web] = &mut handles[..] else {
        panic!("{} handles", handles.len());
    };
    bytes.set_at(level(1e6, 100_000.0), START);
    web.set_at(level(10.0, 5.0), START);
    let full = frame(1, 958);
    assert_eq!(full.len(), 1_000);
    run(&datapath, &full, 150);
    let counts = bytes.counts().unwrap();
    assert_eq!((counts.passed, counts.refused), (100_000, 50_000));
    let tcp = |flags: u8| {
        let ports = (9_999, 80);
        common::packet::build::Frame::ethernet()
            .ipv4([10, 0, 0, 1], [10, 9, 9, 9])
            .tcp(ports.0, ports.1, flags, b"")
            .build()
    };
    const SYN: u8 = 2;
    const ACK: u8 = 16;
    run(&datapath, &tcp(SYN), 20);
    run(&datapath, &tcp(ACK), 20);
    let counts = web.counts().unwrap();
    assert_eq!((counts.passed, counts.refused), (5, 15));
}

pub fn offered_packets_are_sampled_whether_they_pass_or_not() {
    let config = config(
        "[[limit]]\nname = \"a\"\nrate = \"fair\"\nports = [53]\n\
         [[limit]]\nname = \"b\"\nrate = \"fair\"\nipv4_prefix = 24\n",
    );
    let pins = Pins::new();
    let (mut datapath, mut handles) = start(&config, &pins);
    let sampled = |handle: &mut FairHandle| {
        let mut all = Vec::new();
        handle.samples(&mut |sample| all.push(sample));
        all
    };
    run(&datapath, &frame(1, 20), 100);
    assert!(sampled(&mut handles[0]).is_empty(), "nobody samples");
    handles[0].sample_at(1, START);
    handles[1].sample_at(1, START);
    handles[1].set_at(level(10.0, 5.0), START);
    run(&datapath, &frame(7, 20), 100);
    // Each handle has its own limit's, in any order.
    let (of_b, of_a) = (sampled(&mut handles[1]), sampled(&mut handles[0]));
    assert_eq!((of_a.len(), of_b.len()), (100, 100));
    let address = |octets: [u8; 4]| {
        let Address { hi, lo } = Address::from_ipv4(octets);
        (hi, lo)
    };
    for (samples, octets) in [(&of_a, [10, 0, 0, 7]), (&of_b, [10, 0, 0, 0])] {
        assert!(samples.iter().all(|sample| {
            (sample.hi, sample.lo) == address(octets) && (sample.units, sample.one_in) == (1, 1)
        }));
    }
    // Of 100,000 packets, some one in 64: 1,562, give or take 6 standard deviations.
    handles[0].sample_at(64, START);
    handles[1].sample_at(0, START);
    let mut few = 0;
    for _ in 0..10 {
        run(&datapath, &frame(7, 20), 10_000);
        few += sampled(&mut handles[0]).len();
    }
    assert!((1_327..1_797).contains(&few), "{few}");
    assert!(sampled(&mut handles[1]).is_empty());
    at(&mut datapath, START + 2 * SECOND);
    run(&datapath, &frame(7, 20), 10_000);
    assert!(
        sampled(&mut handles[0]).is_empty(),
        "a sample ends without an agent"
    );
}

pub fn a_level_stays_in_effect_when_a_policy_changes_in_place() {
    let policy = |unlimited: &str| {
        config(&format!(
            "[[limit]]\nname = \"a\"\nrate = \"fair\"\nfair = {{ at_most = \"300/s\" }}\n\
             levels = [{{ prefix = \"24/48\" }}]\n\
             [[class]]\nname = \"node\"\nsources = [\"{unlimited}\"]\nunlimited = true\n"
        ))
    };
    let (one, other) = (policy("10.0.0.90"), policy("10.0.0.91"));
    let pins = Pins::new();
    let (mut datapath, mut handles) = start(&one, &pins);
    handles[0].set_levels_at(levels(5.0, Some(8.0), None), START);
    assert_eq!(passed(&datapath, &handles[0], 1, 100), 5);
    let next = image(&other);
    assert!(datapath.can_switch_to(&next, &[]));
    datapath.write_other_bank(&next).unwrap();
    datapath.switch_to(next).unwrap();
    assert_eq!(passed(&datapath, &handles[0], 2, 100), 3);
    // A handle is of its policy; a new one is of the new one.
    handles[0].set_at(None, START);
    assert_eq!(passed(&datapath, &handles[0], 0x103, 100), 5);
    let mut handles = datapath.fair_handles(&other).unwrap();
    handles[0].set_at(None, START);
    assert_eq!(passed(&datapath, &handles[0], 4, 1_000), 300);
}

pub fn an_old_handle_writes_into_no_bank_that_is_written_anew() {
    let policies = [90, 91, 92].map(|node| {
        config(&format!(
            "[[limit]]\nname = \"a\"\nrate = \"fair\"\n\
             [[class]]\nname = \"node\"\nsources = [\"10.0.0.{node}\"]\nunlimited = true\n"
        ))
    });
    let pins = Pins::new();
    let (mut datapath, mut old) = start(&policies[0], &pins);
    let put = |datapath: &mut Datapath, policy: &Config| {
        let next = image(policy);
        assert!(datapath.can_switch_to(&next, &[]));
        datapath.write_other_bank(&next).unwrap();
        datapath.switch_to(next).unwrap();
    };
    // The second time, the bank that the handle knows is in effect again.
    put(&mut datapath, &policies[1]);
    put(&mut datapath, &policies[2]);
    old[0].set_at(level(1.0, 1.0), START);
    old[0].sample_at(1, START);
    let mut handles = datapath.fair_handles(&policies[2]).unwrap();
    assert_eq!(passed(&datapath, &handles[0], 1, 100), 100);
    handles[0].set_at(level(10.0, 5.0), START);
    assert_eq!(passed(&datapath, &handles[0], 2, 100), 5);
    old[0].set_at(None, START);
    assert_eq!(passed(&datapath, &handles[0], 3, 100), 5);
}

pub fn many_verdicts_under_changing_levels_are_those_of_the_function() {
    let config = config(
        "[[limit]]\nname = \"a\"\nrate = \"fair\"\nfair = { at_most = \"60/s\" }\nports = [53]\n\
         levels = [{ prefix = \"30/64\" }, { key = \"all\" }]\n\
         [[limit]]\nname = \"b\"\nrate = \"fair\"\nipv4_prefix = 30\nunit = \"bytes\"\n\
         [[limit]]\nname = \"c\"\nrate = \"100/s\"\nipv4_prefix = 31\n",
    );
    let pins = Pins::new();
    let (mut datapath, mut handles) = start(&config, &pins);
    let image = image(&config);
    let shape = image.settings.shape;
    let mut model = Memory::new(
        image.rules.clone(),
        shape.sets,
        shape.slot_words,
        image.settings.ring_words,
    );
    model.seed = *datapath.seed();
    let scale = image.settings.scale;
    let mut sequence = Sequence(0xfa_1e5);
    let mut nanoseconds = START;
    let mut refused = [0u32; 8];
    for nth in 0..20_000 {
        nanoseconds += match sequence.below(400) {
            0..80 => 0,
            399 => sequence.below(300_000_000),
            _ => sequence.below(800_000),
        };
        if sequence.below(50) == 0 {
            let which = sequence.below(2) as usize;
            let rate = (sequence.below(100) + 1) as f64 * [10.0, 6_000.0][which];
            let burst = sequence.below(40) as f64;
            let source = (sequence.below(2) > 0).then_some(FairLevel { rate, burst });
            // Wider keys have more, in most cases.
            let mut wider = |times: f64| {
                let has_one = sequence.below(3) > 0;
                let level = FairLevel {
                    rate: rate * times,
                    burst: burst * times,
                };
                has_one.then_some(level)
            };
            let wider = [wider(1.5), wider(2.0)];
            handles[which].set_levels_at(FairLevels { source, wider }, nanoseconds);
            // The words in the kernel's rows are the model's.
            let mut rows = datapath.fair_rows();
            for (row, rule) in model.rules.iter_mut().enumerate() {
                if let Some(words) = rows.remove(&row) {
                    *rule = rule.with_fair_words(words);
                }
            }
        }
        let frame = frame(sequence.below(6) as u32, sequence.below(1_000) as usize);
        at(&mut datapath, nanoseconds);
        let verdict = run(&datapath, &frame, 1);
        model
            .clock
            .store(scale.ticks(nanoseconds), Ordering::SeqCst);
        let packet = parse(frame.as_slice(), Link::Ethernet, Depth::Requests).unwrap();
        let subject = Subject {
            hi: packet.source.hi,
            lo: packet.source.lo,
            is_ipv4: 1,
            local_port: 53,
            size: Size::of_one(frame.len() as u32),
            ..Subject::default()
        };
        let index = span_index(packet.protocol, packet.kind);
        let span = common::settings::PortSpans::unpack(image.ports[53].packed[index]);
        let expected = match evaluate(&&model, span, &subject) {
            Verdict::Pass(_) => XDP_PASS,
            Verdict::Refuse(rule) => {
                refused[(rule - span.first) as usize] += 1;
                XDP_DROP
            }
        };
        assert_eq!(verdict, expected, "packet {nth} at {nanoseconds} ns");
    }
    // Most rules have refused some: `at_most`, the hard limit, both levels of sources, of a network and of all sources.
    assert!(
        refused.iter().filter(|count| **count > 50).count() >= 5,
        "{refused:?}: too one-sided to tell anything"
    );
}
