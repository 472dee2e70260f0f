//! Charges that are taken back: each algorithm's `SharedCharge`.

use std::sync::Arc;

use common::limiter::{
    FixedWindow, SharedCharge, SharedState, SlidingLog, SlidingWindow, TokenBucket,
};
use common::throttle::Cell;
use common::time::Ticks;
use loom::sync::atomic::AtomicU64;
use models::{Word, Work, cpus, explore};

const PREEMPTIONS: usize = 2;

/// The instant 0 of the models: a multiple of the windows.
const START: Ticks = 1 << 40;

/// A bucket of two units, one of which flows back in two ticks.
const BUCKET: TokenBucket = TokenBucket {
    emission: 2,
    emission_shift: 0,
    tolerance: 4,
    burst: 2,
};

/// The state of a key.
struct State {
    words: [AtomicU64; 2],
    ring: [AtomicU64; 2],
}

impl State {
    fn new() -> Arc<Self> {
        let word = || AtomicU64::new(START);
        let place = || AtomicU64::new(0);
        Arc::new(Self {
            words: [word(), word()],
            ring: [place(), place()],
        })
    }
}

impl<'m> SharedState for &'m State {
    type Place = Word<'m>;

    fn load(&self, word: u32) -> u64 {
        Word(&self.words[word as usize]).load()
    }

    fn compare_exchange(&self, word: u32, current: u64, new: u64) -> u64 {
        Word(&self.words[word as usize]).compare_exchange(current, new)
    }

    fn place(&self, nth: u32) -> Option<Word<'m>> {
        self.ring.get(nth as usize).map(Word)
    }

    fn load_place(&self, place: Word<'m>) -> u64 {
        place.load()
    }

    fn compare_exchange_place(&self, place: Word<'m>, current: u64, new: u64) -> u64 {
        place.compare_exchange(current, new)
    }

    fn has_gone(&self) -> bool {
        // Queried before each further try: other CPUs make progress.
        loom::thread::yield_now();
        false
    }
}

/// A packet that passes this limit at an instant, and whose charge is kept, or taken back because another limit refuses it.
#[derive(Clone, Copy)]
struct Packet {
    at: Ticks,
    is_kept: bool,
}

const fn passes(at: Ticks) -> Packet {
    Packet { at, is_kept: true }
}

const fn refused(at: Ticks) -> Packet {
    Packet { at, is_kept: false }
}

/// Whether the packet passes.
fn evaluate<L: SharedCharge>(limiter: &L, state: &State, packet: Packet) -> bool {
    let now = START + packet.at;
    let charge = limiter.charge_shared(&state, now, 1);
    if !charge.is_done() {
        return false;
    }
    if !packet.is_kept {
        limiter.refund_shared(&state, charge, now, 1);
    }
    packet.is_kept
}

/// Explores packets on a CPU each, and then as many as pass at each of `then`. Every set of passed instants is to be
/// `allowed`; the instants are sorted.
fn explore_packets<L: SharedCharge + Copy + Send + Sync + 'static>(
    name: &str,
    limiter: L,
    packets: &[Packet],
    then: &'static [Ticks],
    allowed: fn(&[Ticks]) -> bool,
) {
    let packets = packets.to_vec();
    explore(name, PREEMPTIONS, move || {
        let state = State::new();
        let works: Vec<Work<State, bool>> = packets
            .iter()
            .copied()
            .map(|packet| -> Work<State, bool> {
                Box::new(move |state| evaluate(&limiter, state, packet))
            })
            .collect();
        let passed = cpus(&state, works);
        let mut instants: Vec<Ticks> = packets
            .iter()
            .zip(passed)
            .filter(|(_, passed)| *passed)
            .map(|(packet, _)| packet.at)
            .collect();
        for at in then {
            while evaluate(&limiter, &state, passes(*at)) {
                instants.push(*at);
                assert!(instants.len() < 20, "nothing is refused");
            }
        }
        instants.sort_unstable();
        assert!(allowed(&instants), "passed at {instants:?}");
    });
}

/// Whether at most `most` units, and one more for each `interval`, pass in every span.
fn fits(instants: &[Ticks], most: u64, interval: Ticks) -> bool {
    (0..instants.len()).all(|first| {
        (first..instants.len()).all(|last| {
            let units = (last - first) as u64 + 1;
            units.saturating_sub(most) * interval <= instants[last] - instants[first]
        })
    })
}

