//! Bytes, texts and states that nobody means to give: nothing panics, and what must always hold does.
//!
//! Runs for `WEIR_FUZZ_SECONDS` in all, a few if it is not said; a failure names the seed that finds it again.

mod entries;
mod seeds;

use std::time::{Duration, Instant};

use common::limiter::{
    Costs, Decision, FixedWindow, LeakyBucket, Rate, SlidingLog, SlidingWindow, TokenBucket,
};
use common::packet::build::{Frame, MoreFragments};
use common::packet::{Depth, Link, Unparsed, parse};
use common::time::{TickScale, is_alive};
use libtest_mimic::{Arguments, Trial};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use entries::{Watched, every_depth, hides_its_transport};

/// How long all fuzzers together run unless told otherwise.
const DEFAULT: Duration = Duration::from_secs(5);

/// One round with values from a source.
type Fuzzer = fn(&mut Source);

/// A reader of bytes of others, with its promises.
type Entry = fn(&[u8]);

/// The targets of crates/fuzz, and what each calls.
const TARGETS: [(&str, Entry); 8] = [
    ("packet", entries::packet),
    ("config", |bytes| {
        if let Ok(text) = std::str::from_utf8(bytes) {
            entries::config(text);
        }
    }),
    ("list", entries::list),
    ("capture", entries::capture),
    ("mmdb", entries::mmdb),
    ("state", entries::state),
    ("rls", entries::rls),
    ("http", entries::http),
];

