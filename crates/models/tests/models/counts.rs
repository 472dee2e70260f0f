//! The counts of refused packets for `escalate`: a tally in the key's slot, and its full steps in the key's sample.

use std::sync::Arc;

use common::counters::gained;
use common::table::Tally;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use models::{Work, cpus, explore};

const STEP: u64 = Tally::STEP as u64;

/// The counts of one key.
struct Counts {
    tally: AtomicU64,
    sample: AtomicU64,
}

impl Counts {
    /// With refused packets before the model begins.
    fn after(refused: u64) -> Arc<Self> {
        Arc::new(Self {
            tally: AtomicU64::new(refused % STEP),
            sample: AtomicU64::new(refused / STEP * STEP),
        })
    }

    /// As the kernel program counts a refused packet: the tally is read and written, then a full step is added.
    fn refuse(&self) {
        let (tally, counted) = Tally(self.tally.load(Relaxed) as u8).plus(1, 0);
        self.tally.store(u64::from(tally.0), Relaxed);
        if counted.carried != 0 {
            self.sample.fetch_add(u64::from(counted.carried), AcqRel);
        }
    }

    /// As the agent reads it: the samples by system calls, then the tally in memory.
    fn read(&self) -> u64 {
        let sample = self.sample.load(Acquire);
        sample + u64::from(Tally(self.tally.load(Relaxed) as u8).rest())
    }
}

/// A reading beside a CPU that refuses counts no packet twice, and the next one has all.
#[test]
fn a_reading_while_packets_are_refused_counts_none_twice() {
    explore("a reading", 4, || {
        let before = 2 * STEP - 2;
        let counts = Counts::after(before);
        let works: Vec<Work<Counts, u64>> = vec![
            Box::new(|counts| {
                (0..4).for_each(|_| counts.refuse());
                0
            }),
            Box::new(move |counts| {
                let mut last = before;
                (0..2).map(|_| gained(&mut last, counts.read())).sum()
            }),
        ];
        let read = cpus(&counts, works)[1];
        assert!(read <= 4, "{read} of 4");
        assert_eq!(counts.read() - before, 4);
    });
}

/// CPUs that refuse packets of one key in the same instant: each collision hides a packet, or counts a full step twice.
#[test]
fn cpus_that_refuse_at_once_miscount_by_a_step_at_most() {
    explore("two CPUs refuse", 4, || {
        let before = 2 * STEP - 1;
        let counts = Counts::after(before);
        let works: Vec<Work<Counts, ()>> = vec![
            Box::new(|counts| counts.refuse()),
            Box::new(|counts| counts.refuse()),
        ];
        cpus(&counts, works);
        let counted = counts.read() - before;
        assert!((1..=2 + STEP).contains(&counted), "{counted} for 2");
    });
}