fn fits_the_bucket(instants: &[Ticks]) -> bool {
    fits(instants, BUCKET.burst, BUCKET.emission)
}

#[test]
fn a_bucket_takes_back_no_more_than_is_there() {
    explore_packets(
        "bucket, one of two refused",
        BUCKET,
        &[refused(0), passes(1)],
        &[2],
        fits_the_bucket,
    );
    explore_packets(
        "bucket, two of three refused",
        BUCKET,
        &[refused(0), refused(0), passes(1)],
        &[2, 3],
        fits_the_bucket,
    );
}

/// T = 4 ticks, N = 2.
const WINDOW: FixedWindow = FixedWindow {
    window: 4,
    most: 2,
    count_bits: 2,
};

/// Windows follow each other, so that at most two of them have a part in less than T.
#[test]
fn a_fixed_window_takes_back_no_more_than_is_there() {
    explore_packets(
        "fixed window, one of two refused",
        WINDOW,
        &[refused(0), passes(1)],
        &[2, 9],
        |instants| {
            let at = |window: fn(&&Ticks) -> bool| instants.iter().filter(window).count();
            at(|at| **at < 4) <= 2 && at(|at| **at > 8) <= 2
        },
    );
    explore_packets(
        "fixed window, refused when the next has begun",
        WINDOW,
        &[refused(0), passes(8)],
        &[8],
        |instants| instants.len() <= 2,
    );
}

/// T = 16 ticks, N = 2, with the count and the seal in the lowest three bits.
const SLIDING: SlidingWindow = SlidingWindow {
    window: 16,
    most: 2,
    low_bits: 3,
    share_shift: 0,
};

#[test]
fn a_sliding_window_takes_back_no_more_than_is_there() {
    explore_packets(
        "sliding window, one of two refused",
        SLIDING,
        &[refused(0), passes(1)],
        &[2],
        |instants| instants.len() <= 2,
    );
    // One packet of the window before counts half at 24: at most two more, by the estimate.
    explore_packets(
        "sliding window, refused when the next has begun",
        SLIDING,
        &[refused(15), passes(15), passes(16)],
        &[24],
        |instants| {
            let before = instants.iter().filter(|at| **at < 16).count();
            let (now, in_view) = (instants.len() - before, before * 8);
            now == 0 || (now - 1) * 16 + in_view < 2 * 16
        },
    );
}

/// A CPU that is late by a window or by two reads one word before another CPU begins a window, and the other one after
/// that. It erases no count.
#[test]
fn a_late_cpu_erases_no_window() {
    explore_packets(
        "sliding window, late CPUs",
        SLIDING,
        &[passes(15), passes(16), passes(32)],
        &[32],
        |instants| instants.iter().filter(|at| **at >= 32).count() <= 2,
    );
}

/// T = 4 ticks, N = 1 or 2.
const fn log(most: u32) -> SlidingLog {
    SlidingLog {
        window: 4,
        most,
        places: most,
        place_bits: 2,
    }
}

/// A log of one on a ring that a log of two uses, too: another CPU that charges at the same instant may pass one more.
#[test]
fn a_log_on_a_larger_ring_passes_one_more_for_each_other_cpu() {
    let one = SlidingLog {
        places: 2,
        ..log(1)
    };
    explore_packets(
        "log of one in a ring of two",
        one,
        &[passes(0), passes(0)],
        &[1, 2],
        |instants| instants.len() <= 2,
    );
    explore_packets(
        "log of one in a ring of two, one CPU",
        one,
        &[passes(0)],
        &[1, 4, 6, 9],
        |instants| fits(instants, 1, 4),
    );
}

#[test]
fn a_log_takes_back_only_its_own_place() {
    explore_packets(
        "log of one, refused when its place is taken again",
        log(1),
        &[refused(0), passes(6)],
        &[7],
        |instants| fits(instants, 1, 4),
    );
    explore_packets(
        "log of two, one of two refused",
        log(2),
        &[refused(0), passes(1)],
        &[2, 3],
        |instants| {
            let within = |from: &Ticks| {
                instants
                    .iter()
                    .filter(|at| (*from..from + 4).contains(*at))
                    .count()
            };
            instants.iter().all(|from| within(from) <= 2)
        },
    );
}
