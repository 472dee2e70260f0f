//! The same packets through the function and through the kernel's program, verdict by verdict, by BPF_PROG_TEST_RUN
//! with the clock that the test gives; and two CPUs at once on one key.

mod banks;
mod classes;
mod connections;
mod essential;
mod fair;
mod hooks;
mod levels;
mod lists;
mod loading;
mod prefixes;
mod replay;
mod trace;
mod two_cpus;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use aya::programs::TestRunOptions;
use common::event::Event;
use common::limiter::Algorithm;
use common::own::Own;
use common::packet::build::Frame;
use common::packet::reply::Reply;
use common::packet::{Depth, Direction, Link, parse};
use common::rule::{Size, Subject};
use common::settings::{Runtime, span_index};
use common::throttle::{Verdict, evaluate};
use datapath::compile::{Image, compile};
use datapath::{Datapath, Entry, OBJECT, OwnAddresses, PinDirectory, is_kernel_too_old};
use libtest_mimic::{Arguments, Trial};
use testbed::memory::Memory;
use testbed::tests;
use testbed::trials::{Test, is_long, is_quick, trial};

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

fn main() {
    let arguments = Arguments::from_args();
    let obstacle = match () {
        () if !nix::unistd::geteuid().is_root() => Some("tests of the kernel's program need root"),
        () if OBJECT.is_empty() => {
            Some("tests of the kernel's program need the eBPF object: run `cargo xtask test`")
        }
        () if is_kernel_too_old() => {
            Some("this kernel is older than Linux 5.15, the oldest that Weir serves")
        }
        () => None,
    };
    if let Some(reason) = obstacle {
        eprintln!("skipped: {reason}");
    }
    let mut trials = Vec::new();
    for algorithm in Algorithm::ALL.iter().copied() {
        trials.push(Trial::test(
            format!("many_verdicts_of_a_{algorithm}_are_those_of_the_function"),
            move || {
                differential(algorithm);
                Ok(())
            },
        ));
        trials.push(Trial::test(
            format!("two_cpus_on_one_key_of_a_{algorithm}_pass_what_it_allows"),
            move || {
                two_cpus::hammer(algorithm.name());
                Ok(())
            },
        ));
    }
    let others: &[Test] = tests![
        classes::windows_and_logs_count_for_each_class_what_its_key_has_passed,
        banks::a_share_is_that_of_both_banks_and_what_was_set_at_run_time_stays,
        sixteen_rules_on_a_packet_load_and_seventeen_are_refused,
        connections::a_connection_without_a_socket_is_not_counted_any_more_and_one_with_a_socket_stays,
        lists::the_merged_lists_decide_which_packets_are_refused,
        two_cpus::two_cpus_that_refuse_one_source_at_once_report_it_once,
        two_cpus::two_cpus_that_refuse_one_source_count_each_refusal_of_it,
        the_verifier_is_done_well_before_it_gives_up,
        loading::a_policy_is_loaded_although_signals_interrupt_the_verifier,
        answers_of_both_hooks_are_those_of_the_function,
        a_frame_that_may_lack_its_tag_is_not_challenged_by_xdp,
        hooks::a_detached_program_limits_nothing,
        trace::the_ordinary_object_has_no_log,
        packets_that_are_shaped_leave_one_after_the_other,
    ];
    trials.extend(others.iter().map(trial));
    // The same on every kernel.
    let arithmetic: &[Test] = tests![
        two_cpus::two_cpus_that_meet_new_sources_at_once_pass_one_burst_each,
        essential::each_kind_of_essential_traffic_passes_its_burst,
        lists::a_million_prefixes_of_a_list_load_and_cost_little,
        a_refused_source_has_an_event_at_once_and_then_once_a_second,
        an_elastic_limit_allows_more_with_spare_resources,
        prefixes::a_source_has_the_class_of_its_longest_prefix,
        replay::a_replay_comes_to_the_verdicts_and_counters_of_the_kernel,
        replay::a_replay_of_limits_for_some_sources_and_interfaces_does_so_too,
        replay::a_replay_of_keys_of_networks_does_so_too,
        fair::a_fair_limit_follows_its_level_and_ends_with_its_deadline,
        fair::a_fair_limit_on_bytes_and_one_on_connections_have_their_units,
        fair::networks_and_all_sources_are_limited_while_they_have_a_level,
        fair::offered_packets_are_sampled_whether_they_pass_or_not,
        fair::a_level_stays_in_effect_when_a_policy_changes_in_place,
        fair::an_old_handle_writes_into_no_bank_that_is_written_anew,
        fair::many_verdicts_under_changing_levels_are_those_of_the_function,
        levels::a_botnet_below_every_limit_is_held_to_its_levels_and_polite_sources_pass,
    ];
    if is_quick() {
        eprintln!("skipped: what is the same on every kernel, by --quick");
    } else {
        trials.extend(arithmetic.iter().map(trial));
    }
    let no_trace = trace::obstacle();
    if let (None, Some(reason)) = (obstacle, &no_trace) {
        eprintln!("skipped: {reason}");
    }
    let traces: &[Test] = tests![
        trace::the_verifier_takes_every_program_of_a_trace_build,
        trace::a_trace_has_the_verdicts_of_its_sources_and_what_decided,
        trace::a_trace_has_what_an_observed_limit_would_refuse,
        trace::a_traced_flood_is_logged_or_counted_as_lost_and_another_is_not_logged,
    ];
    let is_untraced = obstacle.is_some() || no_trace.is_some();
    let traces = traces
        .iter()
        .map(|test| trial(test).with_ignored_flag(is_untraced));
    let trials = trials
        .into_iter()
        .map(|trial| trial.with_ignored_flag(obstacle.is_some()))
        .chain(traces)
        .collect();
    testbed::trials::run(&arguments, trials)
}

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Pins of one test, gone when dropped.
struct Pins(PathBuf);