fn main() {
    if std::env::var_os("WEIR_FUZZ_SEEDS").is_some_and(|value| value == "write") {
        return seeds::write();
    }
    let fuzzers: [(&str, Fuzzer); 5] = [
        (
            "frames_of_any_bytes_are_parsed_without_reading_past_the_end",
            frame,
        ),
        ("headers_in_any_order_hide_no_address", headers),
        (
            "configs_of_any_text_are_errors_with_a_place_or_valid",
            config,
        ),
        (
            "any_state_of_any_algorithm_decides_and_keeps_its_promises",
            state,
        ),
        ("seeds_changed_anywhere_are_refused_or_valid", seed),
    ];
    let seconds = std::env::var("WEIR_FUZZ_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok());
    let share = seconds.map_or(DEFAULT, Duration::from_secs) / fuzzers.len() as u32;
    let trials = fuzzers.into_iter().map(|(name, fuzzer)| {
        Trial::test(name, move || {
            let rounds = run(fuzzer, share);
            println!("{name}: {rounds} rounds");
            Ok(())
        })
    });
    let mut arguments = Arguments::from_args();
    // Each has its share of the time to itself.
    arguments.test_threads = arguments.test_threads.or(Some(1));
    testbed::trials::run(&arguments, trials.collect())
}

/// Where values come from: every round has a seed of its own, told when it fails.
struct Source {
    runner: TestRunner,
    seed: u64,
}

impl Source {
    fn new(seed: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        Self {
            runner: TestRunner::new_with_rng(Config::default(), rng),
            seed,
        }
    }

    fn draw<S: Strategy>(&mut self, strategy: S) -> S::Value {
        strategy
            .new_tree(&mut self.runner)
            .unwrap_or_else(|reason| panic!("seed {}: {reason}", self.seed))
            .current()
    }
}

/// Rounds until the time is over, or of one seed if `WEIR_FUZZ_SEED` names it.
fn run(fuzzer: Fuzzer, time: Duration) -> u64 {
    if let Some(seed) = std::env::var("WEIR_FUZZ_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
    {
        fuzzer(&mut Source::new(seed));
        return 1;
    }
    let start = Instant::now();
    let first = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |time| time.as_nanos() as u64);
    let mut rounds = 0;
    while start.elapsed() < time || rounds == 0 {
        let seed = first.wrapping_add(rounds);
        let round = std::panic::AssertUnwindSafe(|| fuzzer(&mut Source::new(seed)));
        if let Err(panic) = std::panic::catch_unwind(round) {
            eprintln!("run again with WEIR_FUZZ_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
        rounds += 1;
    }
    rounds
}

fn frame(source: &mut Source) {
    entries::packet(&source.draw(prop::collection::vec(any::<u8>(), 0..200)));
}

/// Real headers in any number and order, then cut and changed anywhere.
fn headers(source: &mut Source) {
    let address = source.draw(any::<[u8; 16]>());
    let tags = source.draw(0usize..4);
    let link = (0..tags).fold(Frame::ethernet(), |frame, id| frame.vlan(id as u16));
    let is_ipv6 = source.draw(any::<bool>());
    let mut is_fragment = false;
    let ip = if is_ipv6 {
        let extensions = source.draw(prop::collection::vec(
            prop::sample::select(vec![0u8, 43, 44, 51, 60, 135, 139, 140]),
            0..10,
        ));
        is_fragment = extensions.contains(&44);
        extensions
            .iter()
            .fold(link.ipv6(address, [9; 16]), |frame, number| match number {
                44 => frame.fragment(0, MoreFragments::Yes),
                number => frame.extension(*number, &[0; 7]),
            })
    } else {
        let [a, b, c, d, ..] = address;
        link.ipv4_with_options([a, b, c, d], [9; 4], source.draw(0u8..=10))
    };
    let payload = source.draw(prop::collection::vec(any::<u8>(), 0..40));
    let mut bytes = match source.draw(0u8..4) {
        0 => ip.udp(1, 2, &payload),
        1 => ip.tcp(1, 2, source.draw(any::<u8>()), &payload),
        2 => ip.icmp(8),
        _ => ip.payload(47, &payload),
    }
    .build();
    let network = 14 + 4 * tags;
    let packet = match parse(&Watched(&bytes), Link::Ethernet, Depth::Requests) {
        Ok(packet) => packet,
        // A short fragment; how long one has to be is asserted beside the parser.
        Err(Unparsed::TinyFragment) if is_fragment => return every_depth(&bytes, Link::Ethernet),
        Err(unparsed) => panic!("{unparsed:?}: {bytes:02x?}"),
    };
    let expected = if is_ipv6 {
        address.to_vec()
    } else {
        address[..4].to_vec()
    };
    assert!(packet.source.octets().ends_with(&expected), "{bytes:02x?}");
    assert_eq!(usize::from(packet.network_offset), network);
    every_depth(&bytes, Link::Ethernet);
    // Cut anywhere: the address is told for as long as it is there, and the frame is refused when it is not.
    let cut = source.draw(0..=bytes.len());
    let whole = network + if is_ipv6 { 40 } else { 20 };
    match parse(&Watched(&bytes[..cut]), Link::Ethernet, Depth::Requests) {
        Ok(short) => assert!(cut >= whole && short.source == packet.source),
        Err(Unparsed::TruncatedLink | Unparsed::TruncatedAddress) => {
            assert!(cut < whole, "cut at {cut} of {whole}");
        }
        Err(other) if hides_its_transport(other) => {
            assert!(cut >= whole, "cut at {cut} of {whole}: {other:?}");
        }
        Err(other) => panic!("cut at {cut}: {other:?}"),
    }
    let at = source.draw(0..bytes.len());
    bytes[at] = source.draw(any::<u8>());
    every_depth(&bytes, Link::Ethernet);
}

/// The shipped configs and a long one, with lines and characters moved about.
fn config(source: &mut Source) {
    const LONG: &str = "[agent]\ninterfaces = [\"eth0\"]\nattach = \"auto\"\nmode = \"observe\"\nmax_sources = 1_000\n\
        never_limit = [\"192.0.2.10\", \"2001:db8::/48\"]\n[[class]]\nname = \"a\"\nsources = [\"10.0.0.0/8\"]\nmultiplier = 2.5\n\
        [[limit]]\nname = \"l\"\ndirection = \"egress\"\nprotocol = \"udp\"\nports = [443, \"8000-8100\"]\nkey = \"destination\"\n\
        unit = \"bytes\"\nalgorithm = \"leaky-bucket\"\nrate = \"10MB/s\"\nburst = \"256KiB\"\naction = \"shape\"\n\
        [[limit]]\nname = \"m\"\nrate = \"10/5s\"\ntiers = [\"60/h\"]\nthrottle = { elastic = { up_to = 3.0 } }\non_full = \"share\"\n\
        [[limit]]\nname = \"n\"\nrate = \"1/s\"\naction = { mark = { mark = 7, dscp = 8 } }\nthrottle = \"hard\"\n";
    let mut lines: Vec<String> = LONG.lines().map(str::to_owned).collect();
    for _ in 0..source.draw(1usize..5) {
        let nth = source.draw(0..lines.len());
        match source.draw(0u8..5) {
            0 => {
                lines.remove(nth);
            }
            1 => lines.insert(nth, source.draw("[ -~\n]{0,30}")),
            2 => {
                let other = source.draw(0..lines.len());
                lines.swap(nth, other);
            }
            3 => {
                let mut line: Vec<char> = lines[nth].chars().collect();
                let at = source.draw(0..=line.len());
                line.insert(at, source.draw(any::<char>()));
                lines[nth] = line.into_iter().collect();
            }
            _ => {
                let value = source.draw(prop::sample::select(vec![
                    "0",
                    "-1",
                    "1e999",
                    "\"\"",
                    "[]",
                    "{}",
                    "true",
                    "\"1/s\"",
                    "\"99999999999999999999/s\"",
                    "\"0/0s\"",
                    "\"1/99999999999day\"",
                    "\"10TB/ns\"",
                    "18446744073709551616",
                    "nan",
                    "[[[]]]",
                    "{ soft = 1 }",
                ]));
                let key = lines[nth].split('=').next().unwrap_or("").to_owned();
                lines[nth] = format!("{key}= {value}");
            }
        }
        if lines.is_empty() {
            lines.push(String::new());
        }
    }
    entries::config(&lines.join("\n"));
}

/// A seed of a coverage-guided fuzzer, as it is or changed in places.
fn seed(source: &mut Source) {
    let target = source.draw(prop::sample::select(TARGETS.to_vec()));
    let seeds = seeds::of(target.0);
    let mut bytes = source.draw(prop::sample::select(seeds));
    for _ in 0..source.draw(0usize..6) {
        let at = source.draw(0..=bytes.len());
        match source.draw(0u8..4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, source.draw(any::<u8>())),
            2 => drop(bytes.splice(
                at..at,
                source.draw(prop::collection::vec(any::<u8>(), 0..8)),
            )),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = source.draw(any::<u8>());
                }
            }
        }
    }
    (target.1)(&bytes);
}

