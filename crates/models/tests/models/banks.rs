//! The two banks of rules: `common::bank`, and the bank in the entry of a prefix as in `common::program`.

use std::sync::Arc;

use common::bank::Bank;
use common::prefix::PrefixEntry;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use models::{Work, cpus, explore};

/// The bits of a source index in one bank.
const BITS: u32 = 0;

/// The rows of a policy: two rules, each with the number of the policy.
type Rows = [AtomicU64; 2];

struct Policies {
    /// `Runtime::bank`.
    bank: AtomicU64,
    rules: [Rows; Bank::COUNT as usize],
    /// Packets under evaluation, for which an RCU grace period waits.
    packets: AtomicU64,
}

impl Policies {
    fn new() -> Arc<Self> {
        let rows = || [AtomicU64::new(0), AtomicU64::new(0)];
        Arc::new(Self {
            bank: AtomicU64::new(0),
            rules: [rows(), rows()],
            packets: AtomicU64::new(0),
        })
    }

    /// Evaluates a packet by both rules of the bank in effect; returns the policies to which they belong. The bank is
    /// read once; rows depend on it, which orders the readings on every CPU.
    fn evaluate(&self) -> [u64; 2] {
        self.packets.fetch_add(1, AcqRel);
        let bank = Bank::from_setting(self.bank.load(Acquire) as u32);
        let entry = PrefixEntry::default().in_bank(bank, BITS);
        let rows = &self.rules[entry.source_index() as usize];
        let found = [rows[0].load(Relaxed), rows[1].load(Relaxed)];
        self.packets.fetch_sub(1, AcqRel);
        found
    }

    /// Puts a policy in effect, as the agent does.
    fn switch_to(&self, policy: u64) {
        let bank = Bank::from_setting(self.bank.load(Acquire) as u32).other();
        for row in &self.rules[bank.number() as usize] {
            row.store(policy, Relaxed);
        }
        self.bank.store(u64::from(bank.number()), Release);
    }

    /// An RCU grace period: a read-modify-write meets every packet that has begun.
    fn wait(&self) {
        while self.packets.fetch_add(0, AcqRel) != 0 {
            loom::thread::yield_now();
        }
    }
}

/// Packets on one CPU, while the agent puts two policies in effect, one after the other.
fn two_changes(waits: bool) -> impl Fn() + Send + Sync + 'static {
    move || {
        let policies = Policies::new();
        let works: Vec<Work<Policies, [u64; 2]>> = vec![
            Box::new(move |policies| {
                policies.switch_to(1);
                if waits {
                    policies.wait();
                }
                policies.switch_to(2);
                [2, 2]
            }),
            Box::new(|policies| policies.evaluate()),
        ];
        for [first, second] in cpus(&policies, works) {
            assert_eq!(first, second, "one packet, two policies");
        }
    }
}

#[test]
fn a_packet_is_evaluated_by_one_policy() {
    explore("two changes", 4, two_changes(true));
}

/// Without the grace period, the second change writes the bank that a packet still reads.
#[test]
#[should_panic(expected = "one packet, two policies")]
fn a_bank_that_is_written_too_soon_mixes_policies() {
    explore("two changes at once", 4, two_changes(false));
}