impl Pins {
    fn new() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(PathBuf::from(format!(
            "/sys/fs/bpf/weir-tk{}-{number}",
            std::process::id()
        )))
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn image(limits: &str) -> Image {
    let text = format!("[agent]\ninterfaces = [\"lo\"]\nmax_sources = 4096\n{limits}");
    let loaded = config::parse(std::path::Path::new("limits.toml"), &text)
        .unwrap_or_else(|report| panic!("{report}"));
    compile(&loaded.config, Direction::Ingress).unwrap_or_else(|error| panic!("{error}"))
}

fn load(image: &Image, pins: &Pins) -> Datapath {
    let pins = PinDirectory::open(&pins.0).unwrap();
    let mut datapath =
        Datapath::load(image.clone(), &pins).unwrap_or_else(|error| panic!("{error}"));
    datapath
        .prepare(Entry::Xdp)
        .unwrap_or_else(|error| panic!("{error}"));
    datapath
}

fn run(datapath: &Datapath, frame: &[u8], repeat: u32) -> u32 {
    let mut options = TestRunOptions::new();
    options.data_in = Some(frame);
    options.repeat = repeat;
    datapath.test_run(Entry::Xdp, options).unwrap().return_value
}

fn frame(source: u32, length: usize) -> Vec<u8> {
    Frame::ethernet()
        .ipv4((0x0a00_0000 + source).to_be_bytes(), [10, 9, 9, 9])
        .udp(7, 53, &vec![0; length])
        .build()
}

/// A small generator: the same sequence every time.
struct Sequence(u64);

impl Sequence {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn differential(algorithm: Algorithm) {
    // Three rules in one slot and one in another, so that all or none are charged in both.
    let bytes = if algorithm.counts_bytes() {
        algorithm
    } else {
        Algorithm::TokenBucket
    };
    let mut image = image(&format!(
        "[[limit]]\nname = \"a\"\nrate = \"100/s\"\nalgorithm = \"{algorithm}\"\ntiers = [\"900/10s\"]\n\
         [[limit]]\nname = \"b\"\nrate = \"40kB/s\"\nunit = \"bytes\"\nalgorithm = \"{bytes}\"\n\
         [[limit]]\nname = \"c\"\nrate = \"300/s\"\nalgorithm = \"{algorithm}\"\nipv4_prefix = 30\nprotocol = \"udp\"\n"
    ));
    image.settings.given_clock = 1;
    let pins = Pins::new();
    let mut datapath = load(&image, &pins);
    let shape = image.settings.shape;
    let model = Memory::new(
        image.rules.clone(),
        shape.sets,
        shape.slot_words,
        image.settings.ring_words,
    );

