//! Kernel programs of a trace build: what the verifier says of them, and what they log. `cargo xtask test` names their
//! object in WEIR_TRACE_OBJECT.

use std::net::IpAddr;
use std::sync::OnceLock;

use common::counters::{BYPASS_ROWS, Bypass};
use common::packet::Address;
use common::packet::build::Frame;
use common::throttle::Outcome;
use common::trace::TracedSources;
use datapath::compile::Image;
use datapath::{Datapath, Entry, OBJECT, PinDirectory, TraceRecord};

use super::{Pins, XDP_DROP, XDP_PASS, frame, image, run};

/// The traced source of these tests: 10.0.0.7.
const SOURCE: u32 = 7;

/// Why they cannot run, if they cannot.
pub fn obstacle() -> Option<String> {
    match std::env::var_os("WEIR_TRACE_OBJECT") {
        None => Some("tests of a trace build need its object: run `cargo xtask test`".to_owned()),
        Some(path) => std::fs::metadata(&path)
            .err()
            .map(|error| format!("WEIR_TRACE_OBJECT, {path:?}: {error}")),
    }
}

fn object() -> &'static [u8] {
    static OBJECT: OnceLock<Vec<u8>> = OnceLock::new();
    OBJECT.get_or_init(|| std::fs::read(std::env::var_os("WEIR_TRACE_OBJECT").unwrap()).unwrap())
}

fn load(image: &Image, pins: &Pins) -> Datapath {
    let pins = PinDirectory::open(&pins.0).unwrap();
    let mut datapath = Datapath::load_object(object(), image.clone(), &pins)
        .unwrap_or_else(|error| panic!("{error}"));
    datapath
        .prepare(Entry::Xdp)
        .unwrap_or_else(|error| panic!("{error}"));
    datapath
}

fn trace(datapath: &Datapath, sources: &[u32]) {
    let addresses = sources
        .iter()
        .map(|source| Address::from_ipv4((0x0a00_0000 + source).to_be_bytes()));
    datapath
        .trace()
        .expect("a log")
        .trace(TracedSources::of(addresses))
        .unwrap();
}

/// The logged verdicts; none may be lost.
fn logged(datapath: &Datapath) -> Vec<TraceRecord> {
    let (records, lost) = datapath.trace().unwrap().drain();
    assert_eq!(lost, 0);
    records
}

/// The release object has no trace of it.
pub fn the_ordinary_object_has_no_log() {
    let has = |name: &str| {
        OBJECT
            .windows(name.len())
            .any(|window| window == name.as_bytes())
    };
    assert!(has("SOURCES"), "names of maps are found");
    for name in ["AYA_LOG", "weir_trace", "TRACED"] {
        assert!(!has(name), "the ordinary object has {name}");
    }
    let pins = Pins::new();
    let directory = PinDirectory::open(&pins.0).unwrap();
    let datapath = Datapath::load(
        image("[[limit]]\nname = \"a\"\nrate = \"1/s\"\n"),
        &directory,
    )
    .unwrap();
    assert!(datapath.trace().is_none());
}

/// Every hook, with a policy of one limit and with one that uses all there is.
pub fn the_verifier_takes_every_program_of_a_trace_build() {
    const ALL: &str = "[[class]]\nname = \"c\"\nsources = [\"10.0.0.0/8\"]\nmultiplier = 2\n\
        [[limit]]\nname = \"a\"\nrate = \"1/s\"\nports = [53]\nthrottle = { elastic = { up_to = 2.0 } }\n\
        [[limit]]\nname = \"b\"\nrate = \"5/s\"\nalgorithm = \"sliding-window\"\nunit = \"requests\"\naction = \"reject\"\n\
        [[limit]]\nname = \"c\"\nrate = \"5/s\"\nalgorithm = \"sliding-log\"\ntiers = [\"9/min\"]\nkey = \"source-port\"\n\
        [[limit]]\nname = \"d\"\nrate = \"5/s\"\nalgorithm = \"fixed-window\"\naction = \"mark\"\n";
    for limits in ["[[limit]]\nname = \"a\"\nrate = \"1/s\"\n", ALL] {
        let pins = Pins::new();
        let mut datapath = load(&image(limits), &pins);
        for entry in [Entry::Xdp, Entry::Tc, Entry::TcIp] {
            datapath
                .prepare(entry)
                .unwrap_or_else(|error| panic!("{entry:?}: {error}"));
            let verified = datapath.verified_instructions(entry).unwrap();
            println!("{entry:?}: {verified:?} instructions verified");
            assert!(
                verified.is_none_or(|verified| verified < 800_000),
                "{entry:?}: {verified:?}"
            );
        }
    }
}

