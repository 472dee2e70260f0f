//! Two CPUs at once on one key.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::event::Event;
use common::settings::Runtime;
use testbed::trials::is_long;

use super::{Pins, frame, image, load, run};

/// Runs `work` on two threads, each on a CPU of its own.
fn on_two_cpus(work: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for cpu in 0..2 {
            let work = &work;
            scope.spawn(move || {
                let mut set = nix::sched::CpuSet::new();
                set.set(cpu).unwrap();
                nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set).unwrap();
                work(cpu);
            });
        }
    });
}

/// Two CPUs at once, for some time: round by round at instants that the test gives, where what is allowed is known
/// exactly and nothing depends on when a thread happens to run.
pub fn hammer(algorithm: &str) {
    let count = 500u64;
    let mut image = image(&format!(
        "[[limit]]\nname = \"a\"\nrate = \"{count}/250ms\"\nalgorithm = \"{algorithm}\"\n"
    ));
    image.settings.given_clock = 1;
    let pins = Pins::new();
    let datapath = std::sync::RwLock::new(load(&image, &pins));
    let frame = frame(1, 20);
    let barrier = std::sync::Barrier::new(2);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let time = Duration::from_secs(if is_long() { 5 } else { 1 });
    let start = Instant::now();
    on_two_cpus(|cpu| {
        for round in 1.. {
            if cpu == 0 {
                is_over.store(start.elapsed() >= time, Ordering::SeqCst);
                // Far enough on that all that was passed has left every window.
                let runtime = Runtime {
                    nanoseconds: round * 1_000_000_000,
                    ..Runtime::default()
                };
                datapath.write().unwrap().set_runtime(runtime).unwrap();
            }
            barrier.wait();
            if is_over.load(Ordering::SeqCst) {
                break;
            }
            run(&datapath.read().unwrap(), &frame, 2 * count as u32);
            barrier.wait();
            if cpu == 0 {
                let counters = datapath.read().unwrap().counters().unwrap();
                let passed: u64 = counters.iter().map(|row| row.passed.packets).sum();
                let allowed = round * count;
                assert!(
                    passed <= allowed,
                    "{algorithm}: {passed} passed of {allowed} in round {round}"
                );
                assert!(
                    passed * 100 >= allowed * 99,
                    "{algorithm}: only {passed} of {allowed} passed in round {round}"
                );
            }
        }
    });
}

pub fn two_cpus_that_meet_new_sources_at_once_pass_one_burst_each() {
    // One packet a day, and a million sources that both CPUs meet at the same instant.
    let mut image = image("[[limit]]\nname = \"a\"\nrate = \"1/day\"\n");
    let sources = 1_000_000u32;
    image.settings.shape.sets = sources;
    let pins = Pins::new();
    let datapath = load(&image, &pins);
    let turn = [const { AtomicU32::new(0) }; 2];
    on_two_cpus(|cpu| {
        for source in 1..=sources {
            let frame = frame(source, 20);
            // In step, to within the time of a system call.
            turn[cpu].store(source, Ordering::SeqCst);
            while turn[1 - cpu].load(Ordering::SeqCst) < source {
                std::hint::spin_loop();
            }
            run(&datapath, &frame, 1);
        }
    });
    let counters = datapath.counters().unwrap();
    let passed: u64 = counters.iter().map(|row| row.passed.packets).sum();
    let throttled: u64 = counters.iter().map(|row| row.throttled.packets).sum();
    let table = datapath.table_counters().unwrap();
    assert_eq!(passed + throttled, 2 * u64::from(sources));
    // Sets that are full let new keys pass uncounted by this policy, and keys as busy give way: each is counted.
    let excused = table.full_passed + table.evicted;
    assert!(
        passed <= u64::from(sources) + excused,
        "{passed} passed, {excused} excused"
    );
    assert!(
        passed + table.contended >= u64::from(sources),
        "{passed} passed, {} contended",
        table.contended
    );
    assert!(
        excused * 100 < u64::from(sources),
        "{excused} of {sources} found no room of their own"
    );
}

pub fn two_cpus_that_refuse_one_source_at_once_report_it_once() {
    let mut image = image("[[limit]]\nname = \"a\"\nrate = \"1/day\"\n");
    image.settings.given_clock = 1;
    let pins = Pins::new();
    let mut datapath = load(&image, &pins);
    // A source that nobody has seen, and the same once it is known.
    for round in 0..200 {
        datapath
            .set_runtime(Runtime {
                nanoseconds: (round + 1) * 2 * Event::INTERVAL,
                ..Runtime::default()
            })
            .unwrap();
        let barrier = std::sync::Barrier::new(2);
        on_two_cpus(|_| {
            barrier.wait();
            run(&datapath, &frame(1 + round as u32 / 2, 20), 1_000);
        });
        let told = datapath.events().drain();
        assert_eq!(told.len(), 1, "in round {round}: {told:?}");
    }
}

pub fn two_cpus_that_refuse_one_source_count_each_refusal_of_it() {
    const PACKETS: u32 = 300_000;
    let image = image("[[limit]]\nname = \"a\"\nrate = \"1/day\"\n");
    let pins = Pins::new();
    let datapath = load(&image, &pins);
    let barrier = std::sync::Barrier::new(2);
    on_two_cpus(|_| {
        barrier.wait();
        run(&datapath, &frame(1, 20), PACKETS);
    });
    let rows = datapath.counters().unwrap();
    let refused: u64 = rows.iter().map(|row| row.throttled.packets).sum();
    assert_eq!(refused, u64::from(2 * PACKETS - 1));
    let samples = datapath.samples_with_rest(None).unwrap();
    let sampled: u64 = samples.iter().map(|(_, sample)| sample.refused).sum();
    // Until both CPUs count by themselves, they may count one of two packets at the same instant, or a step of 64 twice.
    assert!(
        sampled.abs_diff(refused) <= 4 * 64,
        "{sampled} of {refused} refusals are counted for the source"
    );
}