    let mut sequence = Sequence(0x5eed);
    let mut nanoseconds = 3_600_000_000_000;
    let mut passed = 0;
    let packets = if is_long() { 100_000 } else { 20_000 };
    for nth in 0..packets {
        // Mostly close together, sometimes a standstill, sometimes a pause.
        nanoseconds += match sequence.below(400) {
            0..80 => 0,
            399 => sequence.below(300_000_000),
            _ => sequence.below(800_000),
        };
        let frame = frame(sequence.below(6) as u32, sequence.below(1_000) as usize);
        datapath
            .set_runtime(Runtime {
                nanoseconds,
                ..Runtime::default()
            })
            .unwrap();
        let verdict = run(&datapath, &frame, 1);

        model
            .clock
            .store(image.settings.scale.ticks(nanoseconds), Ordering::SeqCst);
        let packet = parse(frame.as_slice(), Link::Ethernet, Depth::Requests).unwrap();
        let subject = Subject {
            hi: packet.source.hi,
            lo: packet.source.lo,
            is_ipv4: u32::from(packet.is_ipv4),
            local_port: 53,
            size: Size::of_one(frame.len() as u32),
            ..Subject::default()
        };
        let span = image.settings.spans[span_index(packet.protocol, packet.kind)];
        let expected = match evaluate(&&model, span, &subject) {
            Verdict::Pass(_) => XDP_PASS,
            Verdict::Refuse(_) => XDP_DROP,
        };
        assert_eq!(
            verdict, expected,
            "{algorithm}: packet {nth} at {nanoseconds} ns"
        );
        passed += u32::from(verdict == XDP_PASS);
    }
    assert!(
        (packets / 10..packets * 9 / 10).contains(&passed),
        "{algorithm}: {passed} passed: too one-sided to tell anything"
    );
}

fn sixteen_rules_on_a_packet_load_and_seventeen_are_refused() {
    let limits = |count: usize| -> String {
        (0..count)
            .map(|nth| {
                format!(
                    "[[limit]]\nname = \"{nth}\"\nrate = \"{}/s\"\nipv4_prefix = {}\n",
                    nth + 1,
                    nth % 8 + 20
                )
            })
            .collect()
    };
    let image = image(&limits(16));
    let pins = Pins::new();
    let datapath = load(&image, &pins);
    // The first limit has a burst of one.
    assert_eq!(run(&datapath, &frame(1, 20), 1), XDP_PASS);
    assert_eq!(run(&datapath, &frame(1, 20), 1), XDP_DROP);
    let text = format!("[agent]\ninterfaces = [\"lo\"]\n{}", limits(17));
    let loaded = config::parse(std::path::Path::new("limits.toml"), &text).unwrap();
    let error = compile(&loaded.config, Direction::Ingress).unwrap_err();
    assert!(error.to_string().contains("17 rates"), "{error}");
}

/// Runs an entry point on a frame: (verdict, what the frame became).
fn answered(datapath: &Datapath, entry: Entry, frame: &[u8]) -> (u32, Vec<u8>) {
    let mut out = vec![0; 2_048];
    let mut options = TestRunOptions::new();
    options.data_in = Some(frame);
    options.data_out = Some(&mut out);
    let result = datapath.test_run(entry, options).unwrap();
    out.truncate(result.data_size_out as usize);
    (result.return_value, out)
}

fn answers_of_both_hooks_are_those_of_the_function() {
    const XDP_TX: u32 = 3;
    const TC_ACT_SHOT: u32 = 2;
    const TC_ACT_REDIRECT: u32 = 7;
    const V4: ([u8; 4], [u8; 4]) = ([192, 0, 2, 1], [198, 51, 100, 7]);
    let v6 = |last: u8| [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    // A byte limit that nothing fits into.
    let mut image = image(
        "[[limit]]\nname = \"a\"\nrate = \"1514B/day\"\nburst = \"1514B\"\nunit = \"bytes\"\naction = \"reject\"\nkey = \"interface\"\n",
    );
    image.settings.given_clock = 1;
    let pins = Pins::new();
    let mut datapath = load(&image, &pins);
    datapath
        .prepare(Entry::Tc)
        .unwrap_or_else(|error| panic!("{error}"));
    let mut own = OwnAddresses::default();
    own.add_device([2, 0, 0, 0, 0, 2], Own::Plain);
    own.add(IpAddr::from(V4.1), Own::Plain);
    own.add(IpAddr::from(v6(2)), Own::Plain);
    let tagged = [198, 51, 100, 8];
    own.add(IpAddr::from(tagged), Own::Tagged);
    datapath.set_own(own).unwrap();
    let full = Frame::ethernet()
        .ipv4(V4.0, V4.1)
        .udp(1, 2, &[0; 1_472])
        .build();
    let mut nanoseconds = 3_600_000_000_000;
    datapath
        .set_runtime(Runtime {
            nanoseconds,
            ..Runtime::default()
        })
        .unwrap();
    for entry in [Entry::Xdp, Entry::Tc] {
        let _ = answered(&datapath, entry, &full);
    }
    let frames = [
        Frame::ethernet().ipv4(V4.0, V4.1).tcp(1, 2, 2, b""),
        Frame::ethernet()
            .ipv4(V4.0, V4.1)
            .tcp(1, 2, 16, &[7; 1_000]),
        Frame::ethernet()
            .ipv4_with_options(V4.0, V4.1, 4)
            .tcp(1, 2, 16, b"data"),
        Frame::ethernet().ipv4(V4.0, V4.1).udp(1, 2, b""),
        Frame::ethernet().ipv4(V4.0, V4.1).udp(1, 2, &[7; 1_000]),
        Frame::ethernet().ipv4(V4.0, V4.1).icmp(8),
        Frame::ethernet().ipv6(v6(1), v6(2)).tcp(1, 2, 2, b""),
        Frame::ethernet()
            .ipv6(v6(1), v6(2))
            .empty_extension(60)
            .tcp(1, 2, 2, b""),
        Frame::ethernet().ipv6(v6(1), v6(2)).udp(1, 2, b""),
        Frame::ethernet().ipv6(v6(1), v6(2)).icmp(128),
        Frame::ethernet().vlan(5).ipv4(V4.0, V4.1).tcp(1, 2, 2, b""),
        Frame::ethernet()
            .vlan(5)
            .vlan(6)
            .ipv6(v6(1), v6(2))
            .udp(1, 2, b""),
        // Not answered.
        Frame::ethernet().ipv4(V4.0, V4.1).tcp(1, 2, 4, b""),
        Frame::ethernet().ipv4(V4.0, [224, 0, 0, 1]).udp(1, 2, b""),
    ];
    for (nth, frame) in frames.into_iter().enumerate() {
        let frame = frame.build();
        let packet = parse(frame.as_slice(), Link::Ethernet, Depth::Ports).unwrap();
        let mut reply = Reply::EMPTY;
        let words = reply.answer(frame.as_slice(), &packet);
        let mut expected = frame[..usize::from(packet.network_offset)].to_vec();
        expected[..6].copy_from_slice(&frame[6..12]);
        expected[6..12].copy_from_slice(&frame[..6]);
        expected.extend((0..words).flat_map(|nth| reply.word(nth).to_ne_bytes()));
        nanoseconds += 1_000_000_000;
        datapath
            .set_runtime(Runtime {
                nanoseconds,
                ..Runtime::default()
            })
            .unwrap();
        for (entry, sent, dropped) in [
            (Entry::Xdp, XDP_TX, XDP_DROP),
            (Entry::Tc, TC_ACT_REDIRECT, TC_ACT_SHOT),
        ] {
            let (verdict, out) = answered(&datapath, entry, &frame);
            if words == 0 {
                assert_eq!(verdict, dropped, "frame {nth} at {entry:?}");
            } else {
                assert_eq!(verdict, sent, "frame {nth} at {entry:?}");
                assert_eq!(out, expected, "frame {nth} at {entry:?}");
            }
        }
    }
    // Not in the name of another device or host; and where the tag is not in the frame, not by XDP, which cannot know it.
    let syn = |ethernet: Frame, to: [u8; 4]| ethernet.ipv4(V4.0, to).tcp(1, 2, 2, b"").build();
    let ours = Frame::ethernet;
    for (why, frame, by_xdp, by_tc) in [
        (
            "another device",
            syn(Frame::between([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 3]), V4.1),
            XDP_DROP,
            TC_ACT_SHOT,
        ),
        (
            "another host",
            syn(ours(), [198, 51, 100, 9]),
            XDP_DROP,
            TC_ACT_SHOT,
        ),
        (
            "a stripped tag",
            syn(ours(), tagged),
            XDP_DROP,
            TC_ACT_REDIRECT,
        ),
        (
            "a tag",
            syn(ours().vlan(5), tagged),
            XDP_TX,
            TC_ACT_REDIRECT,
        ),
    ] {
        nanoseconds += 1_000_000_000;
        datapath
            .set_runtime(Runtime {
                nanoseconds,
                ..Runtime::default()
            })
            .unwrap();
        assert_eq!(answered(&datapath, Entry::Xdp, &frame).0, by_xdp, "{why}");
        assert_eq!(answered(&datapath, Entry::Tc, &frame).0, by_tc, "{why}");
    }
    // A hundred at once, and no more before time passes.
    nanoseconds += 1_000_000_000;
    datapath
        .set_runtime(Runtime {
            nanoseconds,
            ..Runtime::default()
        })
        .unwrap();
    let syn = Frame::ethernet().ipv4(V4.0, V4.1).tcp(1, 2, 2, b"").build();
    let sent = (0..300)
        .filter(|_| answered(&datapath, Entry::Xdp, &syn).0 == XDP_TX)
        .count();
    assert_eq!(sent, 100);
}

/// Where a VLAN device has the hardware address, XDP does not know the tag that the answer needs.
fn a_frame_that_may_lack_its_tag_is_not_challenged_by_xdp() {
    const XDP_TX: u32 = 3;
    const TC_ACT_REDIRECT: u32 = 7;
    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
    let image = image(
        "[[limit]]\nname = \"a\"\nprotocol = \"tcp\"\nunit = \"connections\"\nrate = \"9/s\"\nprove = \"reset\"\n",
    );
    let pins = Pins::new();
    let mut datapath = load(&image, &pins);
    datapath
        .prepare(Entry::Tc)
        .unwrap_or_else(|error| panic!("{error}"));
    let syn = |frame: Frame| {
        frame
            .ipv4([192, 0, 2, 1], [198, 51, 100, 7])
            .tcp(1, 80, 2, b"")
            .build()
    };
    let (bare, tagged) = (syn(Frame::ethernet()), syn(Frame::ethernet().vlan(5)));
    for (places, of_bare) in [
        (&[Own::Plain][..], XDP_TX),
        (&[Own::Plain, Own::Tagged], XDP_PASS),
    ] {
        let mut own = OwnAddresses::default();
        places.iter().for_each(|place| own.add_device(MAC, *place));
        datapath.set_own(own).unwrap();
        assert_eq!(
            answered(&datapath, Entry::Xdp, &bare).0,
            of_bare,
            "{places:?}"
        );
        assert_eq!(
            answered(&datapath, Entry::Xdp, &tagged).0,
            XDP_TX,
            "{places:?}"
        );
        assert_eq!(
            answered(&datapath, Entry::Tc, &bare).0,
            TC_ACT_REDIRECT,
            "{places:?}"
        );
    }
}

fn an_elastic_limit_allows_more_with_spare_resources() {
    let mut image = image(
        "[[limit]]\nname = \"a\"\nrate = \"1/h\"\nburst = 10\nthrottle = { elastic = { up_to = 3.0 } }\n",
    );
    image.settings.given_clock = 1;
    let pins = Pins::new();
    let mut datapath = load(&image, &pins);
    let nanoseconds = 3_600_000_000_000;
    let mut passed = 0;
    // Room ends at its instant, not after it.
    for (room_until, expected) in [
        (0, 10),
        (nanoseconds - 1, 10),
        (nanoseconds, 10),
        (nanoseconds + 1, 30),
        (0, 30),
    ] {
        datapath
            .set_runtime(Runtime {
                nanoseconds,
                room_until,
                ..Runtime::default()
            })
            .unwrap();
        passed += (0..100)
            .filter(|_| run(&datapath, &frame(1, 20), 1) == XDP_PASS)
            .count();
        assert_eq!(passed, expected, "room until {room_until} at {nanoseconds}");
    }
    let over: u64 = datapath
        .counters()
        .unwrap()
        .iter()
        .map(|row| row.over.packets)
        .sum();
    assert_eq!(over, 20);
}

fn a_refused_source_has_an_event_at_once_and_then_once_a_second() {
    let mut image = image("[[limit]]\nname = \"a\"\nrate = \"1/day\"\n");
    image.settings.given_clock = 1;
    let pins = Pins::new();
    let mut datapath = load(&image, &pins);
    let start = 3_600_000_000_000;
    // At so many nanoseconds, so many packets, which a CPU adds to the samples by 4,096 at most: what is told then.
    let mut at = |later: u64, packets: u32| {
        datapath
            .set_runtime(Runtime {
                nanoseconds: start + later,
                ..Runtime::default()
            })
            .unwrap();
        run(&datapath, &frame(1, 20), packets);
        datapath.events().drain()
    };
    let first = at(0, 100_000);
    assert_eq!(first.len(), 1, "{first:?}");
    // The first packet passed.
    assert_eq!(
        (first[0].count, first[0].at, first[0].verdict),
        (1, start, Event::THROTTLED)
    );
    assert_eq!(
        first[0].key.lo >> 32,
        u64::from(0x0a00_0001u32.to_be()),
        "{first:?}"
    );
    assert_eq!(at(Event::INTERVAL - 1, 1_000), []);
    let second = at(Event::INTERVAL, 5_000);
    assert_eq!(
        (second.len(), second[0].at),
        (1, start + Event::INTERVAL),
        "{second:?}"
    );
    // The CPU of the first packets may hold back a step of their counts, if this one is another.
    let held_back = 4_096;
    assert!(
        (100_000 - held_back..106_000).contains(&second[0].count),
        "{second:?}"
    );
    assert_eq!(at(Event::INTERVAL, 1_000), []);
    // Another source is told of by itself.
    run(&datapath, &frame(2, 20), 2);
    assert_eq!(datapath.events().drain().len(), 1);
    assert_eq!(datapath.events().newly_lost().unwrap(), 0);
}

/// The fields of `__sk_buff` that a test gives and takes: 192 bytes of it.
#[derive(Clone)]
struct Buffer([u8; 192]);

impl Buffer {
    const MARK: usize = 8;
    const TIMESTAMP: usize = 152;

    fn new() -> Self {
        Self([0; 192])
    }
    fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.0[at..at + 4].try_into().unwrap())
    }
    fn u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.0[at..at + 8].try_into().unwrap())
    }
}