pub fn a_trace_has_the_verdicts_of_its_sources_and_what_decided() {
    let mut image = image(
        "[[class]]\nname = \"free\"\nsources = [\"10.0.0.9\"]\nunlimited = true\n\
         [[limit]]\nname = \"a\"\nrate = \"1/h\"\nburst = 2\n[[limit]]\nname = \"b\"\nrate = \"1/h\"\nburst = 3\n\
         protocol = \"udp\"\naction = \"observe\"\n",
    );
    image.settings.given_clock = 0;
    let pins = Pins::new();
    let datapath = load(&image, &pins);
    assert_eq!(run(&datapath, &frame(SOURCE, 20), 1), XDP_PASS);
    assert!(logged(&datapath).is_empty(), "nobody is traced");

    // Only the traced sources, in the order of their packets, and each with what decided.
    trace(&datapath, &[SOURCE, 9]);
    assert_eq!(run(&datapath, &frame(SOURCE, 20), 1), XDP_PASS);
    assert_eq!(run(&datapath, &frame(8, 20), 1), XDP_PASS);
    assert_eq!(run(&datapath, &frame(SOURCE, 30), 1), XDP_DROP);
    assert_eq!(run(&datapath, &frame(9, 20), 1), XDP_PASS);
    let records = logged(&datapath);
    let sources: Vec<IpAddr> = records.iter().map(|record| record.source).collect();
    assert_eq!(
        sources,
        [[10, 0, 0, 7], [10, 0, 0, 7], [10, 0, 0, 9]].map(IpAddr::from)
    );
    let told = |nth: usize| (records[nth].is_refused, records[nth].outcome);
    assert_eq!(told(0), (false, Some(Outcome::Passed)));
    assert_eq!(told(1), (true, Some(Outcome::Throttled)));
    assert_eq!(
        image.catalogue[(records[1].counter - BYPASS_ROWS) as usize]
            .at
            .limit,
        0,
        "the first limit refused it"
    );
    assert_eq!(
        (told(2), records[2].counter),
        ((false, Some(Outcome::Passed)), Bypass::Unlimited as u32)
    );
    // Ethernet, IPv4 and UDP have 42 bytes.
    assert_eq!(
        (records[0].bytes, records[1].bytes, records[0].packets),
        (62, 72, 1)
    );
    assert!(
        records
            .iter()
            .all(|record| (record.protocol, record.port) == (1, 53)),
        "{records:?}"
    );
    assert!(records.is_sorted_by_key(|record| record.at));

    // A trace that has ended.
    trace(&datapath, &[]);
    assert_eq!(run(&datapath, &frame(SOURCE, 20), 1), XDP_DROP);
    assert!(logged(&datapath).is_empty());

    // IPv6, by exactly this address.
    let v6 = |last: u8| [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    datapath
        .trace()
        .unwrap()
        .trace(TracedSources::of([Address::from_ipv6(v6(7))]))
        .unwrap();
    for last in [6, 7, 8] {
        run(
            &datapath,
            &Frame::ethernet()
                .ipv6(v6(last), v6(1))
                .tcp(1, 22, 2, b"")
                .build(),
            1,
        );
    }
    let records = logged(&datapath);
    assert_eq!(records.len(), 1, "{records:?}");
    assert_eq!(
        (records[0].source, records[0].protocol, records[0].port),
        (IpAddr::from(v6(7)), 0, 22)
    );
}

/// A limit that only observes says what it would refuse.
pub fn a_trace_has_what_an_observed_limit_would_refuse() {
    let pins = Pins::new();
    let image = image("[[limit]]\nname = \"a\"\nrate = \"1/h\"\nburst = 1\naction = \"observe\"\n");
    let mut datapath = load(&image, &pins);
    datapath.prepare(Entry::Tc).unwrap();
    trace(&datapath, &[SOURCE]);
    for _ in 0..2 {
        assert_eq!(run(&datapath, &frame(SOURCE, 20), 1), XDP_PASS);
    }
    let told: Vec<_> = logged(&datapath)
        .iter()
        .map(|record| (record.is_refused, record.outcome))
        .collect();
    assert_eq!(
        told,
        [
            (false, Some(Outcome::Passed)),
            (false, Some(Outcome::WouldThrottle))
        ]
    );
    // The other hook logs as well.
    let mut options = aya::programs::TestRunOptions::new();
    let bytes = frame(SOURCE, 20);
    options.data_in = Some(&bytes);
    datapath.test_run(Entry::Tc, options).unwrap();
    assert_eq!(logged(&datapath).len(), 1);
}

/// Every packet of a traced source is logged or counted as lost, and a flood of others fills no ring.
pub fn a_traced_flood_is_logged_or_counted_as_lost_and_another_is_not_logged() {
    // What a CPU lost shows in its own next record.
    let tested = testbed::measure::pinned(0, || {
        traced_flood();
        Ok(())
    });
    tested.unwrap();
}

fn traced_flood() {
    const PACKETS: u32 = 50_000;
    let pins = Pins::new();
    let datapath = load(
        &image("[[limit]]\nname = \"a\"\nrate = \"1/h\"\nburst = 1\n"),
        &pins,
    );
    trace(&datapath, &[SOURCE]);
    run(&datapath, &frame(8, 20), PACKETS);
    assert!(logged(&datapath).is_empty());
    run(&datapath, &frame(SOURCE, 20), PACKETS);
    let (mut records, mut lost) = datapath.trace().unwrap().drain();
    assert!(
        records.len() < PACKETS as usize / 2,
        "{} logged",
        records.len()
    );
    // The first passed. What a CPU lost last shows in the number of its next record, once a window of the quota is over.
    let mut refused = u64::from(PACKETS) - 1;
    let told =
        |records: &[TraceRecord]| records.iter().filter(|record| record.is_refused).count() as u64;
    while told(&records) + lost < u64::from(PACKETS) - 1 {
        std::thread::sleep(std::time::Duration::from_millis(150));
        run(&datapath, &frame(SOURCE, 20), 1);
        refused += 1;
        let (more, gap) = datapath.trace().unwrap().drain();
        records.extend(more);
        lost += gap;
    }
    assert!(
        told(&records) + lost <= refused,
        "{} logged and {lost} lost of {refused}",
        told(&records)
    );
}