fn state(source: &mut Source) {
    let rate = Rate {
        count: source.draw(1u64..100_000),
        per_nanoseconds: source.draw(1_000u64..100_000_000_000_000),
    };
    let burst = source.draw(1u64..100_000);
    let scale = TickScale::for_longest_life(
        rate.nanoseconds_for(burst)
            .max(2 * u128::from(rate.per_nanoseconds)),
    );
    let (state, odd, now) = (
        source.draw(any::<u64>()),
        source.draw(any::<u64>()),
        source.draw(any::<u64>()),
    );
    let cost = source.draw(0u64..200_000);
    for costs in [Costs::Single, Costs::Many] {
        let bucket = TokenBucket::new(rate, burst, costs, scale);
        // A state of the algorithm's own lies no further ahead than the tolerance.
        let state = now.wrapping_add(state % bucket.tolerance.max(1));
        if let Decision::Pass(next) = bucket.decide(state, now, cost) {
            assert!(cost <= burst && next.wrapping_sub(now) <= bucket.tolerance);
            assert!(cost == 0 || is_alive(next, now));
            assert!(cost <= bucket.remaining(state, now));
        } else if let Some(wait) = bucket.wait(state, now, cost) {
            assert!(
                wait > 0 && bucket.decide(state, now.wrapping_add(wait), cost) != Decision::Refuse
            );
        }
        let leaky = LeakyBucket(bucket);
        if let Decision::Pass(next) = leaky.decide(state, now, 1) {
            assert!(leaky.departure(next, 1).wrapping_sub(now) < bucket.tolerance.max(1));
        }
        let _ = (
            bucket.decide(odd, now, cost),
            bucket.uncharged(odd, cost % (burst + 1)),
        );
    }
    let fixed = FixedWindow::new(rate, scale);
    if let Decision::Pass(next) = fixed.decide(state, now, cost) {
        assert!(cost <= rate.count && is_alive(next, now));
    }
    let _ = (
        fixed.remaining(state, now),
        fixed.wait(state, now, cost),
        fixed.refund(state, odd, cost),
    );
    let sliding = SlidingWindow::new(rate, scale);
    if sliding.is_representable() {
        let _ = (
            sliding.step(state, odd, now, cost),
            sliding.remaining(state, odd, now),
            sliding.wait(state, odd, now, 1),
        );
    }
    let log = SlidingLog::new(
        Rate {
            count: rate.count.min(1_024),
            ..rate
        },
        scale,
    );
    for ahead in 0..log.most.min(4) {
        assert!(log.place(state, ahead) < log.most);
    }
    if let Some(next) = log.take(odd, now) {
        // A place is taken only if its time has left the window, and then until this one has.
        assert!((odd == 0 || !is_alive(odd, now)) && is_alive(next, now));
    }
    let _ = log.advance(state, log.place(state, 0), now);
}