fn packets_that_are_shaped_leave_one_after_the_other() {
    const TC_ACT_UNSPEC: u32 = u32::MAX;
    const TC_ACT_SHOT: u32 = 2;
    let text = "[agent]\ninterfaces = [\"lo\"]\n\
        [[limit]]\nname = \"a\"\ndirection = \"egress\"\nrate = \"100/s\"\nburst = 10\nprotocol = \"udp\"\n\
        algorithm = \"leaky-bucket\"\naction = \"shape\"\n\
        [[limit]]\nname = \"b\"\ndirection = \"egress\"\nrate = \"1/h\"\nburst = 5\nprotocol = \"udp\"\n\
        action = { mark = { mark = 7 } }\n";
    let loaded = config::parse(std::path::Path::new("limits.toml"), text)
        .unwrap_or_else(|report| panic!("{report}"));
    let mut image = compile(&loaded.config, Direction::Egress).unwrap();
    image.settings.given_clock = 1;
    let pins = Pins::new();
    let mut datapath = Datapath::load(image, &PinDirectory::open(&pins.0).unwrap()).unwrap();
    datapath
        .prepare(Entry::Tc)
        .unwrap_or_else(|error| panic!("{error}"));
    let mut nanoseconds = 3_600_000_000_000u64;
    let mut send = |later: u64| {
        nanoseconds += later;
        datapath
            .set_runtime(Runtime {
                nanoseconds,
                ..Runtime::default()
            })
            .unwrap();
        let (given, mut taken) = (Buffer::new(), Buffer::new());
        let frame = frame(1, 20);
        let mut options = TestRunOptions::new();
        options.data_in = Some(&frame);
        options.ctx_in = Some(&given.0);
        options.ctx_out = Some(&mut taken.0);
        let verdict = datapath.test_run(Entry::Tc, options).unwrap().return_value;
        let at = taken.u64(Buffer::TIMESTAMP);
        (
            verdict,
            if at == 0 { 0 } else { at - nanoseconds },
            taken.u32(Buffer::MARK),
        )
    };
    // Ten milliseconds apart, whenever they come; the sixth is over the other limit and marked.
    for turn in 0..10u64 {
        let mark = if turn < 5 { 0 } else { 7 };
        assert_eq!(
            send(0),
            (TC_ACT_UNSPEC, turn * 10_000_000, mark),
            "packet {turn}"
        );
    }
    assert_eq!(send(0).0, TC_ACT_SHOT, "the queue is full");
    assert_eq!(send(10_000_000), (TC_ACT_UNSPEC, 90_000_000, 7));
    assert_eq!(
        send(1_000_000_000),
        (TC_ACT_UNSPEC, 0, 7),
        "an empty queue makes nobody wait"
    );
}

