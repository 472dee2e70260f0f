//! The cost of `weir top` with a million sources in the table:
//! `cargo xtask build && sudo -E WEIR_EBPF_OBJECT=target/bpf/weir.o cargo bench -p agent --bench top`.
//!
//! The table is filled by the kernel's program itself, run on made-up packets (BPF_PROG_TEST_RUN); nothing is attached.
//! It ends with status 1 if half of the views take 200 ms or more of a CPU's
//! time: by the clock they take longer where the machine has other things to do, and that is printed beside it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use aya::programs::TestRunOptions;
use common::packet::Direction;
use common::packet::build::Frame;
use datapath::bans::BanList;
use datapath::compile::compile;
use datapath::{Datapath, Entry, OBJECT, PinDirectory};
use nix::time::{ClockId, clock_gettime};
use weir::stats::{Extent, Live, MOST_SOURCES, Reader, Sort, ViewQuery};

const SOURCES: u32 = 1_000_000;
const VIEWS: usize = 50;
const LONGEST: Duration = Duration::from_millis(200);
/// Packets of one measurement of the packet path.
const PACKETS: u32 = 1_000_000;
const ROUNDS: usize = 5;

fn main() -> ExitCode {
    if !nix::unistd::geteuid().is_root() || OBJECT.is_empty() {
        eprintln!(
            "this needs root, and an agent with its eBPF object: cargo xtask build, and WEIR_EBPF_OBJECT"
        );
        return ExitCode::FAILURE;
    }
    let pins = Pins(PathBuf::from(format!(
        "/sys/fs/bpf/weir-tk{}-top",
        std::process::id()
    )));
    let text = format!(
        "[agent]\ninterfaces = [\"lo\"]\nmax_sources = {SOURCES}\n[[limit]]\nname = \"packets\"\nrate = \"1/day\"\n"
    );
    let loaded =
        config::parse(Path::new("limits.toml"), &text).unwrap_or_else(|report| panic!("{report}"));
    let image = compile(&loaded.config, Direction::Ingress).expect("one limit");
    let directory = PinDirectory::open(&pins.0).unwrap_or_else(|error| panic!("{error}"));
    let mut datapath = Datapath::load(image, &directory).unwrap_or_else(|error| panic!("{error}"));
    datapath
        .prepare(Entry::Xdp)
        .unwrap_or_else(|error| panic!("{error}"));

    let mut frame = Frame::ethernet()
        .ipv4([10, 0, 0, 0], [198, 51, 100, 1])
        .udp(7, 53, b"")
        .build();
    for source in 0..SOURCES {
        Frame::set_ipv4_source(&mut frame, (0x0a00_0000 + source).to_be_bytes());
        // One that passes, and one that is refused. Not in one call: for several the kernel patches its code first.
        run(&datapath, &frame, 1);
        run(&datapath, &frame, 1);
    }
    let bans = BanList::default();
    let counted = weir::stats::Counted::default();
    let baseline = weir::stats::Baseline::default();
    let reader = Reader::new(
        &loaded.config,
        (&datapath, None),
        &bans,
        &counted,
        &baseline,
    );
    let (_, sources, ..) = reader.totals(Extent::Whole).expect("counters");
    let remembered = datapath.samples().expect("samples").len();
    println!(
        "{} sources in the table, {remembered} of them remembered by address",
        sources.tracked
    );

    let mut parts: [(&str, &mut dyn FnMut()); 4] = [
        ("the remembered, in batches", &mut || {
            drop(datapath.samples());
        }),
        ("the table: how many are tracked", &mut || {
            drop(reader.totals(Extent::Whole));
        }),
        ("the table: keys of each limit", &mut || {
            drop(reader.limits(Extent::Whole));
        }),
        ("counters without the table", &mut || {
            drop((
                reader.totals(Extent::Counters),
                reader.limits(Extent::Counters),
            ));
        }),
    ];
    for (what, part) in &mut parts {
        report(what, (0..VIEWS).map(|_| time(*part)).collect());
    }
    let mut live = Live::default();
    let used = report(
        "a whole view",
        (0..VIEWS)
            .map(|nth| time(&mut || drop(view(&reader, &mut live, nth))))
            .collect(),
    );

    // The packet path on one CPU, while another makes one view after the other. They take turns, so that what else the
    // machine does falls on both; the best of each is what there is to say.
    let (mut alone, mut beside) = (u64::MAX, u64::MAX);
    for _ in 0..ROUNDS {
        alone = alone.min(on_cpu(1, || nanoseconds(&datapath, &frame)));
        let is_over = AtomicBool::new(false);
        beside = beside.min(thread::scope(|scope| {
            scope.spawn(|| {
                on_cpu(0, || {
                    for nth in (0..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                        drop(view(&reader, &mut live, nth));
                    }
                });
            });
            let beside = on_cpu(1, || nanoseconds(&datapath, &frame));
            is_over.store(true, Ordering::Relaxed);
            beside
        }));
    }
    println!(
        "a packet: {alone} ns alone, {beside} ns beside views without a pause (one a second is what top asks for)"
    );
    if used < LONGEST {
        ExitCode::SUCCESS
    } else {
        eprintln!("MISSED: a view below {LONGEST:?}");
        ExitCode::FAILURE
    }
}

/// Pins, gone when dropped.
struct Pins(PathBuf);

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Everything that the agent does for one view of `weir top`, to the text that goes through the socket.
fn view(reader: &Reader<'_>, live: &mut Live, nth: usize) -> String {
    let sort = [
        Sort::ThrottledRate,
        Sort::PassedRate,
        Sort::Throttled,
        Sort::Passed,
    ][nth % 4];
    let query = ViewQuery {
        sort,
        within: None,
        most: MOST_SOURCES,
        prefixes: None,
    };
    let sources = live.view(reader, &query, None).expect("a view");
    let (totals, limits) = (
        reader.totals(Extent::Whole).expect("totals"),
        reader.limits(Extent::Whole).expect("limits"),
    );
    serde_json::to_string(&(sources, totals.0, totals.1, totals.2, limits)).expect("a document")
}

/// (how long it took, how long of that on a CPU): they differ where the machine has other things to do.
fn time(work: &mut dyn FnMut()) -> (Duration, Duration) {
    let on_cpu =
        || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from);
    let (start, before) = (Instant::now(), on_cpu());
    work();
    (start.elapsed(), on_cpu() - before)
}

/// Prints what was measured; the median of what it took of a CPU.
fn report(what: &str, mut times: Vec<(Duration, Duration)>) -> Duration {
    times.sort_unstable();
    let (median, on_cpu) = times[times.len() / 2];
    println!(
        "{what}: median {median:?}, of it {on_cpu:?} on a CPU; longest {:?}",
        times[times.len() - 1].0
    );
    on_cpu
}

fn run(datapath: &Datapath, frame: &[u8], repeat: u32) -> Duration {
    let mut options = TestRunOptions::new();
    options.data_in = Some(frame);
    options.repeat = repeat;
    datapath
        .test_run(Entry::Xdp, options)
        .unwrap_or_else(|error| panic!("{error}"))
        .duration
}

/// Nanoseconds a packet of one key that is refused.
fn nanoseconds(datapath: &Datapath, frame: &[u8]) -> u64 {
    run(datapath, frame, PACKETS).as_nanos() as u64
}

fn on_cpu<T: Send>(cpu: usize, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let mut set = nix::sched::CpuSet::new();
            // On a machine of one CPU both are on it.
            if set.set(cpu).is_ok() {
                let _ = nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set);
            }
            work()
        });
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
