//! How many packets a second `weir replay` evaluates on one core, from a file in the page cache, and where the time goes.
//!
//! `cargo bench -p agent --bench replay [-- PACKETS]`. Time is that of the CPU; each figure is the median of five rounds, and
//! all take turns round by round.

use std::cell::Cell;
use std::fs::File;
use std::hint::black_box;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use common::packet::build::Frame;
use common::packet::{Depth, Link, parse};
use datapath::compile::plan;
use nix::time::{ClockId, clock_gettime};
use weir::replay::capture::{Capture, InterfaceNames};
use weir::replay::{Evaluation, Local, TableMemory, replay};

const PACKETS: u32 = 2_000_000;
const ROUNDS: usize = 5;
/// Packets a second on one core.
const AIM: f64 = 5e6;

const ONE: &str = "[agent]\ninterfaces = [\"lo\"]\n[[limit]]\nname = \"a\"\nrate = \"1000/s\"\n";
const FOUR: &str = "[agent]\ninterfaces = [\"lo\"]\n\
    [[class]]\nname = \"c\"\nsources = [\"10.0.1.0/24\"]\nmultiplier = 2\n\
    [[limit]]\nname = \"a\"\nrate = \"1000/s\"\n[[limit]]\nname = \"b\"\nrate = \"2000/s\"\nports = [80]\n\
    [[limit]]\nname = \"c\"\nrate = \"3000/s\"\nalgorithm = \"sliding-window\"\n\
    [[limit]]\nname = \"d\"\nrate = \"1MB/s\"\nunit = \"bytes\"\n";

/// A measurement.
struct Case {
    name: &'static str,
    run: Box<dyn Fn(&Path) -> u64>,
    seconds: Vec<f64>,
}

fn main() {
    let packets = std::env::args()
        .skip(1)
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(PACKETS);
    let folder = tempfile::tempdir().unwrap();
    let busy = folder.path().join("busy.pcap");
    let wide = folder.path().join("wide.pcap");
    // A thousand sources, which a cache holds, and as many as packets / 4.
    write(&busy, packets, 1_000);
    write(&wide, packets, packets / 4);
    for (what, file) in [
        ("1,000 sources", &busy),
        ("sources of 4 packets each", &wide),
    ] {
        let bytes = file.metadata().unwrap().len();
        println!(
            "{what}: {packets} packets of 60 to 1514 bytes, cut at 96, {} MiB",
            bytes >> 20
        );
        measure(file, packets);
    }
}

fn measure(file: &Path, packets: u32) {
    let local = || Local::new(&["10.9.0.0/16".parse().unwrap()]);
    let mut cases = [
        case("read", |file| each(file, |_| {})),
        case("read, parse", |file| {
            let is_cut = Cell::new(false);
            each(file, |packet| {
                let frame = weir::replay::CapturedFrame::new(packet, &is_cut);
                black_box(parse(&frame, Link::Ethernet, Depth::Ports).is_ok());
            })
        }),
        case("replay, one limit", |file| {
            replayed(file, &[ONE], &Local::default())
        }),
        case("replay, one limit, --local", move |file| {
            replayed(file, &[ONE], &local())
        }),
        case("replay, four limits", |file| {
            replayed(file, &[FOUR], &Local::default())
        }),
        case("replay, one limit, --compare four", |file| {
            replayed(file, &[ONE, FOUR], &Local::default())
        }),
    ];
    for _ in 0..ROUNDS {
        for case in &mut cases {
            let start = processor_seconds();
            assert_eq!((case.run)(file), u64::from(packets), "{}", case.name);
            case.seconds.push(processor_seconds() - start);
        }
    }
    for case in &mut cases {
        case.seconds.sort_by(f64::total_cmp);
        let seconds = case.seconds[ROUNDS / 2];
        let rate = f64::from(packets) / seconds;
        println!(
            "  {:36} {:6.1} ns a packet {:7.2} million packets/s  {:4.2} of the aim",
            case.name,
            seconds * 1e9 / f64::from(packets),
            rate / 1e6,
            rate / AIM
        );
    }
}

fn case(name: &'static str, run: impl Fn(&Path) -> u64 + 'static) -> Case {
    Case {
        name,
        run: Box::new(run),
        seconds: Vec::new(),
    }
}

fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap();
    time.tv_sec() as f64 + time.tv_nsec() as f64 / 1e9
}

fn each(file: &Path, mut packet: impl FnMut(&weir::replay::capture::CapturedPacket<'_>)) -> u64 {
    let mut names = InterfaceNames::default();
    let mut capture = Capture::open(file, &mut names).unwrap();
    while capture.advance(&mut names).unwrap() {
        packet(&black_box(capture.packet().unwrap()));
    }
    capture.packets()
}

fn replayed(file: &Path, limits: &[&str], local: &Local) -> u64 {
    let configs: Vec<_> = limits
        .iter()
        .map(|text| {
            let config = config::parse(Path::new("limits.toml"), text)
                .unwrap_or_else(|report| panic!("{report}"))
                .config;
            let plan = plan(&config).unwrap();
            (config, plan)
        })
        .collect();
    let mut memories: Vec<_> = configs
        .iter()
        .map(|(_, plan)| TableMemory::new(&plan.ingress.settings))
        .collect();
    let mut evaluations: Vec<_> = configs
        .iter()
        .zip(&mut memories)
        .map(|((config, plan), memory)| Evaluation::new(config, plan, memory.table()))
        .collect();
    let outcome = replay(
        &[file.to_owned()],
        InterfaceNames::default(),
        local,
        &mut evaluations,
        |_| {},
    );
    black_box(evaluations[0].tally());
    outcome.captures[0].packets
}

/// A capture of UDP packets from so many sources in turn, 200,000 a second, cut at 96 bytes.
fn write(path: &Path, packets: u32, sources: u32) {
    const CUT: usize = 96;
    let mut file = BufWriter::new(File::create(path).unwrap());
    for word in [0xa1b2_3c4du32, 0x0004_0002, 0, 0, CUT as u32, 1] {
        file.write_all(&word.to_le_bytes()).unwrap();
    }
    let frames: Vec<Vec<u8>> = [18, 100, 400, 1_472]
        .iter()
        .map(|payload| {
            Frame::ethernet()
                .ipv4([0; 4], [10, 9, 9, 9])
                .udp(7, 80, &vec![0; *payload])
                .build()
        })
        .collect();
    for nth in 0..packets {
        let mut frame = frames[(nth % 7 % 4) as usize].clone();
        let length = frame.len() as u32;
        // Sources follow each other as if at random.
        let source = nth.wrapping_mul(2_654_435_761) % sources;
        Frame::set_ipv4_source(&mut frame, (0x0a00_0000 + source).to_be_bytes());
        frame.truncate(CUT);
        let nanoseconds = u64::from(nth) * 5_000;
        let (seconds, fraction) = (
            1_700_000_000 + nanoseconds / 1_000_000_000,
            nanoseconds % 1_000_000_000,
        );
        for word in [seconds as u32, fraction as u32, frame.len() as u32, length] {
            file.write_all(&word.to_le_bytes()).unwrap();
        }
        file.write_all(&frame).unwrap();
    }
    file.flush().unwrap();
    // Into the page cache.
    black_box(std::fs::read(path).unwrap());
}