/// The most instructions that the verifier may process: its own limit is a million, and half is reserved for later features.
const BUDGET: u32 = 500_000;

fn the_verifier_is_done_well_before_it_gives_up() {
    let plain = "[[limit]]\nname = \"a\"\nrate = \"1/s\"\n".to_owned();
    let rich = "[[class]]\nname = \"c\"\nsources = [\"10.0.0.0/8\"]\nmultiplier = 2\n\
        [[limit]]\nname = \"a\"\nrate = \"1/s\"\nports = [53]\nthrottle = { elastic = { up_to = 2.0 } }\n\
        [[limit]]\nname = \"b\"\nrate = \"5/s\"\nalgorithm = \"sliding-window\"\nunit = \"requests\"\naction = \"reject\"\n\
        [[limit]]\nname = \"c\"\nrate = \"5/s\"\nalgorithm = \"sliding-log\"\ntiers = [\"9/min\"]\nkey = \"source-port\"\n\
        [[limit]]\nname = \"d\"\nrate = \"5/s\"\nalgorithm = \"fixed-window\"\naction = \"mark\"\n"
        .to_owned();
    // As skewed as prefixes can be: more steps than any list takes that somebody needs.
    let halves =
        (1..=64).map(|length| format!("\"{}/{length}\",", Ipv6Addr::from(1u128 << (128 - length))));
    let lower = (65..=128).map(|length| {
        format!(
            "\"2001:db8::{}/{length}\",",
            &Ipv6Addr::from(1u128 << (128 - length)).to_string()[2..]
        )
    });
    let ipv4 =
        (1..=32).map(|length| format!("\"{}/{length}\",", Ipv4Addr::from(1u32 << (32 - length))));
    let sources: String = halves.chain(lower).chain(ipv4).collect();
    let skewed = format!("never_limit = [{sources}]\n{rich}");
    let scope = "sources = [\"10.0.0.0/8\", \"!10.1.0.0/16\"]\ninterfaces = [\"lo\"]\n";
    let scoped =
        format!("{skewed}{scope}[[limit]]\nname = \"e\"\nrate = \"5/s\"\nprotocol = \"udp\"\n");
    // No class with a multiplier goes with a fair limit. With all of the features above and open connections, these take 570,000
    // instructions in XDP and 750,000 in traffic control.
    let fair = [
        ("packets", "9/s"),
        ("bytes", "9MB/s"),
        ("connections", "9/s"),
    ];
    let fair: String = fair
        .into_iter()
        .map(|(unit, most)| {
            format!(
                "[[limit]]\nname = \"{unit}\"\nunit = \"{unit}\"\nrate = \"fair\"\naction = \"reject\"\n\
                 fair = {{ at_most = \"{most}\" }}\n"
            )
        })
        .collect();
    let fair = format!(
        "never_limit = [{sources}]\n{fair}[[limit]]\nname = \"a\"\nrate = \"1/s\"\nports = [53]\n\
         throttle = {{ elastic = {{ up_to = 2.0 }} }}\n[[limit]]\nname = \"b\"\nrate = \"5/s\"\n\
         algorithm = \"sliding-window\"\n{scope}"
    );
    let with_levels = fair.replace(
        "fair = {",
        "levels = [{ prefix = \"24/48\" }, { key = \"all\" }]\nfair = {",
    );
    for (what, limits) in [
        ("one limit", plain),
        ("every feature", rich),
        ("every feature, prefixes of every length", skewed),
        (
            "every feature for some sources and interfaces, and ban lists",
            format!("{scoped}{}", lists::LIST),
        ),
        ("fair limits beside other features", fair),
        ("fair limits with levels beside other features", with_levels),
    ] {
        let pins = Pins::new();
        let mut datapath = load(&image(&limits), &pins);
        for entry in [Entry::Xdp, Entry::Tc, Entry::TcIp] {
            datapath
                .prepare(entry)
                .unwrap_or_else(|error| panic!("{what}, {entry:?}: {error}"));
            let Some(count) = datapath.verified_instructions(entry).unwrap() else {
                continue;
            };
            println!("{what}, {entry:?}: {count} instructions verified");
            assert!(count <= BUDGET, "{what}, {entry:?}: {count} instructions");
        }
    }
}
